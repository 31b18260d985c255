"""The estimators' default, DIFFormer-s and -a, the form that cuts off far pairs, and none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from difformer.estimators.settings import FitSettings
from difformer.nn.config import DIFFormerConfig
from difformer.settings import COUNT, Options, like, option
from difformer.systems.system import FLOAT, System, linear


@dataclass(frozen=True, kw_only=True)
class DIFFormerOptions(DIFFormerConfig):
    """DIFFormer's own options, and its width."""

    hidden_channels: int = option(64, "width of the states", COUNT)


@dataclass(frozen=True, kw_only=True)
class AutoOptions(Options):
    """The only option: the estimators choose everything else themselves."""

    time_budget: float | None = like(FitSettings, "time_budget", None)


def _averaged(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Features of every view in double precision, and a tile of the pairs of sharp forms."""
    return 2 * FLOAT * n * (6 * p + 8 * c + 300) + 4 * FLOAT * e


def _tiled(n: int, e: int, p: int, c: int, config: Any) -> float:
    """The sigmoid diffusivity is computed in tiles: no n × n matrix is kept."""
    return linear(n, e, p, c, config) + FLOAT * 256 * n * 4


_SIMPLE = System(
    name="difformer-s",
    title="DIFFormer-s",
    model="difformer.systems.difformer.build",
    config=DIFFormerOptions,
    memory=linear,
    all_pairs=True,
    train={"lr": 0.01, "weight_decay": 0.01, "epochs": 200},
    space={"num_layers": (2, 4, 8), "graph_weight": (0.5, 0.9), "dropout": (0.2, 0.5)},
)
SYSTEMS = (
    System(
        name="difformer",
        title="DIFFormer",
        model="difformer.systems.difformer.Auto",
        config=AutoOptions,
        memory=_averaged,
        all_pairs=True,
        tasks=("multiclass", "regression"),
    ),
    _SIMPLE,
    replace(
        _SIMPLE,
        name="difformer-a",
        title="DIFFormer-a",
        memory=_tiled,
        defaults={"kernel": "sigmoid"},
    ),
    replace(
        _SIMPLE,
        name="difformer-sharp",
        title="DIFFormer, sharp",
        memory=_tiled,
        defaults={"kernel": "sharp", "compare": "input"},
    ),
    replace(
        _SIMPLE,
        name="difformer-g",
        title="DIFFormer, graph term only",
        all_pairs=False,
        needs_graph=True,
        defaults={"kernel": "identity"},
    ),
)

"""Every system by name. To add one: a file with `build`, a config, and an entry here. No torch."""

from __future__ import annotations

from typing import Any

from difformer.baselines import configs
from difformer.baselines.system import System

__all__ = ["SYSTEMS", "get_system"]

FLOAT = 4  # bytes


def _width(config: Any) -> int:
    return int(getattr(config, "hidden_channels", 64)) * int(getattr(config, "num_heads", 1))


def _linear_memory(n: int, e: int, p: int, c: int, config: Any) -> float:
    """States of every layer kept for the backward pass, a message an edge, weights with Adam."""
    d, layers = _width(config), int(getattr(config, "num_layers", 2))
    return FLOAT * (4 * n * d * layers + 3 * e + 4 * p * d)


def _pair_memory(n: int, e: int, p: int, c: int, config: Any) -> float:
    """As above: the sigmoid diffusivity is tiled, so no n × n matrix is kept."""
    return _linear_memory(n, e, p, c, config) + FLOAT * 256 * n * 4


_ALL = (
    System(
        name="difformer-s",
        title="DIFFormer-s",
        module="difformer",
        config=configs.DIFFormerOptions,
        graph="given",
        memory=_linear_memory,
    ),
    System(
        name="difformer-a",
        title="DIFFormer-a",
        module="difformer",
        config=configs.DIFFormerOptions,
        graph="given",
        memory=_pair_memory,
        defaults={"kernel": "sigmoid"},
    ),
    System(
        name="mlp",
        title="MLP",
        module="mlp",
        config=configs.MLPConfig,
        graph="none",
        memory=_linear_memory,
        train={"lr": 0.01, "weight_decay": 5e-4},
    ),
)

SYSTEMS: dict[str, System] = {system.name: system for system in _ALL}


def get_system(name: str) -> System:
    """The system of that name; ValueError lists the known ones.

    >>> get_system("mlp").title
    'MLP'
    """
    if name not in SYSTEMS:
        raise ValueError(f"model must be one of {', '.join(SYSTEMS)}, got {name!r}")
    return SYSTEMS[name]

"""Graph networks, and systems that spread labels along edges."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from difformer.settings import COUNT, RATE, SHARE, Options, option
from difformer.systems.system import (
    CLASSES,
    KIPF,
    LABELS,
    Convolutions,
    Perceptron,
    System,
    by_edge,
    labels,
    linear,
)

_TUNED_SPACE = {
    "num_layers": (2, 3),
    "hidden_channels": (256, 512),
    "residual": (False, True),
    "norm": (None, "batch", "layer"),
}
_GCN = System(
    name="gcn",
    title="GCN",
    model="difformer.systems.gnn.GCN",
    config=Convolutions,
    memory=linear,
    needs_graph=True,
    train=KIPF,
    space={"hidden_channels": (16, 64, 256), "num_layers": (2, 3), "dropout": (0.2, 0.5)},
)
_GCN_TUNED = replace(
    _GCN,
    name="gcn-tuned",
    title="GCN (tuned)",
    defaults={
        "hidden_channels": 512,
        "num_layers": 3,
        "dropout": 0.7,
        "input_dropout": 0.0,
        "head": True,
        "scale_features": True,
    },
    train={"lr": 0.001, "weight_decay": 5e-4},
    space={**_TUNED_SPACE, "dropout": (0.5, 0.7)},
)


@dataclass(frozen=True, kw_only=True)
class GATConfig(Convolutions):
    """Graph attention; `hidden_channels` is the width of one head."""

    num_heads: int = option(8, "heads of the hidden layers, concatenated", COUNT)
    out_heads: int = option(1, "heads of the last layer, averaged", COUNT)
    attention_dropout: float = option(0.6, "dropout on the attention weights", RATE)


def attention_bytes(n: int, e: int, p: int, c: int, config: GATConfig) -> float:
    """Scores and weights per edge, head and layer; no message is made."""
    layers = config.num_layers - (not config.head)
    heads = config.num_heads * layers + (0 if config.head else config.out_heads)
    return by_edge(7 * heads, n, e, p, c, config)


GAT = System(
    name="gat",
    title="GAT",
    model="difformer.systems.gnn.GAT",
    config=GATConfig,
    memory=attention_bytes,
    needs_graph=True,
    defaults={"hidden_channels": 8, "dropout": 0.6, "input_dropout": 0.6},
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"hidden_channels": (8, 16), "out_heads": (1, 8), "dropout": (0.4, 0.6)},
)
DENSE: dict[str, Any] = {"num_heads": 1, "attention_dropout": 0.0, "residual": True}
_GAT_TUNED = replace(
    GAT,
    name="gat-tuned",
    title="GAT (tuned)",
    defaults={**_GCN_TUNED.defaults, **DENSE, "dropout": 0.2},
    train=_GCN_TUNED.train,
    space={**_TUNED_SPACE, "dropout": (0.2, 0.5)},
)
_SAGE = replace(
    _GCN,
    name="graphsage",
    title="GraphSAGE",
    model="difformer.systems.gnn.GraphSAGE",
    defaults={"residual": True, "input_dropout": 0.0},
    space={**_GCN.space, "norm": (None, "batch", "layer")},
)


@dataclass(frozen=True, kw_only=True)
class LPConfig(Options):
    """Label propagation."""

    steps: int = option(50, "propagation steps", COUNT)
    alpha: float = option(0.9, "weight of the neighbours against the labels, in (0, 1)", SHARE)


_LP = System(
    name="lp",
    title="LP",
    model="difformer.systems.propagation.LabelPropagation",
    config=LPConfig,
    memory=labels,
    needs_graph=True,
    tasks=LABELS,
    space={"alpha": (0.5, 0.9, 0.99)},
)


@dataclass(frozen=True, kw_only=True)
class APPNPConfig(Perceptron):
    """A perceptron whose predictions are propagated."""

    steps: int = option(10, "propagation steps K", COUNT)
    alpha: float = option(0.1, "weight α of a row's own prediction, in (0, 1)", SHARE)


_APPNP = System(
    name="appnp",
    title="APPNP",
    model="difformer.systems.perceptrons.APPNP",
    config=APPNPConfig,
    memory=linear,
    needs_graph=True,
    train=KIPF,
    space={"alpha": (0.05, 0.1, 0.2, 0.5), "hidden_channels": (64, 256), "dropout": (0.2, 0.5)},
)


@dataclass(frozen=True, kw_only=True)
class SmoothConfig(Perceptron):
    """A perceptron, corrected and smoothed along edges."""

    steps: int = option(50, "propagation steps, of correcting and of smoothing each", COUNT)
    correct_alpha: float = option(0.9, "how far errors spread, in (0, 1)", SHARE)
    smooth_alpha: float = option(0.8, "how far labels spread, in (0, 1)", SHARE)


_SMOOTHED = System(
    name="correct-smooth",
    title="correct and smooth",
    model="difformer.systems.propagation.CorrectAndSmooth",
    config=SmoothConfig,
    memory=linear,
    needs_graph=True,
    tasks=CLASSES,
    defaults={"input_dropout": 0.0},
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={
        "correct_alpha": (0.5, 0.9),
        "smooth_alpha": (0.5, 0.8, 0.9),
        "hidden_channels": (64, 256),
    },
)
SYSTEMS = (
    _LP,
    _LP.on_neighbours("alpha"),
    _APPNP,
    _SMOOTHED,
    _GCN,
    _SAGE,
    GAT,
    _GCN.on_neighbours("hidden_channels"),
    GAT.on_neighbours("hidden_channels"),
    _GCN_TUNED,
    _GAT_TUNED,
)

"""Graph transformers."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.baselines.registry.memory import FLOAT, linear
from difformer.baselines.registry.stack import CLASSES, KIPF, SCALE, Stack
from difformer.baselines.system import System
from difformer.options import COUNT, NOT_NEGATIVE, POSITIVE, RATE, option, unit_interval, whole

__all__ = ["SYSTEMS", "NodeFormerConfig", "SGFormerConfig"]


@dataclass(frozen=True, kw_only=True)
class NodeFormerConfig(Stack):
    """Kernelised Gumbel-softmax message passing; `hidden_channels` is also a head's width."""

    num_heads: int = option(4, "attention heads", COUNT)
    features: int = option(30, "random features m of the kernel", COUNT)
    gumbels: int = option(10, "Gumbel samples while training; 0: none", whole(0))
    tau: float = option(0.25, "temperature", POSITIVE)
    bias_order: int = option(
        2, "graphs of the relational bias: rows at most 1, 2, 4, ... edges apart", whole(0)
    )
    penalty: float = option(1.0, "weight λ of the edge loss", NOT_NEGATIVE)
    activation: bool = option(False, "ELU after every layer, not after the first linear one only")
    scale_features: bool = option(True, SCALE)


def _gumbel(n: int, e: int, p: int, c: int, config: NodeFormerConfig) -> float:
    """Random features of rows and of the ends of edges, a noise per sample, and wider graphs."""
    rows = 8 * config.features + 4 * max(1, config.gumbels) + 10 * config.hidden_channels
    kept = config.num_heads * (n * rows + 3 * e * config.features)
    wide = sum(min(n**2, n * (e / max(1, n)) ** 2**r) for r in range(1, config.bias_order))
    return linear(n, e, p, c, config) + FLOAT * (config.num_layers * kept + 6 * wide)


@dataclass(frozen=True, kw_only=True)
class SGFormerConfig(Stack):
    """Simplified graph transformer; `num_layers` of attention, `dropout` on their states."""

    num_heads: int = option(1, "attention heads", COUNT)
    backbone: str = option(
        "gcn",
        "beside attention: a plain GCN, or a linear layer and convolutions with batch norm and "
        "residuals",
        ("gcn", "residual"),
    )
    graph_layers: int = option(4, "graph convolutions", COUNT)
    graph_weight: float = option(
        0.8, "weight α of the convolutions against attention", unit_interval(zero=True, one=True)
    )
    graph_dropout: float = option(0.5, "dropout on the states of the convolutions", RATE)
    scale_features: bool = option(True, SCALE)


def _two_branches(n: int, e: int, p: int, c: int, config: SGFormerConfig) -> float:
    """Attention keeps its queries, keys, values and norms; the convolutions beside it theirs."""
    states = n * config.hidden_channels * (16 * config.num_layers + 5 * config.graph_layers)
    return linear(n, e, p, c, config) + FLOAT * states


SYSTEMS = (
    System(
        name="nodeformer",
        title="NodeFormer",
        model="nodeformer.NodeFormer",
        config=NodeFormerConfig,
        memory=_gumbel,
        all_pairs=True,
        defaults={"hidden_channels": 32, "dropout": 0.2, "input_dropout": 0.0},
        train={"lr": 0.001, "weight_decay": 5e-3},
        space={"hidden_channels": (32, 64), "bias_order": (1, 2), "penalty": (0.1, 1.0)},
    ),
    System(
        name="sgformer",
        title="SGFormer",
        model="sgformer.SGFormer",
        config=SGFormerConfig,
        memory=_two_branches,
        needs_graph=True,
        all_pairs=True,
        tasks=CLASSES,
        defaults={"num_layers": 1, "dropout": 0.2, "input_dropout": 0.0},
        train=KIPF,
        space={"graph_layers": (2, 4), "graph_weight": (0.5, 0.8), "dropout": (0.2, 0.5)},
    ),
)

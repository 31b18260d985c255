"""GCN and GAT: plain, tuned, on neighbours, and GAT over all pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from difformer.baselines.registry.memory import FLOAT, by_edge, linear
from difformer.baselines.registry.stack import KIPF, Convolutions
from difformer.baselines.system import System
from difformer.options import COUNT, RATE, option

__all__ = ["SYSTEMS", "BiasedGATConfig", "GATConfig"]

_TUNED_SPACE = {
    "num_layers": (2, 3),
    "hidden_channels": (256, 512),
    "residual": (False, True),
    "norm": (None, "batch", "layer"),
}
_GCN = System(
    name="gcn",
    title="GCN",
    model="gcn.GCN",
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


@dataclass(frozen=True, kw_only=True)
class BiasedGATConfig(GATConfig):
    """Attention over all pairs with a bias for those that an edge joins."""

    edge_bias: float = option(
        6.0, "first value of the bias; 6: an edge counts as e⁶, about 400, pairs without one"
    )


def _attention(n: int, e: int, p: int, c: int, config: GATConfig) -> float:
    """Scores and weights per edge, head and layer; no message is made."""
    layers = config.num_layers - (not config.head)
    heads = config.num_heads * layers + (0 if config.head else config.out_heads)
    return by_edge(7 * heads, n, e, p, c, config)


def _running_sums(n: int, e: int, p: int, c: int, config: GATConfig) -> float:
    """Two cumulative sums of the values per layer, their terms, and each row's entries of them."""
    sums = 12 * n * config.hidden_channels * config.num_heads * config.num_layers
    return linear(n, 0, p, c, config) + FLOAT * sums


def _sums_and_edges(n: int, e: int, p: int, c: int, config: GATConfig) -> float:
    """The sums over all pairs, and the edges' part of them."""
    return _running_sums(n, e, p, c, config) + _attention(n, e, p, c, config)


_GAT = System(
    name="gat",
    title="GAT",
    model="gat.GAT",
    config=GATConfig,
    memory=_attention,
    needs_graph=True,
    defaults={"hidden_channels": 8, "dropout": 0.6, "input_dropout": 0.6},
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"hidden_channels": (8, 16), "out_heads": (1, 8), "dropout": (0.4, 0.6)},
)
_DENSE: dict[str, Any] = {"num_heads": 1, "attention_dropout": 0.0, "residual": True}
_GAT_TUNED = replace(
    _GAT,
    name="gat-tuned",
    title="GAT (tuned)",
    defaults={**_GCN_TUNED.defaults, **_DENSE, "dropout": 0.2},
    train=_GCN_TUNED.train,
    space={**_TUNED_SPACE, "dropout": (0.2, 0.5)},
)
_DENSE_GAT = replace(
    _GAT,
    name="densegat",
    title="Dense GAT",
    model="densegat.DenseGAT",
    graph="dense",
    memory=_running_sums,
    needs_graph=False,
    all_pairs=True,
    defaults={**_DENSE, "hidden_channels": 16},
    train=KIPF,
    space={"hidden_channels": (8, 16), "dropout": (0.2, 0.5)},
)
_DENSE_GAT_EDGES = replace(
    _DENSE_GAT,
    name="densegat-edges",
    title="Dense GAT with edges",
    model="densegat.BiasedDenseGAT",
    config=BiasedGATConfig,
    graph="given",
    memory=_sums_and_edges,
    needs_graph=True,
)
_SAGE = replace(
    _GCN,
    name="graphsage",
    title="GraphSAGE",
    model="sage.GraphSAGE",
    defaults={"residual": True, "input_dropout": 0.0},
    space={**_GCN.space, "norm": (None, "batch", "layer")},
)
SYSTEMS = (
    _GCN,
    _SAGE,
    _GAT,
    _GCN.on_neighbours("hidden_channels"),
    _GAT.on_neighbours("hidden_channels"),
    _DENSE_GAT,
    _DENSE_GAT_EDGES,
    _GCN_TUNED,
    _GAT_TUNED,
)

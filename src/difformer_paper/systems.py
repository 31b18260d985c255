"""The rivals of the paper as systems: their options, and what they cost. No torch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from difformer.settings import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    SHARE,
    option,
    unit_interval,
    whole,
)
from difformer.systems.registry import DENSE, GAT, keep_weights
from difformer.systems.system import (
    ATTENTION,
    CLASSES,
    CONVOLUTIONS,
    KIPF,
    PERCEPTRON,
    SCALE,
    SLOW,
    STACK,
    WIDTH,
    System,
    keep_states,
    settings,
)

_on_edges = partial(System, needs_graph=True)


def _keep_features(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Dense features before, during and after propagation, and a sparse adjacency."""
    return 3 * n * p + 5 * e


def _keep_diffused(config: Any, n: int, e: int, p: int, c: int) -> float:
    """A block of columns of the diffusion and its work space, and the entries kept."""
    kept = n * min(config.top_k, n)
    return 8 * min(n * n, 2**22) + 12 * kept + keep_states(config, n, kept, p, c)


def _keep_evaluations(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Every evaluation of the field keeps its states, and its attention if it is its own."""
    evaluations = config.time / config.step * {"rk4": 4, "midpoint": 2}.get(config.method, 1)
    attention = e * config.num_heads * (2 * config.attention_channels + 3)
    states = evaluations * n * config.hidden_channels * 7
    often = evaluations if config.nonlinear else 1
    return keep_states(config, n, e, p, c) + states + often * attention


_SGC = _on_edges(
    "sgc",
    "SGC",
    "difformer_paper.rivals.diffusions.SGC",
    settings(steps=option(2, "propagation steps K", COUNT)),
    train={"lr": 0.2, "weight_decay": 5e-6},
    space={"steps": (2, 4, 8)},
    cost=_keep_features,
)
_DGC = _on_edges(
    "dgc",
    "DGC-Euler",
    "difformer_paper.rivals.diffusions.DGC",
    settings(
        steps=option(100, "Euler steps K", COUNT),
        time=option(5.3, "terminal time T", POSITIVE),
    ),
    train={"lr": 0.2, "weight_decay": 1e-5},
    space={"time": (3.8, 5.3, 6.0)},
    cost=_keep_features,
)
_GDC = _on_edges(
    "gdc",
    "GDC",
    "difformer_paper.rivals.diffusions.GDC",
    settings(
        CONVOLUTIONS,
        diffusion=option("ppr", "personalised PageRank or heat kernel", ("ppr", "heat")),
        alpha=option(0.05, "teleport probability of ppr", SHARE),
        time=option(5.0, "diffusion time of heat", POSITIVE),
        top_k=option(128, "entries kept in each column", COUNT),
    ),
    package="torch_geometric",
    train=KIPF,
    space={"alpha": (0.05, 0.1), "top_k": (64, 128), "hidden_channels": (16, 64)},
    cost=_keep_diffused,
)
_HEAT = _on_edges(
    "graphheat",
    "GraphHeat",
    "difformer_paper.rivals.diffusions.GraphHeat",
    settings(STACK, scale=option(3.5, "s in e^(-s L)", POSITIVE)),
    defaults={"hidden_channels": 16},
    train=KIPF,
    space={"scale": (1.0, 3.5, 5.0), "hidden_channels": (16, 64)},
)
_GRAND = _on_edges(
    "grand-l",
    "GRAND-l",
    "difformer_paper.rivals.diffusions.GRAND",
    settings(
        WIDTH,
        attention_channels=option(16, "width of a head's query and key", COUNT),
        num_heads=option(4, "attention heads, averaged", COUNT),
        nonlinear=option(False, "compute the attention of every state; off: of the first only"),
        source=option(False, "GRAND++: labelled rows are sources"),
        source_dropout=option(
            0.5,
            "share of GRAND++'s sources left out of a training step, which learns from their rows "
            "only",
            RATE,
        ),
        learned_scale=option(True, "learn how fast X(t) moves and how strong the sources are"),
        time=option(8.0, "terminal time T", POSITIVE),
        method=option(
            "rk4", "torchdiffeq's solver", ("euler", "midpoint", "rk4", "dopri5", "adaptive_heun")
        ),
        step=option(1.0, "step size of the fixed-step solvers", POSITIVE),
        tolerance=option(1e-3, "relative and absolute tolerance of the adaptive solvers", POSITIVE),
        scale_features=option(False, SCALE),
    ),
    package="torchdiffeq",
    train={"lr": 0.02, "weight_decay": 5e-4},
    space={"time": (4.0, 8.0, 16.0), "dropout": (0.2, 0.5)},
    cost=_keep_evaluations,
)
_EULER: dict[str, Any] = {"method": "euler"}
_DIFFUSIONS = (
    _SGC,
    _GRAND,
    replace(_GRAND, name="grand", title="GRAND", defaults={**_EULER, "nonlinear": True}),
    replace(
        _GRAND,
        name="grandpp",
        title="GRAND++",
        defaults={**_EULER, "source": True},
        space={**_GRAND.space, "source_dropout": (0.0, 0.5, 0.9)},
    ),
    _GDC,
    _HEAT,
    _DGC,
)


def _keep_pairs(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Pairs and their chances, drawn graphs, narrow factors of the hypergradient, features."""
    pairs = 24 * (e + 2 * n * config.top_k)
    factors = 40 * n * (config.hidden_channels + c) * (config.unroll + 1)
    block = 2 * min(n * n, 2**22)
    return pairs + factors + block + _keep_features(config, n, e, p, c)


def _keep_gaps(config: Any, n: int, e: int, p: int, c: int) -> float:
    """The projected rows; per edge its score, square, weight and normalised weight."""
    return keep_states(config, n, e, p, c) + 20 * e + 4 * config.graph_channels * (n + p)


_LDS = _on_edges(
    "lds",
    "LDS",
    "difformer_paper.rivals.learned.LDS",
    settings(
        hidden_channels=option(16, "width of the hidden layer", COUNT),
        dropout=option(0.5, "dropout on features and hidden layer", RATE),
        inner_steps=option(5, "weight updates per epoch", COUNT),
        unroll=option(1, "gradient steps that the hypergradient is taken through", whole(0)),
        inner_lr=option(0.1, "learning rate of those steps", POSITIVE),
        theta_lr=option(1.0, "learning rate of the edge probabilities", POSITIVE),
        outer=option(
            "training",
            "whose labels the outer loss takes; validation: half of those rows, as its paper does",
            ("training", "validation"),
        ),
        outer_share=option(0.3, "share of the training rows kept for the outer loss", SHARE),
        top_k=option(32, "pairs each row may propose, and learned edges kept per row", COUNT),
        samples=option(4, "graphs averaged in a prediction", COUNT),
    ),
    tasks=CLASSES,
    train={"lr": 0.01, "weight_decay": 5e-4, "epochs": 100},
    space={"theta_lr": (0.1, 1.0), "hidden_channels": (16, 32)},
    cost=_keep_pairs,
)
_GLCN = _on_edges(
    "glcn",
    "GLCN",
    "difformer_paper.rivals.learned.GLCN",
    settings(
        STACK,
        graph_channels=option(70, "width of the layer that learns the graph", COUNT),
        penalty=option(0.01, "weight λ of the graph loss", NOT_NEGATIVE),
        gamma=option(0.1, "weight of its sparsity term", NOT_NEGATIVE),
        beta=option(0.0, "weight of its distance to the given graph", NOT_NEGATIVE),
    ),
    defaults={"hidden_channels": 30, "dropout": 0.6, "input_dropout": 0.6},
    package="torch_geometric",
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"penalty": (0.001, 0.01, 0.1), "hidden_channels": (30, 70)},
    cost=_keep_gaps,
)
_MANIREG = _on_edges(
    "manireg",
    "ManiReg",
    "difformer_paper.rivals.diffusions.ManiReg",
    settings(
        PERCEPTRON,
        penalty=option(1.0, "weight λ of the roughness", NOT_NEGATIVE),
        classes=option(True, "penalise probabilities; off: outputs as they are (regression)"),
    ),
    defaults={"input_dropout": 0.0},
    train=SLOW,
    space={"penalty": (0.1, 1.0, 10.0), "hidden_channels": (16, 64, 256)},
)


def _keep_samples(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Random features of rows and of the ends of edges, noise per sample, wider graphs."""
    rows = 8 * config.features + 4 * max(1, config.gumbels) + 10 * config.hidden_channels
    kept = config.num_heads * (n * rows + 3 * e * config.features)
    wide = sum(min(n**2, n * (e / max(1, n)) ** 2**r) for r in range(1, config.bias_order))
    return keep_states(config, n, e, p, c) + config.num_layers * kept + 6 * wide


def _keep_both(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Attention keeps its queries, keys, values and norms; convolutions theirs."""
    states = n * config.hidden_channels * (16 * config.num_layers + 5 * config.graph_layers)
    return keep_states(config, n, e, p, c) + states


def _keep_sums(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Two cumulative sums of the values per layer, their terms, and each row's entries."""
    sums = 12 * n * config.hidden_channels * config.num_heads * config.num_layers
    return keep_weights(config, n, e, p, c) + sums


_NODEFORMER = System(
    "nodeformer",
    "NodeFormer",
    "difformer_paper.rivals.nodeformer.NodeFormer",
    settings(
        STACK,
        num_heads=option(4, "attention heads", COUNT),
        features=option(30, "random features m of the kernel", COUNT),
        gumbels=option(10, "Gumbel samples while training; 0: none", whole(0)),
        tau=option(0.25, "temperature", POSITIVE),
        bias_order=option(
            2, "graphs of the relational bias: rows at most 1, 2, 4, ... edges apart", whole(0)
        ),
        penalty=option(1.0, "weight λ of the edge loss", NOT_NEGATIVE),
        activation=option(False, "ELU after every layer, not after the first linear one only"),
        scale_features=option(True, SCALE),
    ),
    all_pairs=True,
    defaults={"hidden_channels": 32, "dropout": 0.2, "input_dropout": 0.0},
    train={"lr": 0.001, "weight_decay": 5e-3},
    space={"hidden_channels": (32, 64), "bias_order": (1, 2), "penalty": (0.1, 1.0)},
    cost=_keep_samples,
)
_SGFORMER = _on_edges(
    "sgformer",
    "SGFormer",
    "difformer_paper.rivals.attention.SGFormer",
    settings(
        STACK,
        num_heads=option(1, "attention heads", COUNT),
        backbone=option(
            "gcn",
            "beside attention: a plain GCN, or a linear layer and convolutions with batch norm and "
            "residuals",
            ("gcn", "residual"),
        ),
        graph_layers=option(4, "graph convolutions", COUNT),
        graph_weight=option(
            0.8,
            "weight α of the convolutions against attention",
            unit_interval(zero=True, one=True),
        ),
        graph_dropout=option(0.5, "dropout on the states of the convolutions", RATE),
        scale_features=option(True, SCALE),
    ),
    all_pairs=True,
    tasks=CLASSES,
    defaults={"num_layers": 1, "dropout": 0.2, "input_dropout": 0.0},
    package="torch_geometric",
    train=KIPF,
    space={"graph_layers": (2, 4), "graph_weight": (0.5, 0.8), "dropout": (0.2, 0.5)},
    cost=_keep_both,
)
_DENSE_GAT = replace(
    GAT,
    name="densegat",
    title="Dense GAT",
    model="difformer_paper.rivals.attention.DenseGAT",
    graph="dense",
    needs_graph=False,
    all_pairs=True,
    defaults={**DENSE, "hidden_channels": 16},
    train=KIPF,
    space={"hidden_channels": (8, 16), "dropout": (0.2, 0.5)},
    cost=_keep_sums,
)
_DENSE_GAT_EDGES = replace(
    _DENSE_GAT,
    name="densegat-edges",
    title="Dense GAT with edges",
    model="difformer_paper.rivals.attention.BiasedDenseGAT",
    config=settings(
        ATTENTION,
        edge_bias=option(
            6.0, "first value of the bias; 6: an edge counts as e⁶, about 400, pairs without one"
        ),
    ),
    graph="given",
    needs_graph=True,
)
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        *(*_DIFFUSIONS, _LDS, _GLCN, _GLCN.on_neighbours("penalty")),
        *(_NODEFORMER, _SGFORMER, _DENSE_GAT, _DENSE_GAT_EDGES),
        *(_MANIREG, _MANIREG.on_neighbours("penalty")),
    )
}
"""The models that the paper compares DIFFormer with, each in the form its authors released."""

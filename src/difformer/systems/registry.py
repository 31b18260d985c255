"""Every system by name: the options of each, and its entry. No torch.

To add a system: its model in a file here, called as (in_channels, out_channels, config), and its
`System` below, with its options and the memory it needs. Other packages add theirs (see
`difformer.extensions`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from difformer.estimators.settings import FitSettings
from difformer.extensions import added
from difformer.nn.config import DIFFormerConfig
from difformer.settings import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, like, option, whole
from difformer.systems.system import (
    ATTENTION,
    CLASSES,
    CONVOLUTIONS,
    KIPF,
    LABELS,
    ONE_ANSWER,
    OURS,
    PERCEPTRON,
    SLOW,
    System,
    keep_states,
    settings,
)

DIFFormerOptions: type[DIFFormerConfig] = settings(
    base=DIFFormerConfig, hidden_channels=option(64, "width of the states", COUNT)
)
"""DIFFormer's own options, and its width."""


def _keep_tiles(config: Any, n: int, e: int, p: int, c: int) -> float:
    """A diffusivity of pairs is computed in tiles: no n × n matrix is kept."""
    tile = 0 if config.kernel in ("simple", "identity") else 1024 * n
    return keep_states(config, n, e, p, c) + tile


def _keep_views(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Features of every view in double precision, and a tile of the pairs of sharp forms."""
    return 2 * n * (6 * p + 8 * c + 300) + 4 * e


_AUTO = System(
    "difformer",
    "DIFFormer",
    f"{OURS}.Auto",
    settings(time_budget=like(FitSettings, "time_budget", None)),  # it chooses all else itself
    all_pairs=True,
    tasks=ONE_ANSWER,
    cost=_keep_views,
)
_SIMPLE = System(
    "difformer-s",
    "DIFFormer-s",
    f"{OURS}.build",
    DIFFormerOptions,
    all_pairs=True,
    train={"lr": 0.01, "weight_decay": 0.01, "epochs": 200},
    space={"num_layers": (2, 4, 8), "graph_weight": (0.5, 0.9), "dropout": (0.2, 0.5)},
    cost=_keep_tiles,
)
_SIGMOID = replace(_SIMPLE, name="difformer-a", title="DIFFormer-a", defaults={"kernel": "sigmoid"})
_SHARP = replace(
    _SIMPLE,
    name="difformer-sharp",
    title="DIFFormer, sharp",
    defaults={"kernel": "sharp", "compare": "input"},
)
_GRAPH_TERM = replace(
    _SIMPLE,
    name="difformer-g",
    title="DIFFormer, graph term only",
    all_pairs=False,
    needs_graph=True,
    defaults={"kernel": "identity"},
)


def _keep_copies(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Features in double precision, scaled, and the library's own copy; predictions."""
    return 2 * n * (4 * p + 3 * c)


# What scikit-learn fits.
_library = partial(System, graph="none", tasks=ONE_ANSWER, cost=_keep_copies)
_SCALE = {
    "scale": option(
        "auto",
        "standardise columns, or give rows unit length; auto: unit for sparse features",
        ("auto", "standard", "unit", "none"),
    )
}
_LOGISTIC = _SCALE | {
    "C": option(1.0, "one over the weight of the penalty", POSITIVE),
    "iterations": option(1000, "most iterations of the solver", COUNT),
}
_C = (0.01, 0.1, 1.0, 10.0, 100.0)
_FITTED = (
    _library(
        "logistic",
        "logistic regression",
        "difformer.systems.fitted.Logistic",
        settings(_LOGISTIC),
        numbers="ridge regression",
        space={"C": _C},
    ),
    _library(
        "forest",
        "random forest",
        "difformer.systems.fitted.Forest",
        settings(
            trees=option(300, "number of trees", COUNT),
            max_features=option("sqrt", "columns considered at each split", ("sqrt", "log2")),
            min_samples_leaf=option(1, "least rows in a leaf", COUNT),
        ),
        space={"max_features": ("sqrt", "log2"), "min_samples_leaf": (1, 2, 5)},
    ),
    _library(
        "boosting",
        "gradient boosting",
        "difformer.systems.fitted.Boosting",
        settings(
            learning_rate=option(0.1, "weight of each tree", POSITIVE),
            iterations=option(100, "rounds of boosting", COUNT),
            max_leaf_nodes=option(31, "most leaves of a tree", whole(2)),
            min_samples_leaf=option(5, "least rows in a leaf", COUNT),
            l2=option(1.0, "penalty on the leaves' values", NOT_NEGATIVE),
        ),
        space={
            "learning_rate": (0.03, 0.1),
            "max_leaf_nodes": (7, 31),
            "min_samples_leaf": (2, 5, 20),
        },
    ),
    _library(
        "knn",
        "kNN",
        "difformer.systems.fitted.NearestRows",
        settings(
            _SCALE,
            k=option(5, "number of labelled neighbours", COUNT),
            weights=option("distance", "weights of the neighbours", ("uniform", "distance")),
            metric=option("euclidean", "distance between rows", ("euclidean", "cosine")),
        ),
        space={
            "k": (1, 5, 15),
            "weights": ("uniform", "distance"),
            "metric": ("euclidean", "cosine"),
        },
    ),
    _library(
        "label-spreading",
        "label spreading",
        "difformer.systems.fitted.LabelSpreading",
        settings(
            _SCALE,
            k=option(7, "neighbours per row", COUNT),
            alpha=option(0.5, "weight of the neighbours against the labels, in (0, 1)", SHARE),
        ),
        tasks=CLASSES,
        space={"k": (5, 7, 15), "alpha": (0.2, 0.5, 0.9)},
    ),
    _library(
        "self-training",
        "self-training",
        "difformer.systems.fitted.SelfTrained",
        settings(
            _LOGISTIC,
            threshold=option(0.9, "probability above which a prediction is used as a label", SHARE),
        ),
        tasks=CLASSES,
        space={"C": _C, "threshold": (0.75, 0.9, 0.99)},
    ),
)

_MLP = System(
    "mlp",
    "MLP",
    "difformer.systems.layers.MLP",
    settings(PERCEPTRON),
    graph="none",
    defaults={"input_dropout": 0.0},
    train=SLOW,
    space={
        "hidden_channels": (16, 64, 256),
        "dropout": (0.2, 0.5),
        "standardise": (False, True),
    },
)


def keep_weights(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Scores and weights per edge, head and layer, and both ends as int64; no message."""
    layers = config.num_layers - (not config.head)
    heads = config.num_heads * layers + (0 if config.head else config.out_heads)
    return keep_states(config, n, e, p, c) + e * (7 * heads + 4)


def _keep_labels(config: Any, n: int, e: int, p: int, c: int) -> float:
    """Labels before and after they are spread, and one message per edge."""
    return 3 * n * c + e * c


# What follows the edges.
_on_edges = partial(System, needs_graph=True, package="torch_geometric")
_TUNED_SPACE = {
    "num_layers": (2, 3),
    "hidden_channels": (256, 512),
    "residual": (False, True),
    "norm": (None, "batch", "layer"),
}
_GCN = _on_edges(
    "gcn",
    "GCN",
    "difformer.systems.gnn.GCN",
    settings(CONVOLUTIONS),
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
GAT = _on_edges(
    "gat",
    "GAT",
    "difformer.systems.gnn.GAT",
    settings(ATTENTION),
    defaults={"hidden_channels": 8, "dropout": 0.6, "input_dropout": 0.6},
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"hidden_channels": (8, 16), "out_heads": (1, 8), "dropout": (0.4, 0.6)},
    cost=keep_weights,
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
_LP = _on_edges(
    "lp",
    "LP",
    "difformer.systems.gnn.LabelPropagation",
    settings(
        steps=option(50, "propagation steps", COUNT),
        alpha=option(0.9, "weight of the neighbours against the labels, in (0, 1)", SHARE),
    ),
    tasks=LABELS,
    space={"alpha": (0.5, 0.9, 0.99)},
    cost=_keep_labels,
)
_APPNP = System(
    "appnp",
    "APPNP",
    "difformer.systems.layers.APPNP",
    settings(
        PERCEPTRON,
        steps=option(10, "propagation steps K", COUNT),
        alpha=option(0.1, "weight α of a row's own prediction, in (0, 1)", SHARE),
    ),
    needs_graph=True,
    train=KIPF,
    space={"alpha": (0.05, 0.1, 0.2, 0.5), "hidden_channels": (64, 256), "dropout": (0.2, 0.5)},
)
_SMOOTHED = _on_edges(
    "correct-smooth",
    "correct and smooth",
    "difformer.systems.gnn.CorrectAndSmooth",
    settings(
        PERCEPTRON,
        steps=option(50, "propagation steps, of correcting and of smoothing each", COUNT),
        correct_alpha=option(0.9, "how far errors spread, in (0, 1)", SHARE),
        smooth_alpha=option(0.8, "how far labels spread, in (0, 1)", SHARE),
    ),
    tasks=CLASSES,
    defaults={"input_dropout": 0.0},
    train=SLOW,
    space={
        "correct_alpha": (0.5, 0.9),
        "smooth_alpha": (0.5, 0.8, 0.9),
        "hidden_channels": (64, 256),
    },
)
_EVERY = (
    *(_AUTO, _SIMPLE, _SIGMOID, _SHARP, _GRAPH_TERM, _MLP, *_FITTED),
    *(_LP, _LP.on_neighbours("alpha"), _APPNP, _SMOOTHED, _GCN, _SAGE, GAT),
    *(_GCN.on_neighbours("hidden_channels"), GAT.on_neighbours("hidden_channels")),
    *(_GCN_TUNED, _GAT_TUNED),
)
SYSTEMS: dict[str, System] = {system.name: system for system in _EVERY} | added("systems")

# Forecasts without a network: their features are the lags of a series, so they are not in SYSTEMS,
# but tables of forecasts show them.
_RULES = (
    ("last-value", "last value", "last"),
    ("mean-of-lags", "mean of the lags", "mean"),
    ("node-ar", "linear AR, one per node", "node"),
    ("pooled-ar", "linear AR, one for all", "pooled"),
)
_NAIVE = settings(
    rule=option("last", "which forecast", tuple(rule for _, _, rule in _RULES)),
    ridge=option(0.0, "penalty on the weights of an autoregression", NOT_NEGATIVE),
)
FORECASTS: dict[str, System] = {
    name: System(
        name,
        title,
        "difformer.systems.fitted.forecast",
        _NAIVE,
        graph="none",
        tasks=("regression",),
        defaults={"rule": rule},
        space={"ridge": (0.0, 1.0, 10.0, 100.0)} if rule in ("node", "pooled") else {},
    )
    for name, title, rule in _RULES
}


def get_system(name: str) -> System:
    """The system of that name; ValueError lists the known ones.

    >>> get_system("mlp").title
    'MLP'
    """
    if name in FORECASTS:
        return FORECASTS[name]
    if name not in SYSTEMS:
        raise ValueError(f"model must be one of {', '.join(SYSTEMS)}, got {name!r}")
    return SYSTEMS[name]

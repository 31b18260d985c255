"""Options and entries of every system of this package. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from difformer.estimators.settings import FitSettings
from difformer.nn.config import DIFFormerConfig
from difformer.settings import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, like, option, whole
from difformer.systems.system import (
    CLASSES,
    KIPF,
    LABELS,
    Config,
    Convolutions,
    GATConfig,
    Perceptron,
    System,
)


@dataclass(frozen=True, kw_only=True)
class AutoOptions(Config):
    """The only option: the estimators choose everything else themselves."""

    time_budget: float | None = like(FitSettings, "time_budget", None)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Features of every view in double precision, and a tile of the pairs of sharp forms."""
        return 2 * n * (6 * p + 8 * c + 300) + 4 * e


@dataclass(frozen=True, kw_only=True)
class DIFFormerOptions(DIFFormerConfig, Config):
    """DIFFormer's own options, and its width."""

    hidden_channels: int = option(64, "width of the states", COUNT)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """A diffusivity of pairs is computed in tiles: no n × n matrix is kept."""
        tile = 0 if self.kernel in ("simple", "identity") else 1024 * n
        return super().numbers(n, e, p, c) + tile


_AUTO = System(
    "difformer",
    "DIFFormer",
    "difformer.systems.difformer.Auto",
    AutoOptions,
    all_pairs=True,
    tasks=("multiclass", "regression"),
)
_SIMPLE = System(
    "difformer-s",
    "DIFFormer-s",
    "difformer.systems.difformer.build",
    DIFFormerOptions,
    all_pairs=True,
    train={"lr": 0.01, "weight_decay": 0.01, "epochs": 200},
    space={"num_layers": (2, 4, 8), "graph_weight": (0.5, 0.9), "dropout": (0.2, 0.5)},
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

_MLP = System(
    "mlp",
    "MLP",
    "difformer.systems.perceptrons.MLP",
    Perceptron,
    graph="none",
    defaults={"input_dropout": 0.0},
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={
        "hidden_channels": (16, 64, 256),
        "dropout": (0.2, 0.5),
        "standardise": (False, True),
    },
)


class Fitted(Config):
    """Options of an estimator that a library fits."""

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Features in double precision, scaled, and the library's own copy; predictions."""
        return 2 * n * (4 * p + 3 * c)


@dataclass(frozen=True, kw_only=True)
class Scaled(Fitted):
    """Features that are scaled by all rows."""

    scale: str = option(
        "auto",
        "standardise columns, or give rows unit length; auto: unit for sparse features",
        ("auto", "standard", "unit", "none"),
    )


@dataclass(frozen=True, kw_only=True)
class LogisticConfig(Scaled):
    """Logistic regression; for numbers ridge regression."""

    C: float = option(1.0, "one over the weight of the penalty", POSITIVE)
    iterations: int = option(1000, "most iterations of the solver", COUNT)


@dataclass(frozen=True, kw_only=True)
class ForestConfig(Fitted):
    """Random forest."""

    trees: int = option(300, "number of trees", COUNT)
    max_features: str = option("sqrt", "columns considered at each split", ("sqrt", "log2"))
    min_samples_leaf: int = option(1, "least rows in a leaf", COUNT)


@dataclass(frozen=True, kw_only=True)
class BoostingConfig(Fitted):
    """Gradient boosting on histograms."""

    learning_rate: float = option(0.1, "weight of each tree", POSITIVE)
    iterations: int = option(100, "rounds of boosting", COUNT)
    max_leaf_nodes: int = option(31, "most leaves of a tree", whole(2))
    min_samples_leaf: int = option(5, "least rows in a leaf", COUNT)
    l2: float = option(1.0, "penalty on the leaves' values", NOT_NEGATIVE)


@dataclass(frozen=True, kw_only=True)
class KNNConfig(Scaled):
    """Nearest labelled rows."""

    k: int = option(5, "number of labelled neighbours", COUNT)
    weights: str = option("distance", "weights of the neighbours", ("uniform", "distance"))
    metric: str = option("euclidean", "distance between rows", ("euclidean", "cosine"))


@dataclass(frozen=True, kw_only=True)
class SpreadingConfig(Scaled):
    """Label spreading on the neighbours' graph."""

    k: int = option(7, "neighbours per row", COUNT)
    alpha: float = option(0.5, "weight of the neighbours against the labels, in (0, 1)", SHARE)


@dataclass(frozen=True, kw_only=True)
class SelfTrainingConfig(LogisticConfig):
    """Logistic regression that is also trained on its own confident predictions."""

    threshold: float = option(0.9, "probability above which a prediction is used as a label", SHARE)


def _library(
    name: str,
    title: str,
    model: str,
    config: type[Any],
    *,
    tasks: tuple[str, ...] = ("multiclass", "regression"),
    numbers: str = "",
    **space: tuple[Any, ...],
) -> System:
    """A system that scikit-learn fits; `space` has the values to try."""
    return System(
        name,
        title,
        f"difformer.systems.fitted.{model}",
        config,
        graph="none",
        tasks=tasks,
        numbers=numbers,
        space=space,
    )


_C = (0.01, 0.1, 1.0, 10.0, 100.0)
_FITTED = (
    _library(
        "logistic",
        "logistic regression",
        "Logistic",
        LogisticConfig,
        numbers="ridge regression",
        C=_C,
    ),
    _library(
        "forest",
        "random forest",
        "Forest",
        ForestConfig,
        max_features=("sqrt", "log2"),
        min_samples_leaf=(1, 2, 5),
    ),
    _library(
        "boosting",
        "gradient boosting",
        "Boosting",
        BoostingConfig,
        learning_rate=(0.03, 0.1),
        max_leaf_nodes=(7, 31),
        min_samples_leaf=(2, 5, 20),
    ),
    _library(
        "knn",
        "kNN",
        "NearestRows",
        KNNConfig,
        k=(1, 5, 15),
        weights=("uniform", "distance"),
        metric=("euclidean", "cosine"),
    ),
    _library(
        "label-spreading",
        "label spreading",
        "LabelSpreading",
        SpreadingConfig,
        k=(5, 7, 15),
        alpha=(0.2, 0.5, 0.9),
        tasks=CLASSES,
    ),
    _library(
        "self-training",
        "self-training",
        "SelfTrained",
        SelfTrainingConfig,
        C=_C,
        threshold=(0.75, 0.9, 0.99),
        tasks=CLASSES,
    ),
)

_TUNED_SPACE = {
    "num_layers": (2, 3),
    "hidden_channels": (256, 512),
    "residual": (False, True),
    "norm": (None, "batch", "layer"),
}
_GCN = System(
    "gcn",
    "GCN",
    "difformer.systems.gnn.GCN",
    Convolutions,
    needs_graph=True,
    package="torch_geometric",
    extra="gnn",
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


GAT = System(
    "gat",
    "GAT",
    "difformer.systems.gnn.GAT",
    GATConfig,
    needs_graph=True,
    defaults={"hidden_channels": 8, "dropout": 0.6, "input_dropout": 0.6},
    package="torch_geometric",
    extra="gnn",
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
class LPConfig(Config):
    """Label propagation."""

    steps: int = option(50, "propagation steps", COUNT)
    alpha: float = option(0.9, "weight of the neighbours against the labels, in (0, 1)", SHARE)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Labels before and after they are spread, and one message per edge."""
        return 3 * n * c + e * c


_LP = System(
    "lp",
    "LP",
    "difformer.systems.propagation.LabelPropagation",
    LPConfig,
    needs_graph=True,
    tasks=LABELS,
    package="torch_geometric",
    extra="gnn",
    space={"alpha": (0.5, 0.9, 0.99)},
)


@dataclass(frozen=True, kw_only=True)
class APPNPConfig(Perceptron):
    """A perceptron whose predictions are propagated."""

    steps: int = option(10, "propagation steps K", COUNT)
    alpha: float = option(0.1, "weight α of a row's own prediction, in (0, 1)", SHARE)


_APPNP = System(
    "appnp",
    "APPNP",
    "difformer.systems.perceptrons.APPNP",
    APPNPConfig,
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
    "correct-smooth",
    "correct and smooth",
    "difformer.systems.propagation.CorrectAndSmooth",
    SmoothConfig,
    needs_graph=True,
    tasks=CLASSES,
    defaults={"input_dropout": 0.0},
    package="torch_geometric",
    extra="gnn",
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={
        "correct_alpha": (0.5, 0.9),
        "smooth_alpha": (0.5, 0.8, 0.9),
        "hidden_channels": (64, 256),
    },
)

SYSTEMS = (
    _AUTO,
    _SIMPLE,
    _SIGMOID,
    _SHARP,
    _GRAPH_TERM,
    _MLP,
    *_FITTED,
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

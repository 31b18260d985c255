"""Systems that use features only: a perceptron, and scikit-learn's estimators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from difformer.settings import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Options, option, whole
from difformer.systems.system import CLASSES, FLOAT, Perceptron, System, linear

_MLP = System(
    name="mlp",
    title="MLP",
    model="difformer.systems.perceptrons.MLP",
    config=Perceptron,
    memory=linear,
    graph="none",
    defaults={"input_dropout": 0.0},
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={
        "hidden_channels": (16, 64, 256),
        "dropout": (0.2, 0.5),
        "standardise": (False, True),
    },
)


def _fitted(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Features in double precision, scaled, and the library's own copy; predictions."""
    return 2 * FLOAT * n * (4 * p + 3 * c)


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
        name=name,
        title=title,
        model=f"difformer.systems.fitted.{model}",
        config=config,
        memory=_fitted,
        graph="none",
        tasks=tasks,
        numbers=numbers,
        space=space,
    )


@dataclass(frozen=True, kw_only=True)
class Scaled(Options):
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
class ForestConfig(Options):
    """Random forest."""

    trees: int = option(300, "number of trees", COUNT)
    max_features: str = option("sqrt", "columns considered at each split", ("sqrt", "log2"))
    min_samples_leaf: int = option(1, "least rows in a leaf", COUNT)


@dataclass(frozen=True, kw_only=True)
class BoostingConfig(Options):
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


_C = (0.01, 0.1, 1.0, 10.0, 100.0)
SYSTEMS = (
    _MLP,
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

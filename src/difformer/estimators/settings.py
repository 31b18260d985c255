"""The parameters of the estimators: name, default, meaning and rule of each. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from difformer.options import Options, check_count, number, option, unit_interval, whole
from difformer.train.settings import PICKS

__all__ = ["FitSettings"]


def _count(name: str, value: Any) -> None:
    check_count(name, value.item() if hasattr(value, "item") else value)  # NumPy's integers too


@dataclass(kw_only=True, eq=False, repr=False)
class FitSettings:
    """What the classifier and the regressor have in common.

    Not frozen, and checked by `check_settings` in `fit`, as scikit-learn wants it: making an
    estimator only stores its parameters.
    """

    graph: str | None = option(
        None, 'none, "knn", or "auto": the one of the two that validates better'
    )
    n_neighbors: int = option(7, 'neighbours of each row for graph="knn"', _count)
    metric: str = option(
        "auto",
        "of neighbours; auto: cosine for sparse rows, else euclidean",
        ("auto", "cosine", "euclidean"),
    )
    directed: bool = option(False, "keep the direction of a graph's edges")
    hidden_channels: int = option(64, "width of the states", whole(1))
    kernel: Any = option(
        None, 'a diffusivity; none: the recipe decides; "auto": simple or sigmoid by validation'
    )
    recipe: str = option(
        "auto", "form of the model; auto: an average of the forms that held-out labels favour"
    )
    options: Mapping[str, Any] | None = option(None, "model options that replace the recipe's")
    scale: bool = option(True, "standardise the columns of dense arrays")
    epochs: int = option(200, "the most epochs to train for", whole(1))
    lr: float = option(0.01, "learning rate", number(above_zero=True))
    weight_decay: float = option(5e-4, "L2 weight decay", number())
    consistency: float = option(0.0, "weight of the agreement of two dropout passes", number())
    early_stopping: bool = option(False, "hold out labelled rows to pick the epoch by")
    patience: int = option(50, "stop after this many epochs without a better validation", whole(1))
    pick_by: str = option("loss", "validation metric that picks the epoch", PICKS)
    validation_fraction: float = option(
        0.2, "share of the labelled rows that are held out", unit_interval(zero=False, one=False)
    )
    time_budget: float | None = option(
        None, 'recipe="auto": seconds after which no further form is tried', number(above_zero=True)
    )
    checkpoint: str | PathLike[str] | None = option(None, "folder to resume a killed fit from")
    random_state: Any = option(None, "a seed makes fits repeatable")
    device: str = option("auto", "cpu, cuda, ...; auto: cuda where there is one")
    verbose: int = option(0, "1 shows a progress bar")

    def check_settings(self) -> None:
        """ValueError that names the first parameter that breaks its rule."""
        settings: Any = self
        Options.__post_init__(settings)

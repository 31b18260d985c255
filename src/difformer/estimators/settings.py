"""The parameters of the estimators: name, default, meaning and rule of each. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from difformer.nn.config import DIFFormerConfig
from difformer.nn.recipes import RECIPES
from difformer.options import COUNT, POSITIVE, RATE, SHARE, Options, check_count, like, option
from difformer.train.settings import TrainSettings

__all__ = ["FitSettings", "ForecastSettings"]


def _count(name: str, value: Any) -> None:
    check_count(name, value.item() if hasattr(value, "item") else value)  # NumPy's integers too


def _model_options(name: str, value: Any) -> None:
    known = [key for key in DIFFormerConfig.names() if key != "kernel"]
    for key in value:
        if key not in known:
            raise ValueError(f"{name} must name model options ({', '.join(known)}), got {key!r}")


class Parameters:
    """Parameters that are checked by `check_settings` in `fit`, as scikit-learn wants it.

    Making an estimator only stores them, so the dataclasses are not frozen.
    """

    def check_settings(self) -> None:
        """ValueError that names the first parameter that breaks its rule."""
        settings: Any = self
        Options.__post_init__(settings)


@dataclass(kw_only=True, eq=False, repr=False)
class FitSettings(Parameters):
    """What the classifier and the regressor have in common."""

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
    hidden_channels: int = option(64, "width of the states", COUNT)
    kernel: Any = option(
        None, 'a diffusivity; none: the recipe decides; "auto": simple or sigmoid by validation'
    )
    recipe: str = option(
        "auto",
        "form of the model; auto: an average of the forms that held-out labels favour",
        ("auto", *RECIPES),
    )
    options: Mapping[str, Any] | None = option(
        None, "model options that replace the recipe's", _model_options
    )
    scale: bool = option(True, "standardise the columns of dense arrays")
    epochs: int = like(TrainSettings, "epochs", 200)
    lr: float = like(TrainSettings, "lr", 0.01)
    weight_decay: float = like(TrainSettings, "weight_decay", 5e-4)
    consistency: float = like(TrainSettings, "consistency", 0.0)
    early_stopping: bool = option(False, "hold out labelled rows to pick the epoch by")
    patience: int | None = like(TrainSettings, "patience", 50)
    pick_by: str | None = like(TrainSettings, "pick_by", "loss")
    validation_fraction: float = option(0.2, "share of the labelled rows that are held out", SHARE)
    time_budget: float | None = option(
        None, 'recipe="auto": seconds after which no further form is tried', POSITIVE
    )
    checkpoint: str | PathLike[str] | None = option(None, "folder to resume a killed fit from")
    random_state: Any = option(None, "a seed makes fits repeatable")
    device: str = like(TrainSettings, "device", "auto")
    verbose: int = option(0, "1 shows a progress bar")


@dataclass(kw_only=True, eq=False, repr=False)
class ForecastSettings(Parameters):
    """What the forecaster, and a run on a series, are told."""

    lags: int = option(4, "past values of a node that are its features", _count)
    horizon: int | None = option(
        None,
        "steps that are learned at once; later ones come from them; none: as many as are asked for",
        _count,
    )
    hidden_channels: int = like(FitSettings, "hidden_channels", 16)
    kernel: Any = like(DIFFormerConfig, "kernel", "simple")
    recipe: str = option("forecast", "form of the model", tuple(RECIPES))
    options: Mapping[str, Any] | None = like(FitSettings, "options", None)
    transform: str = option(
        "auto",
        "of values before scaling; auto: for counts by validation",
        ("auto", "none", "sqrt", "log"),
    )
    level: str = option(
        "auto",
        "tell values from the node's mean, or from its last one as drifting series need; auto: by "
        "validation",
        ("auto", "mean", "last"),
    )
    calendar: str = option(
        "auto",
        "the step's place in day, week and year as features; auto: by validation",
        ("auto", "none", "cycles"),
    )
    linear: str = option(
        "auto",
        "mix the forecast with linear ones, such as an autoregression; auto: by validation",
        ("auto", "none"),
    )
    epochs: int = like(TrainSettings, "epochs", 300)
    lr: float = like(TrainSettings, "lr", 0.01)
    weight_decay: float = like(TrainSettings, "weight_decay", 0.0)
    patience: int | None = like(TrainSettings, "patience", 30)
    validation_fraction: float = option(0.2, "share of the latest steps that picks the epoch", RATE)
    device: str = like(TrainSettings, "device", "auto")

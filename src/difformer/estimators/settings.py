"""The parameters of the estimators, each with its default, its help and its rule. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

from difformer.nn.config import RECIPES, DIFFormerConfig
from difformer.settings import (
    COUNT,
    POSITIVE,
    RATE,
    SHARE,
    Options,
    like,
    option,
)
from difformer.train.settings import TrainSettings

ONE_FORM = (
    "lr",
    "weight_decay",
    "consistency",
    "early_stopping",
    "patience",
    "pick_by",
    "validation_fraction",
)
"""The parameters of a single form: recipe "auto" sets them for each of its forms."""


def _model_options(name: str, value: Any) -> None:
    known = [key for key in DIFFormerConfig.names() if key != "kernel"]
    for key in value:
        if key not in known:
            raise ValueError(f"{name} must name model options ({', '.join(known)}), got {key!r}")


class Parameters:
    """Parameters that `fit` checks, as scikit-learn requires.

    The constructor only stores them, and they can be set later: the dataclasses are not frozen.
    """

    def check_settings(self) -> None:
        """Raise a ValueError that names the first parameter that breaks its rule."""
        settings: Any = self
        Options.__post_init__(settings)

    def loop(self, **own: Any) -> TrainSettings:
        """The settings of the training loop that these parameters are, and some of its own."""
        shared = {name for name in TrainSettings.names() if hasattr(self, name)}
        return TrainSettings(**{**{name: getattr(self, name) for name in shared}, **own})


@dataclass(kw_only=True, eq=False, repr=False)
class FitSettings(Parameters):
    """The parameters that the classifier and the regressor share."""

    graph: str | None = option(
        None, 'none, "knn", or "auto": the one of the two that validates better'
    )
    n_neighbors: int = option(7, 'neighbours of each row for graph="knn"', COUNT)
    metric: str = option(
        "auto",
        "metric of the neighbours; auto: cosine for sparse rows, else euclidean",
        ("auto", "cosine", "euclidean"),
    )
    directed: bool = option(False, "keep the direction of a graph's edges")
    hidden_channels: int = option(64, "width of the states", COUNT)
    kernel: Any = option(
        None, 'a diffusivity; none: the recipe decides; "auto": simple or sigmoid by validation'
    )
    recipe: str = option(
        "auto",
        "form of the model; auto: an average of the forms that do best on held-out labels",
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

    @property
    def searches(self) -> bool:
        """Whether the form of the model is searched for: recipe="auto" with nothing else set."""
        return self.recipe == "auto" and self.kernel is None and not self.options

    @property
    def unused(self) -> dict[str, str]:
        """The parameters that the recipe does not use, each with what does."""
        if self.searches:
            named = ", ".join(RECIPES)
            reason = f'recipe "auto" sets it for each form, recipes {named} (or a kernel) use it'
            return dict.fromkeys(ONE_FORM, reason)
        of_early = {} if self.early_stopping else {"patience": "only early_stopping=True uses it"}
        return {
            "time_budget": 'only recipe "auto", without kernel and options, uses it',
            **of_early,
        }

    def check_settings(self) -> None:
        """Also raise a ValueError for a parameter that is set, but that the recipe does not use."""
        super().check_settings()
        self.refuse(self.unused)

    def refuse(self, unused: Mapping[str, str]) -> None:
        """A ValueError if one of these is not at its default; it says who uses it."""
        for name, reason in unused.items():
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) != default:
                raise ValueError(f"{name} must be left at {default!r}: {reason}")


@dataclass(kw_only=True, eq=False, repr=False)
class ForecastSettings(Parameters):
    """The parameters that the forecaster and a run on a series share."""

    lags: int = option(4, "past values of a node that are its features", COUNT)
    horizon: int | None = option(
        None,
        "steps that are learned at once; later ones come from them; none: as many as are asked for",
        COUNT,
    )
    hidden_channels: int = like(FitSettings, "hidden_channels", 16)
    kernel: Any = like(DIFFormerConfig, "kernel", "simple")
    recipe: str = option("forecast", "form of the model", tuple(RECIPES))
    options: Mapping[str, Any] | None = like(FitSettings, "options", None)
    transform: str = option(
        "auto",
        "transform of values before scaling; auto: by validation for counts",
        ("auto", "none", "sqrt", "log"),
    )
    level: str = option(
        "auto",
        "subtract the node's mean from values, or its last value for series that drift; auto: by "
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

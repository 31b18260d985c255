"""scikit-learn estimators: three lines from a table with few labels to predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.estimators.classifier import DIFFormerClassifier
    from difformer.estimators.folds import LabelledKFold
    from difformer.estimators.forecaster import DIFFormerForecaster
    from difformer.estimators.regressor import DIFFormerRegressor

__all__ = ["DIFFormerClassifier", "DIFFormerForecaster", "DIFFormerRegressor", "LabelledKFold"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "classifier": ("DIFFormerClassifier",),
        "folds": ("LabelledKFold",),
        "forecaster": ("DIFFormerForecaster",),
        "regressor": ("DIFFormerRegressor",),
    },
)

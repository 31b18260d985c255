"""scikit-learn estimators: three lines from a table with few labels to predictions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC: dict[str, str] = {
    "DIFFormerClassifier": "difformer.estimators.classifier",
    "DIFFormerForecaster": "difformer.estimators.forecaster",
    "DIFFormerRegressor": "difformer.estimators.regressor",
}

if TYPE_CHECKING:
    from difformer.estimators.classifier import DIFFormerClassifier
    from difformer.estimators.forecaster import DIFFormerForecaster
    from difformer.estimators.regressor import DIFFormerRegressor

__all__ = ["DIFFormerClassifier", "DIFFormerForecaster", "DIFFormerRegressor"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'difformer.estimators' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value

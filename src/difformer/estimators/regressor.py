"""DIFFormerRegressor: numbers for all rows from the known ones of a few."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.table.scales import standardise
from difformer.estimators.base import BaseDIFFormer
from difformer.estimators.labels import dataset_targets, read_targets
from difformer.estimators.outcome import UNKNOWN, Outcome

Array = NDArray[Any]


class DIFFormerRegressor(RegressorMixin, BaseDIFFormer):
    """Predict one or several numbers per row; NaN or None in y marks an unlabelled row.

    -1 is a number like any other, and not the sign of an unlabelled row that it is for classes.
    The targets are standardised for training and scaled back. The parameters, and how graphs and
    new rows are treated, are those of `DIFFormerClassifier`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = X[:, 0] - X[:, 1]
    >>> y[100:] = np.nan
    >>> model = DIFFormerRegressor(epochs=100, random_state=0).fit(X, y)
    >>> bool(np.corrcoef(model.transduction_[100:], (X[:, 0] - X[:, 1])[100:])[0, 1] > 0.8)
    True

    Attributes:
        transduction_: the prediction for every row of fit, (n,) or (n, t).
    """

    def predict(self, X: Any, graph: Any = None, *, ids: Any = None) -> Array:
        """Numbers (m,) or (m, t); that of a row does not depend on the other rows of X."""
        check_is_fitted(self, "frozen_")
        return self._scaled_back(self._answers(X, graph, ids, self._outputs))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the labelled rows of y; the mean over targets, each of the rows that have it."""
        predicted, targets = self.predict(X), read_targets(y)
        check_consistent_length(predicted, targets, sample_weight)
        targets = targets.reshape(len(targets), -1)
        weight = np.ones(len(targets)) if sample_weight is None else np.asarray(sample_weight)
        columns = zip(targets.T, predicted.reshape(targets.shape).T, strict=True)
        parts = [(true, found, ~np.isnan(true)) for true, found in columns]
        each = [r2_score(t[k], f[k], sample_weight=weight[k]) for t, f, k in parts if k.any()]
        return float(np.mean(each))

    def predict_interval(
        self, X: Any, graph: Any = None, *, ids: Any = None, level: float = 0.9
    ) -> Array:
        """Intervals (m, 2), or (m, t, 2), that contain the true value for a share `level` of rows.

        Each is the prediction ± the conformal quantile of the held-out errors; infinite with too
        few held-out rows: `level` needs level / (1 − level) of them.
        """
        self._quantiles(level)  # fails before the work
        return self.interval_around(self.predict(X, graph, ids=ids), level)

    def interval_around(self, predicted: Array, level: float = 0.9) -> Array:
        """The intervals of `predict_interval` for known predictions (m,) or (m, t)."""
        half = self._quantiles(level) * self.target_scale_
        half = half[0] if predicted.ndim == 1 else half
        return np.stack([predicted - half, predicted + half], axis=-1)

    @property
    def target_scale_(self) -> Array:
        """One standardised unit of each target in the target's own units, (t,)."""
        return self._scale

    def _read(self, X: Any, y: Any) -> tuple[Tensor, None]:
        targets = dataset_targets(X) if isinstance(X, Dataset) and y is None else read_targets(y)
        table = targets.reshape(len(targets), -1)
        known = np.isfinite(table)
        _warn_of_marks(table, known)
        for j in np.flatnonzero(~known.any(0)):
            raise ValueError(f"column {j} of y must have at least one labelled row, it has none")
        self._flat = targets.ndim == 1
        self._mean, self._scale, _, _ = standardise(table, clip=False)
        return torch.from_numpy((table - self._mean) / self._scale).float(), None

    def _scores(self, outputs: Array, y: Array) -> Array:
        errors = np.abs(outputs - y.reshape(outputs.shape))
        return np.where(np.isnan(errors), UNKNOWN, errors)

    @property
    def _outcome(self) -> Outcome:
        return Outcome("regression")

    def _keep(self, output: Array) -> None:
        self.transduction_ = self._scaled_back(output)

    def _scaled_back(self, output: Array) -> Array:
        values = output * self._scale + self._mean
        return values[:, 0] if self._flat else values

    def _described(self) -> dict[str, Any]:
        return {"flat": self._flat}

    def _restore(self, described: dict[str, Any]) -> None:
        self._flat = described["flat"]
        if not isinstance(self._flat, bool):
            raise ValueError("its targets are not described")


def _warn_of_marks(table: Array, known: Array) -> None:
    """Warn if -1, which marks unlabelled rows among classes, is the value of most rows.

    Two values, such as -1 and 1, are no sign of that.
    """
    share = float((table[known] == -1).mean())
    if share > 0.5 and len(np.unique(table[known])) > 2:
        warnings.warn(
            f"y has -1 in {100 * share:.0f} % of the rows; for a regressor -1 is a value, use NaN "
            "for unlabelled rows",
            stacklevel=2,
        )

"""DIFFormerRegressor: numbers for every row from a few known ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.scales import standardise
from difformer.errors import ModelFileError
from difformer.estimators.base import BaseDIFFormer, dataset_graph
from difformer.estimators.conformal import IntervalMixin
from difformer.estimators.files import SaveMixin
from difformer.estimators.labels import dataset_targets, read_targets
from difformer.estimators.problem import Outcome, Problem
from difformer.train.objective import objective_for

__all__ = ["DIFFormerRegressor"]

Array = NDArray[Any]


class DIFFormerRegressor(SaveMixin, IntervalMixin, RegressorMixin, BaseDIFFormer):
    """Predict one or several numbers per row; NaN or None in y marks an unlabelled row.

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

    def fit(
        self,
        X: Any,
        y: Any = None,
        graph: Any = None,
        *,
        sample_weight: Any = None,
        validation: Any = None,
        ids: Any = None,
    ) -> DIFFormerRegressor:
        """Train on the rows whose y is known, with all rows of X in sight; see the classifier."""
        rows = self._learn(X, ids)
        if isinstance(X, Dataset):
            graph = dataset_graph(X) if graph is None else graph
        targets = dataset_targets(X) if isinstance(X, Dataset) and y is None else read_targets(y)
        if len(targets) != len(rows):
            raise ValueError(
                f"y must have a value for each of the {len(rows)} rows of X, got {len(targets)}"
            )
        table = targets.reshape(len(targets), -1)
        known = np.isfinite(table)
        for j in np.flatnonzero(~known.any(0)):
            raise ValueError(f"column {j} of y must have at least one labelled row, it has none")
        self._flat = targets.ndim == 1
        self._mean, self._scale, _, _ = standardise(table, clip=False)
        scaled = torch.from_numpy((table - self._mean) / self._scale).float()
        strata = np.where(known.any(1), 0, -1)
        objective = objective_for("regression")
        problem = Problem(scaled, self._outcome, objective, table.shape[1], strata)
        output = self._fit(rows, problem, graph, sample_weight, validation)
        self._keep(output.numpy())
        return self

    def predict(self, X: Any, graph: Any = None, *, ids: Any = None) -> Array:
        """Numbers (m,) or (m, t) through the frozen context: none depends on the others in X."""
        check_is_fitted(self, "frozen_")
        return self._scaled_back(self._answers(X, graph, ids, self._outputs))

    @property
    def _outcome(self) -> Outcome:
        return Outcome("regression")

    def _keep(self, output: Array) -> None:
        self._outputs = output
        self.transduction_ = self._scaled_back(output)

    def _scaled_back(self, output: Array) -> Array:
        values = output * self._scale + self._mean
        return values[:, 0] if self._flat else values

    def _packed(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {
            "outputs": torch.from_numpy(self._outputs),
            "target_mean": torch.from_numpy(self._mean),
            "target_scale": torch.from_numpy(self._scale),
        }
        return tensors, {"flat": self._flat}

    def _unpacked(self, tensors: dict[str, Tensor], rest: dict[str, Any], where: str) -> None:
        if not isinstance(rest.get("flat"), bool):
            raise ModelFileError(f"{where}: its targets are not described")
        self._flat = rest["flat"]
        self._mean, self._scale = tensors["target_mean"].numpy(), tensors["target_scale"].numpy()
        self._keep(tensors["outputs"].numpy())

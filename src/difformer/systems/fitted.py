"""What is fitted without gradients: scikit-learn's estimators, and forecasts without a network."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from difformer.data.dataset import Batch, scipy_csr
from difformer.data.table.scales import standardise
from difformer.nn.inputs import Remembered

LEAST = 1e-6  # the smallest probability whose logarithm is taken


class Fitted(nn.Module):
    """An estimator that a library fits, without gradients; the graph is ignored.

    `observe` takes the rows and the training labels. The first prediction fits the estimator, so
    that the time of a run includes it. Features are scaled by all rows, labelled or not (`scale`).

    Shapes: x (n, p) dense or sparse CSR -> (n, c) logarithms of probabilities, or (n, t) numbers.
    """

    spreads: ClassVar[bool] = False  # it is also given the unlabelled rows, with the label -1
    densifies: ClassVar[bool] = False  # it is given dense features

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.out_channels, self.config = out_channels, config
        self.seed = int(torch.randint(2**31 - 1, ()))
        self._batch: Batch | None = None
        self._output: Remembered[Tensor] = Remembered()
        self._fitted: Any = None
        self._units: Any = (0.0, 1.0)  # means and deviations of targets that are numbers
        self._scaled: Callable[[Any], Any] = lambda rows: rows

    def estimator(self, classes: bool, rows: int) -> Any:
        """A new estimator for this many rows: the labelled ones, or all if it spreads."""
        raise NotImplementedError

    def observe(self, batch: Batch) -> None:
        """Store the rows and the training labels; an earlier fit is discarded."""
        self._batch, self._fitted, self._output = batch, None, Remembered()

    def forward(self, x: Tensor, *_: object) -> Tensor:
        if self._batch is None:
            raise ValueError("observe(batch) must be called with the training labels first")
        batch = self._batch
        return self._output.get((x,), None, lambda: self._predict(x, batch))

    def _predict(self, x: Tensor, batch: Batch) -> Tensor:
        with warnings.catch_warnings():
            from sklearn.exceptions import ConvergenceWarning

            warnings.simplefilter("ignore", ConvergenceWarning)
            self._fitted = self._fit(batch) if self._fitted is None else self._fitted
        found = np.asarray(self._answer(x, batch), np.float64)
        if batch.y.is_floating_point():
            return torch.from_numpy(found.reshape(-1, self.out_channels)).to(batch.y)
        output = np.full((x.shape[0], self.out_channels), LEAST)
        output[:, self._fitted.classes_] = np.clip(found, LEAST, None)
        return torch.from_numpy(np.log(output).astype(np.float32)).to(x.device)

    def _answer(self, x: Tensor, batch: Batch) -> Any:
        """The shares of the estimator's classes, or numbers, for the rows of x."""
        model = self._fitted
        if self.spreads and x is batch.x and hasattr(model, "label_distributions_"):
            return model.label_distributions_
        rows = self._scaled(self._features(x))
        if not batch.y.is_floating_point():
            return model.predict_proba(rows)
        found = np.asarray(model.predict(rows), np.float64)
        return found.reshape(-1, self.out_channels) * self._units[1] + self._units[0]

    def _fit(self, batch: Batch) -> Any:
        y = batch.y.detach().cpu().numpy()
        classes = not batch.y.is_floating_point()
        known = (y >= 0) if classes else ~np.isnan(y).any(1)
        rows = np.intersect1d(batch.rows.cpu().numpy(), np.flatnonzero(known))
        features = self._features(batch.x)
        self._scaled = fit_scale(getattr(self.config, "scale", "none"), features)
        features = self._scaled(features)
        model = self.estimator(classes, len(y) if self.spreads else len(rows))
        if self.spreads:
            target = np.full(len(y), -1)
            target[rows] = y[rows]
            return model.fit(features, target)
        target = y[rows]
        if not classes:
            # Sums of squares, as in a forest, lose the digits of numbers far from zero.
            self._units = standardise(target.astype(np.float64), clip=False)[:2]
            target = (target - self._units[0]) / self._units[1]
            target = target if target.shape[1] > 1 else target[:, 0]
        return model.fit(features[rows], target)

    def _features(self, x: Tensor) -> Any:
        """x as a NumPy array or SciPy matrix, in double precision."""
        if x.layout == torch.strided or self.densifies:
            return (x if x.layout == torch.strided else x.to_dense()).cpu().double().numpy()
        return scipy_csr(x).astype(np.float64)


def fit_scale(scale: str, features: Any) -> Callable[[Any], Any]:
    """The scaling of that name, fitted to these rows (n, p), dense or SciPy CSR.

    "standard" gives columns mean 0 (sparse ones keep their mean) and deviation 1; "unit" gives rows
    length √p, which standardised rows have on average; "auto" is "unit" for sparse features, which
    are words, and "standard" otherwise.
    """
    from scipy.sparse import issparse
    from sklearn.preprocessing import StandardScaler, normalize

    sparse = issparse(features)
    if scale == "auto":
        scale = "unit" if sparse else "standard"
    if scale == "unit":
        return lambda rows: normalize(rows) * rows.shape[1] ** 0.5
    if scale == "standard":
        return StandardScaler(with_mean=not sparse).fit(features).transform
    return lambda rows: rows


class Logistic(Fitted):
    """Logistic regression, or ridge regression for numbers: O(n p c) per iteration."""

    def estimator(self, classes: bool, rows: int) -> Any:
        from sklearn.linear_model import LogisticRegression, Ridge

        if not classes:
            return Ridge(alpha=1 / self.config.C)
        return LogisticRegression(C=self.config.C, max_iter=self.config.iterations)


class Forest(Fitted):
    """Random forest (Breiman 2001): O(trees · √p · n log² n)."""

    def estimator(self, classes: bool, rows: int) -> Any:
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        kind: Any = RandomForestClassifier if classes else RandomForestRegressor
        return kind(
            self.config.trees,
            max_features=self.config.max_features,
            min_samples_leaf=self.config.min_samples_leaf,
            random_state=self.seed,
            n_jobs=torch.get_num_threads(),
        )


class Boosting(Fitted):
    """Gradient boosting on histograms, O(iterations · n p); sparse features are made dense.

    It stops early only above 10,000 labelled rows: fewer rows are all needed for training.
    """

    densifies = True

    def estimator(self, classes: bool, rows: int) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.multioutput import MultiOutputRegressor

        kind: Any = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
        model = kind(
            learning_rate=self.config.learning_rate,
            max_iter=self.config.iterations,
            max_leaf_nodes=self.config.max_leaf_nodes,
            min_samples_leaf=self.config.min_samples_leaf,
            l2_regularization=self.config.l2,
            early_stopping=rows > 10_000,
            random_state=self.seed,
        )
        several = not classes and self.out_channels > 1
        return MultiOutputRegressor(model) if several else model


class NearestRows(Fitted):
    """The labels of the k nearest labelled rows, averaged: O(n · labelled · p)."""

    def estimator(self, classes: bool, rows: int) -> Any:
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

        kind, config = KNeighborsClassifier if classes else KNeighborsRegressor, self.config
        return kind(min(config.k, rows), weights=config.weights, metric=config.metric)


class LabelSpreading(Fitted):
    """Labels spread over all rows' neighbours (Zhou et al. 2004): O(n k c) per step."""

    spreads = True

    def estimator(self, classes: bool, rows: int) -> Any:
        from sklearn.semi_supervised import LabelSpreading

        k = min(self.config.k, rows)
        return LabelSpreading(kernel="knn", n_neighbors=k, alpha=self.config.alpha, max_iter=200)


class SelfTrained(Logistic):
    """Logistic regression that uses its own confident predictions as labels, round by round."""

    spreads = True

    def estimator(self, classes: bool, rows: int) -> Any:
        from sklearn.semi_supervised import SelfTrainingClassifier

        base, threshold = super().estimator(classes, rows), self.config.threshold
        return SelfTrainingClassifier(base, threshold=threshold, max_iter=20)


class Lags(nn.Module):
    """Predict the newest lag of every row, or the mean of them. O(n lags). (n, lags) -> (n, 1)."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor, *_: object) -> Tensor:
        return x.mean(1, keepdim=True) if self.mean else x[:, -1:]


class Autoregression(nn.Module):
    """Least squares on the lags, one line per node or one for all, solved once in `observe`.

        w_i = argmin Σ_t (y_it − x_it·w − b)² + ridge ‖w‖²,   b without a penalty

    Cost: O(t n lags²). The rows of a batch are nodes in order, once for each of its segments.

    Shapes: x (t·n, lags) -> (t·n, 1); weight (n, lags + 1), or (1, lags + 1) for all nodes.
    """

    weight: Tensor

    def __init__(self, lags: int, *, per_node: bool, ridge: float) -> None:
        super().__init__()
        self.lags, self.per_node, self.ridge = lags, per_node, ridge
        self.register_buffer("weight", torch.zeros(1, lags + 1))

    def observe(self, batch: Batch) -> None:
        n = 1
        if self.per_node and batch.segments is not None:
            n = int((batch.segments == batch.segments[0]).sum())
        x, y = self._by_node(batch.x, n).double(), batch.y.reshape(-1, n).T.double()  # (n, t)
        known = (~y.isnan()).to(x.dtype).unsqueeze(-1)
        penalty = self.ridge * torch.eye(self.lags + 1, dtype=x.dtype)
        penalty[-1, -1] = 0.0
        gram = (known * x).mT @ x + penalty
        moment = x.mT @ y.nan_to_num(0.0).unsqueeze(-1)
        # The pseudo-inverse: a node with fewer steps than lags gets its shortest solution.
        self.weight = (torch.linalg.pinv(gram, hermitian=True) @ moment).squeeze(-1).to(batch.x)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        n = self.weight.shape[0]
        out = (self._by_node(x, n) * self.weight.unsqueeze(1)).sum(-1)  # (n, t)
        return out.T.reshape(-1, 1)

    def _by_node(self, x: Tensor, n: int) -> Tensor:
        """(t·n, lags) -> (n, t, lags + 1), a one at the end for the constant."""
        stacked = x.reshape(-1, n, self.lags).transpose(0, 1)
        return torch.cat([stacked, stacked.new_ones(*stacked.shape[:2], 1)], dim=-1)


def forecast(in_channels: int, out_channels: int, config: Any) -> nn.Module:
    """The forecast of that rule."""
    if out_channels != 1:
        raise ValueError(f"a naive forecast has one output, got {out_channels}")
    if config.rule in ("last", "mean"):
        return Lags(mean=config.rule == "mean")
    return Autoregression(in_channels, per_node=config.rule == "node", ridge=config.ridge)

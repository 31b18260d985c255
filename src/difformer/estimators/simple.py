"""Linear autoregression: the forecast that a network has to be better than, or is mixed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.snapshots import Edges

__all__ = ["Autoregression", "averaging", "neighbours_of", "share_of"]

Array = NDArray[Any]
Average = Callable[[Array], Array]

RIDGE = 1e-6  # of the least squares, relative to the mean square of the features


@dataclass(frozen=True, eq=False)
class Autoregression:
    """Least squares of each node on its own lags, and on its neighbours' mean lags.

    Args:
        weights: (n, features) of each node: its lags, its neighbours', one.
        reach: (2, n) the lowest and the highest forecast, so that none runs away over many steps:
            a range of the node's values below its lowest one (but 0 if none is below), and above
            its highest.
        average: of values (lags, n) that of each node's neighbours; None for none.
    """

    weights: Array
    reach: Array
    lags: int
    average: Average | None = None

    @classmethod
    def learn(
        cls, filled: Array, values: Array, lags: int, average: Average | None = None
    ) -> Autoregression:
        """From a series (T, n): features without missing values, targets maybe with some."""
        features = [_features(filled[t - lags : t], average) for t in range(lags, len(filled))]
        x, y = np.stack(features, axis=1), values[lags:]  # (n, T - lags, features)
        weights = np.zeros((len(x), x.shape[2]))
        for node, (own, target) in enumerate(zip(x, y.T, strict=True)):
            known = ~np.isnan(target)
            if known.any():
                gram = own[known].T @ own[known]
                floor = RIDGE * max(float(np.trace(gram)) / len(gram), 1e-12)
                ridge = floor * np.eye(len(gram))
                weights[node] = np.linalg.solve(gram + ridge, own[known].T @ target[known])
        low, high = filled.min(0), filled.max(0)
        least = np.where(low < 0, 2 * low - high, np.maximum(0.0, 2 * low - high))
        return cls(weights, np.stack([least, 2 * high - low]), lags, average)

    def forecast(self, past: Array, steps: int) -> Array:
        """The next steps (steps, n) of a series, later ones from earlier forecasts."""
        window = past[-self.lags :]
        for _ in range(steps):
            after = (_features(window[-self.lags :], self.average) * self.weights).sum(1)
            window = np.vstack([window, np.clip(after, *self.reach)])
        return window[self.lags :]

    def next(self, series: Array) -> Array:
        """One-step forecasts (T − lags, n): row t is for step t + lags, from the steps before."""
        ends = range(self.lags, len(series))
        return np.stack([self.forecast(series[:end], 1)[0] for end in ends])


def _features(window: Array, average: Average | None) -> Array:
    """(lags, n) to (n, features)."""
    near = [] if average is None else [average(window)]
    return np.vstack([window, *near, np.ones((1, window.shape[1]))]).T


def averaging(neighbours: Any) -> Average:
    """The average by a matrix (n, n) whose rows weigh each node's neighbours; None: all others."""
    if neighbours is not None:
        return lambda window: (neighbours @ window.T).T
    return lambda window: (window.sum(1, keepdims=True) - window) / max(1, window.shape[1] - 1)


def neighbours_of(edges: tuple[Edges, ...], n: int) -> Any:
    """(n, n) CSR whose rows are the weights of a node's neighbours, which sum to one (or zero)."""
    if not edges:
        return None
    (source, target), weight = edges[0][0].numpy(), edges[0][1]
    own = np.ones(len(source)) if weight is None else weight.double().numpy()
    apart = source != target
    near = sparse.csr_matrix((own[apart], (target[apart], source[apart])), (n, n))
    total = np.asarray(near.sum(1)).ravel()
    return sparse.diags(1 / np.where(total > 0, total, 1.0)) @ near


def share_of(linear: Array, other: Array, truth: Array) -> float:
    """Which share s of a mix s · linear + (1 − s) · other to take, by steps (T, n) of the truth.

    Of the shares 0, 0.1, ..., 1 whose mean squared error is within one standard error over steps
    of the least, the nearest to one half: plain averages of forecasts hold up better in later
    steps than shares that are fitted to a few.

    >>> truth = np.array([[1.0], [2.0], [3.0]])
    >>> share_of(truth + [[0.1], [-0.1], [0.1]], truth + 5, truth)
    1.0
    """
    shares = np.linspace(0.0, 1.0, 11)
    known = ~np.isnan(truth).all(1)
    if not known.any():
        return 0.0
    errors = [s * linear[known] + (1 - s) * other[known] - truth[known] for s in shares]
    losses = np.nanmean(np.square(errors), axis=2)  # (shares, steps)
    gap = losses - losses[losses.mean(1).argmin()]
    fine = shares[gap.mean(1) <= gap.std(1) / np.sqrt(gap.shape[1])]
    return float(fine[np.abs(fine - 0.5).argmin()])

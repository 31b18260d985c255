"""Simple forecasts: a network is compared with them, and mixed with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.snapshots import Edges
from difformer.estimators.nodes import reach_of, steps_before

__all__ = ["Autoregression", "Forecast", "averaging", "neighbours_of", "simple_forecasts"]

Array = NDArray[Any]
Average = Callable[[Array], Array]
Forecast = Callable[[Array, Array, int], Array]
"""From a series (T, n) without missing values, origins (o,) and a number of steps: (o, steps, n).

A forecast uses only the steps before its origin.
"""

RIDGE = 1e-6  # of the least squares, relative to the mean square of the features


def simple_forecasts(
    filled: Array, values: Array, lags: int, *, season: int | None = None, neighbours: Any = None
) -> dict[str, Forecast]:
    """Every simple forecast by name; those with weights learn them from this series (T, n).

    Args:
        filled: the values, with missing ones filled in.
        season: steps of a season; None if unknown.
        neighbours: (n, n), may be sparse: row i holds the weights of node i's neighbours; None for
            the mean of all other nodes.
    """
    found: dict[str, Forecast] = {"last value": lambda s, o, h: _repeated(s[o - 1], h)}
    if season is not None and season < len(values):
        found["seasonal naive"] = _seasonal(season)
    found["mean of lags"] = lambda s, o, h: _repeated(steps_before(s, o, lags).mean(1), h)
    found["AR"] = Autoregression.learn(filled, values, lags).forecast
    if values.shape[1] > 1:
        average = averaging(neighbours)
        found["AR with neighbours"] = Autoregression.learn(filled, values, lags, average).forecast
    return found


@dataclass(frozen=True, eq=False)
class Autoregression:
    """Least squares of each node on its own lags, and on the mean lags of its neighbours.

    Args:
        weights: (n, features), one row per node: its lags, its neighbours' lags, a constant.
        reach: (2, n) the lowest and the highest forecast, see `reach_of`.
        average: from values (o, lags, n) to the mean over each node's neighbours; None to leave
            neighbours out.
    """

    weights: Array
    reach: Array
    lags: int
    average: Average | None = None

    @classmethod
    def learn(
        cls, filled: Array, values: Array, lags: int, average: Average | None = None
    ) -> Autoregression:
        """From a series (T, n): `filled` has no missing values, `values`, the targets, may."""
        x = _features(steps_before(filled, np.arange(lags, len(filled)), lags), average)
        weights = np.zeros((values.shape[1], x.shape[2]))
        for node, target in enumerate(values[lags:].T):
            known = ~np.isnan(target)
            if known.any():
                own = x[known, node]
                gram = own.T @ own
                floor = RIDGE * max(float(np.trace(gram)) / len(gram), 1e-12)
                ridge = floor * np.eye(len(gram))
                weights[node] = np.linalg.solve(gram + ridge, own.T @ target[known])
        return cls(weights, reach_of(filled), lags, average)

    def forecast(self, series: Array, origins: Array, steps: int) -> Array:
        """See `Forecast`; later steps are forecast from earlier forecasts."""
        window = steps_before(series, origins, self.lags)
        for _ in range(steps):
            after = (_features(window[:, -self.lags :], self.average) * self.weights).sum(2)
            window = np.concatenate([window, np.clip(after, *self.reach)[:, None]], axis=1)
        return window[:, self.lags :]


def _repeated(values: Array, steps: int) -> Array:
    return np.repeat(values[:, None], steps, axis=1)


def _seasonal(season: int) -> Forecast:
    """Repeat the last season; the last value where less than one season has passed."""

    def forecast(series: Array, origins: Array, steps: int) -> Array:
        place = origins[:, None] - season + np.arange(steps) % season
        early = (origins < season)[:, None]
        return series[np.where(early, origins[:, None] - 1, place)]

    return forecast


def _features(window: Array, average: Average | None) -> Array:
    """(o, lags, n) to (o, n, features)."""
    near = [] if average is None else [average(window)]
    return np.concatenate([window, *near, np.ones_like(window[:, :1])], axis=1).swapaxes(1, 2)


def averaging(neighbours: Any) -> Average:
    """The mean over neighbours by a matrix (n, n) of weights; over all other nodes if None."""
    if neighbours is not None:
        return lambda window: (neighbours @ window.reshape(-1, window.shape[-1]).T).T.reshape(
            window.shape
        )
    return lambda window: (window.sum(-1, keepdims=True) - window) / max(1, window.shape[-1] - 1)


def neighbours_of(edges: tuple[Edges, ...], n: int) -> Any:
    """(n, n) CSR: row i holds the weights of node i's neighbours, which sum to one (or zero)."""
    if not edges:
        return None
    (source, target), weight = edges[0][0].numpy(), edges[0][1]
    own = np.ones(len(source)) if weight is None else weight.double().numpy()
    apart = source != target
    near = sparse.csr_matrix((own[apart], (target[apart], source[apart])), (n, n))
    total = np.asarray(near.sum(1)).ravel()
    return sparse.diags(1 / np.where(total > 0, total, 1.0)) @ near

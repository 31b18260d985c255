"""Simple forecasts: a network is compared with them, and mixed with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.snapshots import Edges
from difformer.estimators.nodes import reach_of, steps_before

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


LONGEST_SEASON = 24  # steps; AutoETS cannot fit a longer one


def auto_forecasts(
    values: Array, origins: Array, horizon: int, season: int | None
) -> Mapping[str, Array]:
    """Forecasts (o, h, n) of a series (T, n) without missing values, by name.

    Each node's model is chosen and fitted once, on the steps before the first origin, and is then
    given the values before each origin. A node that is constant, or to which no model can be
    fitted, keeps its last value. AutoARIMA has no season: its search takes minutes with one.
    """
    from statsforecast.models import AutoARIMA, AutoETS

    cycle = season if season is not None and season <= LONGEST_SEASON else 1
    cycle = cycle if origins[0] >= 3 * cycle else 1
    makers: dict[str, Any] = {
        "AutoETS": lambda: AutoETS(season_length=cycle),
        "AutoARIMA": lambda: AutoARIMA(season_length=1),
    }
    found: dict[str, Array] = {}
    for name, make in makers.items():
        each = [_node(make, values[:, j], origins, horizon) for j in range(values.shape[1])]
        found[name] = np.stack(each, axis=-1)
    return found


def _node(make: Any, values: Array, origins: Array, horizon: int) -> Array:
    """(o, h) of one node."""
    last = np.repeat(values[origins - 1][:, None], horizon, axis=1)
    if np.ptp(values[: origins[0]]) == 0:
        return last
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make().fit(values[: origins[0]])
            ahead = [model.forward(y=values[:at], h=horizon)["mean"] for at in origins]
    except Exception:  # of any kind: one node that cannot be fitted must not end the backtest
        return last
    found = np.stack(ahead)
    return found if np.isfinite(found).all() else last

"""Simple forecasts of a series, and the share of each forecast of a mix by its errors so far."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import nnls

from difformer.data.dataset import Edges

Array = NDArray[Any]
Average = Callable[[Array], Array]
Forecast = Callable[[Array, Array, int], Array]
"""From a series (T, n) without missing values, origins (o,) and a number of steps: (o, steps, n).

A forecast uses only the steps before its origin.
"""

OURS = "DIFFormer"  # the name of the network's forecast beside the simple ones
RIDGE = 1e-6  # of the least squares, relative to the mean square of the features
Past = tuple[Array, float]
"""Errors so far: the weighted sum over steps of mean products (k, k), and that of the weights."""

# Steps after which an error counts half: a forecast that was wrong lately is likely to be wrong
# next. With few nodes, as many steps as have `VALUES` values.
STEPS, VALUES = 5, 40

TINY = 1e-12  # added to the errors, relative to their mean, so that exact forecasts are no problem
SUM = 1e3  # weight of the constraint that shares sum to one


def steps_before(values: Array, origins: Array, lags: int) -> Array:
    """The last `lags` values (T, n) before each origin (o,): (o, lags, n)."""
    return values[origins[:, None] + np.arange(-lags, 0)]


def steps_after(values: Array, origins: Array, ahead: int) -> Array:
    """The `ahead` values (T, n) from each origin (o,) on, nan after the last: (o, ahead, n)."""
    padded = np.vstack([values, np.full((ahead, values.shape[1]), np.nan)])
    return padded[origins[:, None] + np.arange(ahead)]


def known_mean(values: Array, axis: int | tuple[int, ...] = 0) -> Array:
    """The mean of the values that are not nan; 0 where all are."""
    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(axis) / np.maximum(known.sum(axis), 1)


def reach_of(values: Array) -> Array:
    """(2, n) the lowest and the highest forecast, so that none runs away over many steps.

    With the range of a node's values (T, n): one range below its lowest value, but not below 0 if
    no value is, and one range above its highest.
    """
    low, high = values.min(0), values.max(0)
    least = np.where(low < 0, 2 * low - high, np.maximum(0.0, 2 * low - high))
    return np.stack([least, 2 * high - low])


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

    def last(series: Array, origins: Array, steps: int) -> Array:
        return np.repeat(series[origins - 1][:, None], steps, axis=1)

    def mean(series: Array, origins: Array, steps: int) -> Array:
        return np.repeat(steps_before(series, origins, lags).mean(1)[:, None], steps, axis=1)

    found: dict[str, Forecast] = {"last value": last}
    if season is not None and season < len(values):

        def seasonal(series: Array, origins: Array, steps: int) -> Array:
            place = origins[:, None] - season + np.arange(steps) % season
            early = (origins < season)[:, None]  # before a season has been: the last value
            return series[np.where(early, origins[:, None] - 1, place)]

        found["seasonal naive"] = seasonal
    found["mean of lags"] = mean
    found["AR"] = autoregression(filled, values, lags)
    if values.shape[1] > 1:
        found["AR with neighbours"] = autoregression(filled, values, lags, averaging(neighbours))
    return found


def autoregression(
    filled: Array, values: Array, lags: int, average: Average | None = None
) -> Forecast:
    """Least squares of each node on its own lags, the mean lags of its neighbours, and a constant.

    Later steps are forecast from earlier forecasts, none beyond `reach_of`.

    Args:
        filled: (T, n) without missing values; the targets, `values`, may have some.
        average: from values (o, lags, n) to the mean over each node's neighbours; None to leave
            neighbours out.
    """
    x = _features(steps_before(filled, np.arange(lags, len(filled)), lags), average)
    weights, reach = np.zeros((values.shape[1], x.shape[2])), reach_of(filled)
    for node, target in enumerate(values[lags:].T):
        known = ~np.isnan(target)
        if known.any():
            own = x[known, node]
            gram = own.T @ own
            floor = RIDGE * max(float(np.trace(gram)) / len(gram), 1e-12)
            weights[node] = np.linalg.solve(gram + floor * np.eye(len(gram)), own.T @ target[known])

    def forecast(series: Array, origins: Array, steps: int) -> Array:
        window = steps_before(series, origins, lags)
        for _ in range(steps):
            after = (_features(window[:, -lags:], average) * weights).sum(2)
            window = np.concatenate([window, np.clip(after, *reach)[:, None]], axis=1)
        return window[:, lags:]

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


# --- the mix --------------------------------------------------------------------------------------


def pasts(errors: Array, past: Past | None = None) -> list[Past]:
    """The past (by default none), and that after each of o further steps, by errors (o, h, n, k).

    The origins are consecutive. After a step, the errors of all forecasts of it are known: those
    made one step ahead, two steps ahead, and so on to h. A step has half the weight of one that is
    `STEPS` later.
    """
    origins, ahead, nodes, count = errors.shape
    fade = 0.5 ** (1 / max(STEPS, VALUES / max(1, nodes)))
    products, steps = (np.zeros((count, count)), 0.0) if past is None else past
    found = [(products, steps)]
    for step in range(origins):
        known = np.concatenate([errors[step - j, j] for j in range(min(step + 1, ahead))])
        known = known[~np.isnan(known).any(-1)]
        products, steps = products * fade, steps * fade
        if len(known):
            products, steps = products + known.T @ known / len(known), steps + 1
        found.append((products, steps))
    return found


def shares_of(past: Past) -> Array:
    """Shares w (k,) of 0 or more that sum to one; equal shares if no error is known.

        w = argmin  w' (C + diag C / o) w

    C (k, k) is the weighted mean product of two forecasts' errors over nodes, steps ahead and past
    steps; o is the sum of the weights. The second term stands for one more step, at which the
    errors are of average size and independent: with few steps, shares depend less on how errors
    are correlated.

    >>> truth = np.arange(6.0).reshape(6, 1, 1)
    >>> errors = np.stack([0 * truth, 5 * (-1) ** truth], axis=-1)
    >>> bool(shares_of(pasts(errors)[-1])[0] > 0.8)
    True
    """
    products, steps = past
    count = len(products)
    usual = float(np.trace(products)) / count
    if not usual > 0:
        return np.full(count, 1 / count)
    own = np.diag(np.diag(products)) / steps + TINY * usual * np.eye(count)
    root = np.linalg.cholesky((products + own) / usual).T
    sides = np.vstack([root, np.full((1, count), SUM)]), np.append(np.zeros(count), SUM)
    shares = np.asarray(nnls(*sides)[0], float)
    return shares / shares.sum()

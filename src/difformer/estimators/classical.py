"""AutoETS and AutoARIMA of statsforecast (an optional extra), to compare with in a backtest."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["auto_forecasts"]

Array = NDArray[Any]

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

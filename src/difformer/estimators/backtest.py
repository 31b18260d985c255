"""Backtest: forecasts from rolling origins beside what came, and beside naive forecasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.series import fill

__all__ = ["Backtest"]

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Backtest:
    """o origins × h steps × n nodes, in the units of the series.

    Args:
        origins: (o,) the first step each forecast is for; it saw the steps before.
        predicted, actual: (o, h, n); nan in `actual` where the value is missing.
        past: what each origin saw.
    """

    origins: Array
    predicted: Array
    actual: Array
    past: tuple[Array, ...]
    lags: int

    def mse(self) -> float:
        """Mean squared error over all known values."""
        return float(np.nanmean(np.square(self.predicted - self.actual)))

    def mae(self) -> float:
        """Mean absolute error over all known values."""
        return float(np.nanmean(np.abs(self.predicted - self.actual)))

    def mse_by_step(self) -> Array:
        """The mean squared error of each step ahead, (h,)."""
        return np.nanmean(np.square(self.predicted - self.actual), axis=(0, 2))

    def last_value(self) -> Array:
        """The naive forecast that repeats the last known value, (o, h, n)."""
        return np.stack([np.repeat(filled[-1:], self._steps, 0) for filled in self._filled()])

    def mean_of_lags(self) -> Array:
        """The naive forecast that repeats the mean of the last `lags` values, (o, h, n)."""
        means = [filled[-self.lags :].mean(0, keepdims=True) for filled in self._filled()]
        return np.stack([np.repeat(mean, self._steps, 0) for mean in means])

    def summary(self) -> dict[str, float]:
        """Errors by forecast: "mse", "mae", and the mse of both naive ones."""

        def error(forecast: Array) -> float:
            return float(np.nanmean(np.square(forecast - self.actual)))

        return {
            "mse": self.mse(),
            "mae": self.mae(),
            "last_value_mse": error(self.last_value()),
            "mean_of_lags_mse": error(self.mean_of_lags()),
        }

    @property
    def _steps(self) -> int:
        return self.actual.shape[1]

    def _filled(self) -> list[Array]:
        return [fill(values, np.nanmean(values, axis=0)) for values in self.past]

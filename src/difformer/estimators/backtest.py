"""Backtest: forecasts from rolling origins beside what came, and beside simple forecasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.series import Series, fill
from difformer.data.snapshots import Edges
from difformer.data.times import season_of
from difformer.estimators.classical import auto_forecasts
from difformer.estimators.conformal import conformal_quantile
from difformer.estimators.simple import neighbours_of, simple_forecasts

__all__ = ["OURS", "Backtest", "run_backtest"]

Array = NDArray[Any]

OURS = "DIFFormer"
MOST_NODES = 60  # that statsforecast is run on: a node takes a second or so
ADAPT = 0.5  # of the logarithm of an interval's width, per share of values that fell outside


@dataclass(frozen=True, eq=False)
class Backtest:
    """o origins × h steps × n nodes, in the units of the series.

    Args:
        origins: (o,) the first step each forecast is for; it saw the steps before.
        predicted: (o, h, n).
        values: (T, n) the series, nan where missing.
        season: steps of a season, for the seasonal naive forecast; None where not known.
        neighbours: (n, n), maybe sparse, whose rows weigh a node's neighbours; None: all others.
    """

    origins: Array
    predicted: Array
    values: Array
    lags: int
    season: int | None = None
    neighbours: Any = None

    @cached_property
    def actual(self) -> Array:
        """(o, h, n), nan where the value is missing."""
        return np.stack([self.values[at : at + self.horizon] for at in self.origins])

    @property
    def horizon(self) -> int:
        return self.predicted.shape[1]

    @property
    def training(self) -> Array:
        """What every forecast saw: the steps before the first origin."""
        return self.values[: self.origins[0]]

    def mse(self) -> float:
        """Mean squared error over all known values."""
        return self.errors(OURS)["mse"]

    def mae(self) -> float:
        """Mean absolute error over all known values."""
        return self.errors(OURS)["mae"]

    def mse_by_step(self, name: str = OURS) -> Array:
        """The mean squared error of each step ahead, (h,)."""
        return np.nanmean(np.square(self._forecast(name) - self.actual), axis=(0, 2))

    def mae_by_node(self, name: str = OURS) -> Array:
        """The mean absolute error of each node, (n,); nan where nothing is known."""
        error = np.abs(self._forecast(name) - self.actual)
        known = ~np.isnan(error)
        count = known.sum((0, 1))
        total = np.where(known, error, 0.0).sum((0, 1))
        return np.where(count > 0, total / np.maximum(count, 1), np.nan)

    @cached_property
    def forecasts(self) -> Mapping[str, Array]:
        """Every method's forecasts (o, h, n); those that learn saw the same steps as ours."""
        seen = self.training
        simple = simple_forecasts(
            self._filled[: len(seen)],
            seen,
            self.lags,
            season=self.season,
            neighbours=self.neighbours,
        )
        each = {name: one(self._filled, self.origins, self.horizon) for name, one in simple.items()}
        return {OURS: self.predicted, **each}

    @cached_property
    def classical(self) -> Mapping[str, Array]:
        """AutoETS and AutoARIMA of statsforecast, fitted to the same steps as ours; see `reason`.

        Each node is fitted once and goes on from every origin without being fitted again.
        """
        if self.reason is not None:
            return {}
        return auto_forecasts(self._filled, self.origins, self.horizon, self.season)

    @property
    def reason(self) -> str | None:
        """Why there are no classical forecasts; None where there are."""
        if find_spec("statsforecast") is None:
            return "AutoETS and AutoARIMA need: pip install 'difformer[forecast]'"
        if self.values.shape[1] > MOST_NODES:
            return f"AutoETS and AutoARIMA are left out above {MOST_NODES} nodes"
        return None

    def errors(self, name: str) -> dict[str, float]:
        """mse, mae, and mase: the absolute error in those of the last value one step ahead."""
        error = self._forecast(name) - self.actual
        steps = np.abs(np.diff(self.training, axis=0))
        known = ~np.isnan(steps)
        usual = np.where(known, steps, 0.0).sum(0) / np.maximum(known.sum(0), 1)
        ratio = np.abs(error) / np.where(usual > 0, usual, np.nan)
        return {
            "mse": float(np.nanmean(np.square(error))),
            "mae": float(np.nanmean(np.abs(error))),
            "mase": float(np.nanmean(ratio)) if np.isfinite(ratio).any() else float("nan"),
        }

    def summary(self) -> dict[str, Any]:
        """Errors of our forecast, of the two oldest naive ones, and of every method by step.

        With the classical ones, which take longer.
        """
        each = {name: self.errors(name) for name in (*self.forecasts, *self.classical)}
        return {
            **each[OURS],
            "last_value_mse": each["last value"]["mse"],
            "mean_of_lags_mse": each["mean of lags"]["mse"],
            "left_out": self.reason,
            "methods": {
                name: {**errors, "mse_by_step": self.mse_by_step(name).tolist()}
                for name, errors in each.items()
            },
        }

    def _forecast(self, name: str) -> Array:
        return self.forecasts[name] if name in self.forecasts else self.classical[name]

    # --- intervals -------------------------------------------------------------------------

    def sizes(self) -> Array:
        """The usual error of each node (n,), in which the others' are measured; 0 where exact."""
        return np.nan_to_num(self.mae_by_node())

    def quantiles(self, level: float) -> Array:
        """For each step (h,) the conformal quantile of errors in units of `sizes`, adapted.

        The interval of the next forecast is ± quantile × size; infinite where there are too few
        errors. Errors that grow or shrink in time are no sample of those to come: `_rolled` says
        by what factor intervals from earlier errors have come to be too narrow or too wide.
        """
        return self._spread(self._errors, level)[0] * self._rolled(level)[1]

    def coverage(self, level: float) -> dict[str, float]:
        """The share of values within intervals from the errors known before them, and their loss.

        Over the later half of the origins; the pinball loss is that of the two ends. nan where
        there are fewer than two origins.
        """
        half = len(self.origins) // 2
        if not half:
            return {"coverage": float("nan"), "pinball": float("nan")}
        width = self._rolled(level)[0][half:]
        actual, middle = self.actual[half:], self.predicted[half:]
        known = ~np.isnan(actual)
        inside = np.abs(actual - middle) <= width
        share = (1 - level) / 2
        losses = [
            np.maximum(q * (actual - end), (q - 1) * (actual - end))
            for q, end in ((share, middle - width), (1 - share, middle + width))
        ]
        pinball = float(np.nanmean(losses)) if np.isfinite(width).all() else float("nan")
        return {"coverage": float(inside[known].mean()), "pinball": pinball}

    @cached_property
    def _errors(self) -> Array:
        return np.abs(self.predicted - self.actual)

    @staticmethod
    def _spread(errors: Array, level: float) -> tuple[Array, Array]:
        """Of errors (o, h, n), nan where unknown: the quantile of each step, each node's size."""
        known = ~np.isnan(errors)
        size = np.where(known, errors, 0.0).sum((0, 1)) / np.maximum(known.sum((0, 1)), 1)
        scores = errors / np.where(size > 0, size, np.nan)
        each = (step[~np.isnan(step)] for step in scores.swapaxes(0, 1))
        return np.array([conformal_quantile(found, level) for found in each]), size

    def _rolled(self, level: float) -> tuple[Array, float]:
        """Half the width of the interval at every origin (o, h, n), and the factor at the end.

        At an origin, only errors of steps before it are known. The factor is 1 at first; after
        each step its logarithm grows by ADAPT × (share of values outside − (1 − level)), so that
        in the long run the share outside is 1 − level however the series changes (adaptive
        conformal inference, with the width in the place of the level). O(o² h n).
        """
        if level not in self._rolls:
            self._rolls[level] = self._roll(level)
        return self._rolls[level]

    @cached_property
    def _rolls(self) -> dict[float, tuple[Array, float]]:
        return {}

    def _roll(self, level: float) -> tuple[Array, float]:
        step_of = self.origins[:, None] + np.arange(self.horizon)  # (o, h)
        width = np.full(self.predicted.shape, np.inf)
        moved = 0.0
        for now in range(self.origins[0], step_of[-1, -1] + 1):
            for at in np.flatnonzero(self.origins == now):
                seen = np.where((step_of[:at] < now)[..., None], self._errors[:at], np.nan)
                quantile, size = self._spread(seen, level)
                if np.isfinite(quantile).all():
                    width[at] = quantile[:, None] * size * np.exp(moved)
            told = (step_of == now)[..., None] & np.isfinite(width) & ~np.isnan(self._errors)
            if told.any():
                moved += ADAPT * (float((self._errors > width)[told].mean()) - (1 - level))
        return width, float(np.exp(moved))

    @cached_property
    def _filled(self) -> Array:
        """The series with each missing value as the last known one, by what was known before."""
        known = ~np.isnan(self.training)
        total = np.where(known, self.training, 0.0).sum(0)
        return fill(self.values, total / np.maximum(known.sum(0), 1))


def run_backtest(
    fit: Callable[[Series, tuple[Edges, ...]], Any],
    data: Series,
    edges: tuple[Edges, ...],
    *,
    lags: int,
    horizon: int,
    origins: Any,
    refit: bool,
) -> Backtest:
    """Forecasts of `horizon` steps from rolling origins: see `DIFFormerForecaster.backtest`.

    `fit` gives a forecaster fitted on the steps, and their graphs, before an origin.
    """
    places = _origins(origins, len(data.values), horizon, lags)

    def fitted(origin: int) -> Any:
        try:
            return fit(data.before(origin, horizon), edges[:origin] if len(edges) > 1 else edges)
        except ValueError as error:  # all nodes may vary only later on
            raise ValueError(f"the backtest sees {origin} steps, and {error}") from error

    if refit:
        found = [fitted(at).predict_from(data, [at], horizon, graph=edges) for at in places]
    else:
        found = [fitted(places[0]).predict_from(data, places, horizon, graph=edges)]
    first = edges[places[0] - 1 : places[0]] if len(edges) > 1 else edges
    return Backtest(
        origins=np.asarray(places),
        predicted=np.concatenate(found),
        values=data.values,
        lags=lags,
        season=season_of(data.stamps),
        neighbours=neighbours_of(first, data.values.shape[1]),
    )


def _origins(origins: Any, steps: int, horizon: int, lags: int) -> list[int]:
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise ValueError(f"horizon must be a whole number of at least 1, got {horizon!r}")
    last = steps - horizon
    if last < lags + 2:
        raise ValueError(
            f"horizon must leave lags + 2 ({lags + 2}) of the {steps} steps, got {horizon}"
        )
    if origins is None:
        origins = max(1, min(last - lags - 1, steps // 4 - horizon + 1))
    if isinstance(origins, int):
        if origins < 1:
            raise ValueError(f"origins must be at least 1, got {origins}")
        places = np.arange(max(lags + 2, last - origins + 1), last + 1)
    else:
        places = np.unique(np.asarray(origins, dtype=int))
    if not len(places) or places[0] < lags + 2 or places[-1] > last:
        raise ValueError(
            f"origins must lie in {lags + 2} to {last} (lags + 2 steps before, {horizon} after), "
            f"got {origins!r}"
        )
    return [int(place) for place in places]

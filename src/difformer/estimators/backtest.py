"""Backtest: forecasts from rolling origins compared with the truth and with simple forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit
from sklearn.metrics import mean_pinball_loss

from difformer.data.series import fill
from difformer.estimators.mix import (
    OURS,
    auto_forecasts,
    known_mean,
    simple_forecasts,
    steps_after,
)
from difformer.estimators.outcome import conformal_quantile
from difformer.settings import check_count

Array = NDArray[Any]

MOST_NODES = 60  # above this many, statsforecast is left out: it takes about a second per node
ADAPT = 0.6  # how fast the logarithm of an interval's width follows the share of values outside
TRUSTED = 30  # errors that do not overlap, from which on a step's own scale counts more
OVERLAP = 0.7  # m errors of step j count as m / j ** OVERLAP where the scale is uncertain


@dataclass(frozen=True, eq=False)
class Backtest:
    """o origins × h steps × n nodes, in the units of the series.

    Args:
        origins: (o,) the first step of each forecast, which uses the steps before it.
        predicted: (o, h, n).
        values: (T, n) the series, nan where missing.
        season: steps of a season, for the seasonal naive forecast; None if unknown.
        neighbours: (n, n), may be sparse: row i holds the weights of node i's neighbours; None for
            the mean of all other nodes.
    """

    origins: Array
    predicted: Array
    values: Array
    lags: int
    season: int | None = None
    neighbours: Any = None
    _rolls: dict[float, tuple[Array, Array]] = field(default_factory=dict, init=False)

    @cached_property
    def actual(self) -> Array:
        """(o, h, n), nan where the value is missing."""
        return steps_after(self.values, self.origins, self.horizon)

    @property
    def horizon(self) -> int:
        return self.predicted.shape[1]

    @property
    def training(self) -> Array:
        """The steps before the first origin, which every forecast uses."""
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

    @cached_property
    def forecasts(self) -> Mapping[str, Array]:
        """The forecasts (o, h, n) of each method; those that learn use the same steps as ours."""
        simple = simple_forecasts(
            self._filled[: self.origins[0]],
            self.training,
            self.lags,
            season=self.season,
            neighbours=self.neighbours,
        )
        each = {n: one(self._filled, self.origins, self.horizon) for n, one in simple.items()}
        return {OURS: self.predicted, **each}

    @cached_property
    def classical(self) -> Mapping[str, Array]:
        """AutoETS and AutoARIMA of statsforecast, fitted once per node to the same steps as ours.

        Empty if they cannot be run; `reason` says why.
        """
        if self.reason is not None:
            return {}
        return auto_forecasts(self._filled, self.origins, self.horizon, self.season)

    @property
    def reason(self) -> str | None:
        """Why there are no classical forecasts; None if there are."""
        if find_spec("statsforecast") is None:
            return "AutoETS and AutoARIMA need: pip install 'difformer[forecast]'"
        if self.values.shape[1] > MOST_NODES:
            return f"AutoETS and AutoARIMA are left out above {MOST_NODES} nodes"
        return None

    def errors(self, name: str) -> dict[str, float]:
        """mse, mae, and mase: mae relative to that of the last value over the training steps."""
        error = self._forecast(name) - self.actual
        usual = known_mean(np.abs(np.diff(self.training, axis=0)))
        ratio = np.abs(error) / np.where(usual > 0, usual, np.nan)
        return {
            "mse": float(np.nanmean(np.square(error))),
            "mae": float(np.nanmean(np.abs(error))),
            "mase": float(np.nanmean(ratio)) if np.isfinite(ratio).any() else float("nan"),
        }

    def summary(self) -> dict[str, Any]:
        """Errors of our forecast, and of every method by step.

        Includes the classical methods, which take longer.
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
        """The mean absolute error of each node (n,); 0 if unknown."""
        return known_mean(self._errors, (0, 1))

    def units(self) -> Array:
        """The usual absolute error of each node (n,), the unit of `quantiles`; 0 if unknown."""
        return _spread(self._errors, 0.5)[1]

    def quantiles(self, level: float) -> Array:
        """For each step (h,) the conformal quantile of errors in units of `units`, adapted.

        The interval of the next forecast is ± quantile × unit; infinite if there are too few
        errors. Errors may grow or shrink over time, so the quantile is multiplied by the factor by
        which intervals from earlier errors turned out too narrow or too wide (`_rolled`).
        """
        return _spread(self._errors, level)[0] * self._rolled(level)[1]

    def half_widths(self, level: float) -> Array:
        """Half the width of the interval at every origin (o, h, n), from errors known before it."""
        return self._rolled(level)[0]

    def coverage(self, level: float) -> dict[str, float]:
        """The share of values inside intervals made from earlier errors, and the pinball loss.

        Over the later half of the origins, without those that have too few errors before them; the
        pinball loss is the mean over both ends. nan if none is left.
        """
        width, half = self.half_widths(level), len(self.origins) // 2
        known = ~np.isnan(self.actual)
        made = (np.arange(len(width)) >= half) & np.isfinite(width).all((1, 2)) & known.any((1, 2))
        if not half or not made.any():
            return {"coverage": float("nan"), "pinball": float("nan")}
        known, width, middle = known[made], width[made], self.predicted[made]
        actual, share = self.actual[made][known], (1 - level) / 2
        ends = {share: (middle - width)[known], 1 - share: (middle + width)[known]}
        inside = np.abs(actual - middle[known]) <= width[known]
        losses = [mean_pinball_loss(actual, end, alpha=q) for q, end in ends.items()]
        return {"coverage": float(inside.mean()), "pinball": float(np.mean(losses))}

    @cached_property
    def _errors(self) -> Array:
        return np.abs(self.predicted - self.actual)

    def _rolled(self, level: float) -> tuple[Array, Array]:
        """Half the width of the interval at every origin (o, h, n), and the last factors (h,).

        At an origin, only errors of steps before it are known. The logarithm q of the factor of a
        step follows the `level`-quantile of s = log(error / width without the factor) by gradient
        steps on the pinball loss, q ← q + η (share of s > q − (1 − level)): quantile tracking, as
        in adaptive conformal inference. An error is compared with today's q instead of the one that
        its interval was made with, long ago for a long step, so q cannot run past every s. The
        errors of step j are alike for j steps and the share of few nodes is uncertain, so for n
        nodes η = ADAPT / j² · n / (n + 2). Longer steps move along, and so soon follow a change of
        all errors. O(o² h n).
        """
        if level in self._rolls:
            return self._rolls[level]
        step_of = self.origins[:, None] + np.arange(self.horizon)  # (o, h)
        plain, width = (np.full(self.predicted.shape, np.inf) for _ in range(2))
        moved = np.zeros(self.horizon)
        for now in range(self.origins[0], step_of[-1, -1] + 1):
            for at in np.flatnonzero(self.origins == now):
                seen = np.where((step_of[:at] < now)[..., None], self._errors[:at], np.nan)
                quantile, unit = _spread(seen, level)
                if np.isfinite(quantile).all():
                    plain[at] = quantile[:, None] * unit
                    width[at] = plain[at] * np.exp(moved)[:, None]
            at, step = np.nonzero(step_of == now)  # each step at most once
            error, own = self._errors[at, step], plain[at, step]
            judged = np.isfinite(own) & ~np.isnan(error)
            excess = judged * ((error > own * np.exp(moved[step])[:, None]) - (1 - level))
            change = np.zeros(self.horizon)
            change[step] = ADAPT * excess.sum(1) / (judged.sum(1) + 2) / np.square(step + 1)
            moved += np.cumsum(change)
        self._rolls[level] = width, np.exp(moved)
        return self._rolls[level]

    @cached_property
    def _filled(self) -> Array:
        """The series with missing values as the last known one, or the node's training mean."""
        return fill(self.values, known_mean(self.training))


def _spread(errors: Array, level: float) -> tuple[Array, Array]:
    """From errors (o, h, n), nan where unknown: the quantile per step, the unit per node.

    Errors of step j from consecutive origins overlap: m of them hold about m / j that do not. So
    the scale s_j of a step is drawn to a line, log s_j = a + b log j, the more the fewer they are,
    and the unit of a node is the mean of errors / s_j with weights 1 / j². Errors of all steps and
    nodes divided by both have one conformal quantile. It grows for uncertain scales by the ratio of
    the quantiles of Student's t and the normal distribution. O(o h n log(o h n)).
    """
    known, steps = ~np.isnan(errors), np.arange(1, errors.shape[1] + 1)
    count, size = known.sum((0, 2)), known_mean(errors, (0, 1))
    if not count.all():
        return np.full(len(steps), np.inf), size
    scale = known_mean(errors / np.where(size > 0, size, np.nan), (0, 2))
    log, enough = np.log(np.maximum(scale, 1e-3)), count / steps  # a step may have no error at all
    line = np.polyfit(np.log(steps), log, min(1, len(steps) - 1), w=np.sqrt(enough))
    log = (enough * log + TRUSTED * np.polyval(line, np.log(steps))) / (enough + TRUSTED)
    relative = errors / np.exp(log)[:, None]
    weight = known / np.square(steps)[:, None]
    unit = np.nansum(relative * weight, (0, 1)) / np.maximum(weight.sum((0, 1)), 1e-300)
    scores = relative / np.where(unit > 0, unit, np.nan)
    quantile = conformal_quantile(scores[~np.isnan(scores)], level)
    freedom = np.maximum(known.any((1, 2)).sum() / steps**OVERLAP, 1)
    share = (1 + level) / 2
    return quantile * np.exp(log) * stdtrit(freedom, share) / ndtri(share), unit


def origins_of(origins: Any, steps: int, horizon: int, lags: int) -> list[int]:
    """The steps to forecast from, see `DIFFormerForecaster.backtest`; ValueError for bad ones."""
    check_count("horizon", horizon)
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

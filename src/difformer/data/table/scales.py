"""Scaling of numbers of any size, with a few far outside the range of the others. No torch here.

From all numbers of a column, or beyond a bound from an even sample and exact moments.
"""

from __future__ import annotations

import math

import numpy as np

from difformer.data.table.cells import MOST_CATEGORIES, Array

FARTHEST = 1000.0  # standard deviations from the mean at which values are clipped
RARE = 1e-5  # share of new values, like the known ones, that may lie outside the usual range
FIGURES = ("mean", "scale", "low", "high")  # of a column of numbers, from `standardise`
GROWN = 8.0  # times the farthest distance from the median, beyond which no new value is usual


def standardise(values: Array, *, clip: bool = True) -> tuple[Array, Array, Array, Array]:
    """Mean, deviation, lowest and highest value to be encoded, for each column of (n, p). O(n p).

    NaN is ignored. A few values far outside the range of all others would dominate the deviation:
    if one is more than `FARTHEST` times the width of the middle 98 % away from the median, values
    are first clipped to that middle and one width on either side, unless `clip` is off. A constant
    column is always encoded as that constant.
    """
    p = values.shape[1]
    mean, scale = np.zeros(p), np.ones(p)
    low, high = np.zeros(p), np.zeros(p)
    least = 1e-12 if clip else 1e-15  # of a column that varies: labels keep all digits
    # Divided first: huge numbers must not overflow in their squares.
    for j, column in enumerate(np.ascontiguousarray(values.T)):
        known = column[~np.isnan(column)] if np.isnan(column).any() else column
        if not len(known):
            continue
        bounds = _usual(known) if clip else None
        known = known if bounds is None else known.clip(*bounds)
        largest = _largest(known)
        unit = known / largest
        middle, spread = float(unit.mean()), float(unit.std())
        mean[j] = low[j] = high[j] = middle * largest
        if spread < least:
            continue
        scale[j] = spread * largest
        with np.errstate(over="ignore"):  # then no value is too far away
            ends = mean[j] + FARTHEST * scale[j] * np.array([-1.0, 1.0])
        low[j], high[j] = bounds or np.nan_to_num(ends)
    return mean, scale, low, high


def _largest(values: Array) -> float:
    return max(float(np.abs(values).max()), float(np.finfo(np.float64).tiny))


def _usual(values: Array) -> tuple[float, float] | None:
    """The bounds to clip to where some values are far outside the range of all others."""
    largest = _largest(values)
    unit = values / largest
    if not float(np.abs(unit - unit.mean()).max()) > 5 * unit.std():
        return None  # nothing stands out: the usual case, without a sort
    first, middle, last = (float(q) for q in np.quantile(unit, (0.01, 0.5, 0.99)))
    width = last - first
    if not 0 < width < float(np.abs(unit - middle).max()) / FARTHEST:
        return None
    return (first - width) * largest, (last + width) * largest


def usual_range(values: Array, *, least: float = 2.0) -> tuple[float, ...]:
    """Lowest and highest of (n,) values, and two bounds that others like them hardly cross. O(n).

    Seen from the median m, the upper bound lies as far beyond the highest value h as the tail has
    grown from the tenth highest value t, so that heavy tails have wide bounds:

        m + (h - m) g,  g = ((h - m) / (t - m))^e from `least` to `GROWN`,  e = -log10(RARE n) >= 1,

    and likewise the lower one. With less than 100 values t is the one at a tenth. A tail of less
    than ten values says nothing: it has no bound. () for a constant or less than 20 values.
    """
    n = len(values)
    k = min(10, n // 10)
    if k < 2 or values.min() == values.max():
        return ()
    places = [0, k - 1, n // 2, n - k, n - 1]
    low, near_low, middle, near_high, high = np.partition(values, places)[places]
    power, least = max(1.0, -math.log(RARE * n) / math.log(k)), least * (1 + 20 / n)
    bounds: list[float] = []
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for end, near, other in ((low, near_low, high), (high, near_high, low)):
            tail = end - middle
            if tail:
                grown = min(GROWN, (tail / (near - middle)) ** power)
                bound = middle + tail * (max(least, grown) if near != middle else math.inf)
            else:  # at least half of the values are this one
                bound = end + (least - 1) * (end - other)
            bounds.append(float(np.nan_to_num(bound)))
    return float(low), float(high), *bounds


class Numbers:
    """The numbers of a column: all of them, or beyond 2 `most` an even sample; exact moments."""

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self.known, self.mean = 0, 0.0
        self.low, self.high = math.inf, -math.inf
        self.missing = False  # whether some are
        self.distinct: Array | None = np.zeros(0)
        """The different ones; None if they are more than a category may have."""
        self._spread = 0.0  # sum of squared distances from the mean
        self._kept: list[Array] = []
        self._step = 1  # every `_step`-th number is kept
        self._next = 0  # how many to skip before the next that is kept

    def add(self, values: Array) -> None:
        """Take in numbers, NaN where missing."""
        gone = np.isnan(values)
        self.missing = self.missing or bool(gone.any())
        values = values[~gone]
        if not len(values):
            return
        self.low, self.high = min(self.low, values.min()), max(self.high, values.max())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(values.mean())
            total, away = self.known + len(values), mean - self.mean
            self._spread += float(np.square(values - mean).sum())
            self._spread += away * away * self.known * len(values) / total
            self.mean += away * len(values) / total
        self.known = total
        if self.distinct is not None:
            found = np.union1d(self.distinct, values)
            self.distinct = found if len(found) <= MOST_CATEGORIES else None
        self._kept.append(values[self._next :: self._step])
        self._next = (self._next - len(values)) % self._step
        if sum(map(len, self._kept)) > 2 * self.most:
            sample = np.concatenate(self._kept)
            # The next to be kept is `_next` numbers away from the end; half of the others go.
            self._next += self._step * (len(sample) % 2)
            self._step *= 2
            self._kept = [sample[::2]]

    def sample(self) -> Array:
        """All numbers that are not missing, or a sample of them."""
        return np.concatenate(self._kept) if self._kept else np.zeros(0)

    def _ends(self) -> Array:
        """The sample, and the lowest and highest number if these may not be in it."""
        sample = self.sample()
        return sample if self.known == len(sample) else np.append(sample, [self.low, self.high])

    def seen(self, least: float) -> tuple[float, ...]:
        """What `usual_range` says of them."""
        return usual_range(self._ends(), least=least)

    def scale(self) -> dict[str, float]:
        """Mean, deviation, lowest and highest value to be encoded, as `standardise` has them."""
        sample, bounds = self.sample(), None
        if self.known > len(sample) and math.isfinite(self._spread) and self.low < self.high:
            bounds = _usual(self._ends())
            if bounds is None:
                scale = math.sqrt(self._spread / self.known)
                ends = self.mean - FARTHEST * scale, self.mean + FARTHEST * scale
                return dict(zip(FIGURES, (self.mean, scale, *ends), strict=True))
            sample = sample.clip(*bounds)  # a few values are far outside: only the sample is
        found = (float(figure[0]) for figure in standardise(sample[:, None]))
        ends = {} if bounds is None else {"low": bounds[0], "high": bounds[1]}
        return dict(zip(FIGURES, found, strict=True)) | ends

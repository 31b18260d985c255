"""Means, paired differences and their intervals. No torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from statistics import mean, stdev
from typing import Any

CONFIDENCE = 0.95
MOST_PAIRS = 1000  # the most pairs that `needed` names


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences and its confidence interval; no interval for one pair."""

    mean: float
    low: float | None
    high: float | None
    pairs: int

    @property
    def certain(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def needed(self) -> int | None:
        """How many pairs would make the interval exclude zero, with the same mean and deviation.

        None if that is unknown (one pair, a mean of zero) or more than 1,000.
        """
        if self.low is None or self.mean == 0:
            return None
        deviation = (self.mean - self.low) / _half_width(1.0, self.pairs)
        enough = (k for k in range(2, MOST_PAIRS + 1) if _half_width(deviation, k) < abs(self.mean))
        return next(enough, None)

    def shown(self, scale: float = 1.0, digits: int = 1) -> str:
        """For people: +1.2 [0.3, 2.1]."""
        text = f"{self.mean * scale:+.{digits}f}"
        if self.low is None or self.high is None:
            return text
        return f"{text} [{self.low * scale:.{digits}f}, {self.high * scale:.{digits}f}]"


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> Difference:
    """mean(ours − theirs) over the same splits, with Student's t interval at 95 %.

    mean ± t(k − 1) · s / √k. The splits of one dataset share rows, so the interval is about other
    splits of this dataset, not about other datasets.

    >>> paired_difference([3.0, 4.0, 5.0], [2.0, 3.0, 4.0]).shown()
    '+1.0 [1.0, 1.0]'
    """
    if len(ours) != len(theirs) or not ours:
        raise ValueError(f"both must have the same splits, got {len(ours)} and {len(theirs)}")
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    k, middle = len(gaps), mean(gaps)
    if k < 2:
        return Difference(middle, None, None, k)
    half = _half_width(stdev(gaps), k)
    return Difference(middle, middle - half, middle + half, k)


def matched(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Difference | None:
    """The paired difference over the runs that both have, by their keys; None without any."""
    both = [key for key in ours if key in theirs]
    return paired_difference([ours[k] for k in both], [theirs[k] for k in both]) if both else None


def _half_width(deviation: float, pairs: int) -> float:
    """Half the width of Student's interval of a mean."""
    from scipy.stats import t

    return float(t.ppf((1 + CONFIDENCE) / 2, pairs - 1)) * deviation / sqrt(pairs)


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and sample standard deviation; the latter is None for a single value."""
    good = [v for v in values if isfinite(v)]
    if not good:
        raise ValueError("values must hold a finite number")
    return mean(good), stdev(good) if len(good) > 1 else None

"""The values of many nodes over time: windows around an origin, and one scale per node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Values to a scale on which they vary evenly, and back. "sqrt" and "log" need values of 0 or more.
TRANSFORMS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "none": (np.asarray, np.asarray),
    "sqrt": (np.sqrt, lambda z: np.square(np.maximum(z, 0.0))),
    "log": (np.log1p, lambda z: np.expm1(np.maximum(z, 0.0))),
}
ENOUGH = 5  # steps at which a node must differ from its median, to be learned from


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


@dataclass(frozen=True, eq=False)
class NodeScale:
    """(f(value) − mean) / scale, each (n,); 0 for `naive` nodes, which are not learned from.

    `level` is the mean of a node's values in their units, 0 where none is known, and `reach` the
    lowest and the highest forecast, see `reach_of`.
    """

    transform: str
    mean: Array
    scale: Array
    naive: Array
    level: Array
    reach: Array

    @classmethod
    def learn(cls, values: Array, lags: int, transform: str = "none") -> NodeScale:
        """From a series (T, n) with nan where missing. O(T n).

        A node is naive if it has fewer than lags + 2 known values, if it is constant, or if it
        differs from its median at a few steps only.
        """
        if transform != "none" and float(np.nanmin(values)) < 0:
            raise ValueError(f"transform must be none for values below 0, got {transform!r}")
        known = ~np.isnan(values)
        columns = [column[~np.isnan(column)] for column in values.T]
        median = np.array([np.median(column) if len(column) else np.nan for column in columns])
        differing = (known & (values != median)).sum(0)
        least = min(ENOUGH, max(1, len(values) // 10))
        naive = (known.sum(0) < lags + 2) | (differing < least)
        changed = np.where(naive, 0.0, TRANSFORMS[transform][0](np.where(naive, 0.0, values)))
        mean, scale = np.nanmean(changed, axis=0), np.nanstd(changed, axis=0)
        naive = naive | ~(scale > 0)
        level = known_mean(values)
        reach = reach_of(np.where(known, values, level))
        return cls(transform, mean, np.where(naive, 1.0, scale), naive, level, reach)

    def forward(self, values: Array) -> Array:
        """Scaled values, nan where missing; 0 for naive nodes."""
        changed = TRANSFORMS[self.transform][0](np.where(self.naive, 0.0, values))
        return np.where(self.naive, 0.0, (changed - self.mean) / self.scale)

    def back(self, scaled: Array) -> Array:
        """Values in the units of the series; those of naive nodes have no meaning."""
        return np.clip(TRANSFORMS[self.transform][1](scaled * self.scale + self.mean), *self.reach)

    def targets(self, values: Array, origins: Array, ahead: int) -> Array:
        """`steps_after` of the nodes that are learned from; nan for naive ones."""
        return steps_after(np.where(self.naive, np.nan, values), origins, ahead)


def reach_of(values: Array) -> Array:
    """(2, n) the lowest and the highest forecast, so that none runs away over many steps.

    With the range of a node's values (T, n): one range below its lowest value, but not below 0 if
    no value is, and one range above its highest.
    """
    low, high = values.min(0), values.max(0)
    least = np.where(low < 0, 2 * low - high, np.maximum(0.0, 2 * low - high))
    return np.stack([least, 2 * high - low])


def looks_like_counts(values: Array) -> bool:
    """Whether all known values are whole numbers of 0 or more."""
    known = values[~np.isnan(values)]
    return bool(known.size and known.min() >= 0 and (known == np.round(known)).all())

"""What the values of a series become before a model sees them, and back: node by node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TRANSFORMS", "NodeScale", "looks_like_counts", "reach_of"]

Array = NDArray[Any]

# Values to a scale on which they vary evenly, and back. Counts of 0 or more alone have all three.
TRANSFORMS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "none": (np.asarray, np.asarray),
    "sqrt": (np.sqrt, lambda z: np.square(np.maximum(z, 0.0))),
    "log": (np.log1p, lambda z: np.expm1(np.maximum(z, 0.0))),
}
ENOUGH = 5  # steps at which a node must differ from its median, to be learned from


@dataclass(frozen=True, eq=False)
class NodeScale:
    """(f(value) − mean) / scale, each (n,); `naive` nodes, not to be learned from, are zeros.

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

        Naive are nodes with fewer than lags + 2 known values, constant ones, and those that are
        the same but for a few steps.
        """
        if transform != "none" and float(np.nanmin(values)) < 0:
            raise ValueError(f"transform must be none for values below 0, got {transform!r}")
        known = ~np.isnan(values)
        median = np.array([np.median(c[k]) if k.any() else np.nan for c, k in _columns(values)])
        differing = (known & (values != median)).sum(0)
        least = min(ENOUGH, max(1, len(values) // 10))
        naive = (known.sum(0) < lags + 2) | (differing < least)
        changed = np.where(naive, 0.0, TRANSFORMS[transform][0](np.where(naive, 0.0, values)))
        mean, scale = np.nanmean(changed, axis=0), np.nanstd(changed, axis=0)
        naive = naive | ~(scale > 0)
        level = np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1)
        reach = reach_of(np.where(known, values, level))
        return cls(transform, mean, np.where(naive, 1.0, scale), naive, level, reach)

    def forward(self, values: Array) -> Array:
        """Scaled values, nan where missing; zeros for naive nodes."""
        changed = TRANSFORMS[self.transform][0](np.where(self.naive, 0.0, values))
        return np.where(self.naive, 0.0, (changed - self.mean) / self.scale)

    def back(self, scaled: Array) -> Array:
        """Values in the units of the series; what it gives for naive nodes means nothing."""
        return np.clip(TRANSFORMS[self.transform][1](scaled * self.scale + self.mean), *self.reach)


def reach_of(values: Array) -> Array:
    """(2, n) the lowest and the highest forecast, so that none runs away over many steps.

    A range of the node's values (T, n) below its lowest one (but 0 if none is below), and above its
    highest.
    """
    low, high = values.min(0), values.max(0)
    least = np.where(low < 0, 2 * low - high, np.maximum(0.0, 2 * low - high))
    return np.stack([least, 2 * high - low])


def looks_like_counts(values: Array) -> bool:
    """Whether all known values are whole numbers of 0 or more, not all alike."""
    known = values[~np.isnan(values)]
    return bool(known.size and known.min() >= 0 and (known == np.round(known)).all())


def _columns(values: Array) -> Any:
    return zip(values.T, ~np.isnan(values).T, strict=True)

"""Views: the same features scaled in another way, so that a distance means something else.

Which view suits a table depends on the table: columns in one unit (pixels) are best left in it,
columns in many are standardised, and skewed ones are best seen through their ranks. The labels
decide (`portfolio`), so a view is learned from all rows, kept with the model and used for new rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.preprocessing import normalize
from torch import Tensor

from difformer.data.encoder import TableEncoder

__all__ = ["VIEWS", "View", "learn_view"]

Array = NDArray[Any]

VIEWS = ("standard", "common", "steps")
KEPT = {"common": ["factors"], "steps": ["knots", "scale", "shift"]}  # arrays of a view
# The length that sparse rows are given: their direction says what they are alike to, and weight
# decay then weighs them as it does standardised columns.
SPARSE_LENGTH = 10.0
# Standardised values beyond this are cut off: one odd cell must not decide a row's neighbours.
FARTHEST = 4.0
# Steps per column, and the most features that steps may make.
STEPS = 8
MOST_FEATURES = 4096


@dataclass(frozen=True)
class View:
    """How encoded features become a model's input.

        plain     x
        standard  x clipped to ±4; sparse rows scaled to length 10
        common    x_j · factor_j: centred, one scale for all columns
        steps     for each column, how far x_j lies between each two of its quantiles: piecewise
                  linear in the rank, centred, each column with unit variance in all

    Args:
        kind: "plain" or one of `VIEWS`; sparse rows have "plain" and "standard" only.
        factors: (p,) of "common".
        knots: (p, STEPS + 1) of "steps", increasing along a row; equal ones make no step.
        shift, scale: (features,) of "steps", applied after the steps.
    """

    kind: str
    factors: Array | None = None
    knots: Array | None = None
    shift: Array | None = None
    scale: Array | None = None

    def apply(self, features: Any) -> Any:
        """Features (m, p) as this view has them, float32."""
        if self.kind == "plain":
            return features
        if sparse.issparse(features):
            unit: Any = normalize(features)
            return (unit * SPARSE_LENGTH).astype(np.float32)
        if self.kind == "common":
            return (features * self.factors).astype(np.float32)
        if self.kind == "standard":
            return np.clip(features, -FARTHEST, FARTHEST, dtype=np.float32)
        assert self.knots is not None
        steps = _steps(features, self.knots)
        return ((steps - self.shift) * self.scale).astype(np.float32)

    def tensors(self) -> dict[str, Tensor]:
        """Its arrays by name, for saving."""
        kept = {name: getattr(self, name) for name in ("factors", "knots", "shift", "scale")}
        return {name: torch.from_numpy(v) for name, v in kept.items() if v is not None}

    @classmethod
    def from_tensors(cls, kind: str, tensors: dict[str, Tensor]) -> View:
        if kind not in ("plain", *VIEWS):
            raise ValueError(f"unknown view {kind!r}")
        if sorted(tensors) != KEPT.get(kind, []):
            raise ValueError(f"view {kind!r} with the arrays {sorted(tensors)}")
        return cls(kind, **{name: tensor.numpy() for name, tensor in tensors.items()})


def learn_view(kind: str, features: Any, encoder: TableEncoder | None) -> View | None:
    """The view of encoded features (n, p), or None where it would be no other than "standard"."""
    if kind == "standard":
        return View("standard")
    if sparse.issparse(features) or encoder is None:
        return None
    return _common(encoder) if kind == "common" else _learn_steps(features)


def _common(encoder: TableEncoder) -> View | None:
    factors, numbers = np.ones(encoder.width), np.zeros(encoder.width, bool)
    place = 0
    for column in encoder.columns:
        if column.kind in ("number", "date"):
            factors[place], numbers[place] = column.learned["scale"], True
        place += column.width
    own = factors[numbers]
    if len(own) < 2 or own.max() <= 1.01 * own.min():
        return None
    own = own / own.max()  # squares of huge scales overflow
    factors[numbers] = own / np.sqrt(np.mean(own**2))
    return View("common", factors=factors)


def _learn_steps(features: Array) -> View | None:
    p = features.shape[1]
    if p * STEPS > MOST_FEATURES:
        return None
    knots = np.quantile(features, np.linspace(0, 1, STEPS + 1), axis=0).T
    if not (np.diff(knots, axis=1) > 0).any():
        return None
    steps = _steps(features, knots)
    shift, variance = steps.mean(0), steps.var(0)
    whole = variance.reshape(p, STEPS).sum(1, keepdims=True)
    scale = np.where(whole > 0, 1 / np.sqrt(np.maximum(whole, 1e-12)), 0.0)
    return View("steps", knots=knots, shift=shift, scale=np.repeat(scale, STEPS, axis=1).ravel())


def _steps(features: Array, knots: Array) -> Array:
    """How far each value has come on the way from each knot to the next: (m, p · STEPS)."""
    low, gap = knots[:, :-1], np.diff(knots, axis=1)
    rise = np.asarray(features, np.float64)[:, :, None] - low
    # A step without width is a jump: a value either reaches it or does not.
    inside = np.divide(rise, gap, out=(rise > 0).astype(np.float64), where=gap > 0)
    return np.clip(inside, 0, 1).reshape(len(features), -1)

"""Views: the same features scaled in another way, so that a distance means something else.

Which view suits a table depends on the table: columns in one unit (pixels) are best left in it,
columns in many are standardised, skewed ones are best seen through their ranks, and where a class
lies in a region of its own, what tells is how near a row is to places in the table. The labels
decide (`portfolio`), so a view is learned from all rows, kept with the model and used for new rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus
from sklearn.preprocessing import normalize
from torch import Tensor

from difformer.data.encoder import TableEncoder

__all__ = ["VIEWS", "View", "learn_view"]

Array = NDArray[Any]

VIEWS = ("standard", "common", "steps", "near")
KEPT = {  # arrays of a view
    "common": ["factors"],
    "steps": ["knots", "scale", "shift"],
    "near": ["centres", "scale", "shift", "width"],
}
# The length that sparse rows are given: their direction says what they are alike to, and weight
# decay then weighs them as it does standardised columns.
SPARSE_LENGTH = 10.0
# Standardised values beyond this are cut off: one odd cell must not decide a row's neighbours.
FARTHEST = 4.0
# Steps per column, and the most features that steps may make.
STEPS = 8
MOST_FEATURES = 4096
# Centres of "near", the rows per centre that k-means sees, its steps, and the nearest centres whose
# mean distance is the width.
CENTRES = 128
ROWS_PER_CENTRE = 20
LLOYD_STEPS = 10
NEAREST = 5


@dataclass(frozen=True)
class View:
    """How encoded features become a model's input.

        plain     x
        standard  x clipped to ±4; sparse rows scaled to length 10
        common    x_j · factor_j: centred, one scale for all columns
        steps     for each column, how far x_j lies between each two of its quantiles: piecewise
                  linear in the rank, centred, each column with unit variance in all
        near      exp(−‖x − c_l‖² / 2b) for each centre c_l, centred, as much variance in all as
                  the columns have: a class may then lie anywhere, such as in a ring

    Args:
        kind: "plain" or one of `VIEWS`; sparse rows have "plain" and "standard" only.
        factors: (p,) of "common".
        knots: (p, STEPS + 1) of "steps", increasing along a row; equal ones make no step.
        centres: (m, p) of "near", by k-means.
        width: (1,) of "near": b, the mean squared distance of a row to its nearest centres.
        shift, scale: (features,) of "steps" and "near", applied after all else.
    """

    kind: str
    factors: Array | None = None
    knots: Array | None = None
    shift: Array | None = None
    scale: Array | None = None
    centres: Array | None = None
    width: Array | None = None

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
        if self.kind == "near":
            found = _nearness(features, self.centres, self.width)
        else:
            assert self.knots is not None
            found = _steps(features, self.knots)
        return ((found - self.shift) * self.scale).astype(np.float32)

    def tensors(self) -> dict[str, Tensor]:
        """Its arrays by name, for saving."""
        kept = {name: getattr(self, name) for name in KEPT.get(self.kind, [])}
        return {name: torch.from_numpy(array) for name, array in kept.items()}

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
    if kind == "common":
        return _common(encoder)
    return _learn_steps(features) if kind == "steps" else _learn_near(features)


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


def _learn_near(features: Array) -> View | None:
    if features.shape[1] > MOST_FEATURES:
        return None
    sample = np.clip(np.asarray(features, np.float64), -FARTHEST, FARTHEST)
    if len(sample) > ROWS_PER_CENTRE * CENTRES:
        drawn = np.random.default_rng(0).permutation(len(sample))[: ROWS_PER_CENTRE * CENTRES]
        sample = sample[np.sort(drawn)]
    distinct = np.unique(sample, axis=0)
    count = min(CENTRES, len(distinct) // 2)
    if count <= NEAREST:
        return None
    centres = _centres(sample, kmeans_plusplus(distinct, count, random_state=0)[0])
    square = np.sort(cdist(sample, centres, "sqeuclidean"), axis=1)
    width = square[:, :NEAREST].mean(keepdims=True)[0]
    found = _nearness(sample, centres, width)
    varied = found.var(0).sum() / sample.var(0).sum()
    scale = np.full(count, 1 / np.sqrt(max(varied, 1e-12)))
    return View("near", shift=found.mean(0), scale=scale, centres=centres, width=width)


def _centres(rows: Array, centres: Array) -> Array:
    """Centres (m, p) after some of Lloyd's steps; one without rows stays where it is."""
    for _ in range(LLOYD_STEPS):
        nearest = cdist(rows, centres, "sqeuclidean").argmin(1)
        total, size = np.zeros_like(centres), np.bincount(nearest, minlength=len(centres))[:, None]
        np.add.at(total, nearest, rows)
        centres = np.where(size > 0, total / np.maximum(size, 1), centres)
    return centres


def _nearness(features: Array, centres: Array | None, width: Array | None) -> Array:
    """exp(−‖x − c‖² / 2b) (m, centres) for features (m, p), cut off as the standard view does."""
    assert centres is not None
    assert width is not None
    rows = np.clip(np.asarray(features, np.float64), -FARTHEST, FARTHEST)
    return np.exp(cdist(rows, centres, "sqeuclidean") / (-2 * width))

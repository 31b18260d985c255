"""Views: the same features scaled in different ways, and the fitted models that see them.

A view changes the distances between rows. Which one is best depends on the table: columns in one
unit (pixels) should keep it, columns in different units should be standardised, skewed ones
replaced by their ranks, and for classes that lie in separate regions, the distances to some centres
are better features. The labels decide (`portfolio`), so a view is learned from all rows, kept with
the model and used for new rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial.distance import cdist
from sklearn.cluster import kmeans_plusplus
from sklearn.preprocessing import normalize
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.data.snapshots import Edges
from difformer.data.table.encoder import TableEncoder
from difformer.estimators.rows import feature_scales, to_tensor
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.layer import DiffusionLayer

Array = NDArray[Any]

VIEWS = ("standard", "common", "steps", "near")
KEPT = {  # arrays of a view
    "common": ["factors"],
    "steps": ["knots", "scale", "shift"],
    "near": ["centres", "scale", "shift", "width"],
}
# The length that sparse rows are scaled to: only their direction matters, and weight decay then
# has the same effect as for standardised columns.
SPARSE_LENGTH = 10.0
# Standardised values are clipped to ± this: one odd cell must not decide a row's neighbours.
FARTHEST = 4.0
# Steps per column, and the most features of the "steps" view.
STEPS = 8
MOST_FEATURES = 4096
# For "near": centres, rows per centre that k-means uses, its steps, and the number of nearest
# centres whose mean distance is the width.
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
                  linear in the rank, centred, unit variance per column in total
        near      exp(−‖x − c_l‖² / 2b) for each centre c_l, centred, with the same total variance
                  as the columns: classes may then have any shape, such as a ring

    Args:
        kind: "plain" or one of `VIEWS`; sparse rows have "plain" and "standard" only.
        factors: (p,) of "common".
        knots: (p, STEPS + 1) of "steps", not decreasing along a row.
        centres: (m, p) of "near", by k-means.
        width: (1,) of "near": b, the mean squared distance of a row to its nearest centres.
        shift, scale: (features,) of "steps" and "near", applied last.
    """

    kind: str
    factors: Array | None = None
    knots: Array | None = None
    shift: Array | None = None
    scale: Array | None = None
    centres: Array | None = None
    width: Array | None = None

    def apply(self, features: Any) -> Any:
        """Features (m, p) through this view, float32."""
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
    """The view of encoded features (n, p); None if it does not differ from "standard"."""
    if kind == "standard":
        return View("standard")
    if sparse.issparse(features) or encoder is None:
        return None
    if kind == "common":
        return _common(encoder)
    return _learn_steps(features) if kind == "steps" else _learn_near(features)


def _common(encoder: TableEncoder) -> View | None:
    _, factors, numbers = feature_scales(encoder)
    own = factors[numbers]
    if len(own) < 2 or own.max() <= 1.01 * own.min():
        return None
    own = own / own.max()  # otherwise squares of huge scales overflow
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
    """The position of each value between each knot and the next, in [0, 1]: (m, p · STEPS)."""
    low, gap = knots[:, :-1], np.diff(knots, axis=1)
    rise = np.asarray(features, np.float64)[:, :, None] - low
    # A step without width is a jump from 0 to 1.
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
    """Centres (m, p) after some of Lloyd's steps; one without rows does not move."""
    for _ in range(LLOYD_STEPS):
        nearest = cdist(rows, centres, "sqeuclidean").argmin(1)
        total, size = np.zeros_like(centres), np.bincount(nearest, minlength=len(centres))[:, None]
        np.add.at(total, nearest, rows)
        centres = np.where(size > 0, total / np.maximum(size, 1), centres)
    return centres


def _nearness(features: Array, centres: Array | None, width: Array | None) -> Array:
    """exp(−‖x − c‖² / 2b) (m, centres) for features (m, p), clipped as in the standard view."""
    assert centres is not None
    assert width is not None
    rows = np.clip(np.asarray(features, np.float64), -FARTHEST, FARTHEST)
    return np.exp(cdist(rows, centres, "sqeuclidean") / (-2 * width))


@dataclass(frozen=True)
class FittedMember:
    """One model that predicts; several are averaged by their weights.

    Args:
        name: the name of its form and of its view of the features.
        temperature: its outputs are divided by this before they become probabilities.
    """

    name: str
    view: View
    frozen: FrozenDIFFormer
    weight: float = 1.0
    temperature: float = 1.0

    @property
    def meets(self) -> bool:
        """Whether rows influence one another in it."""
        layer = self.frozen.model.layers[-1]
        assert isinstance(layer, DiffusionLayer)
        return self.frozen.num_known is not None or not layer.diffusivity.local

    def seen(self, features: Any) -> Tensor:
        """Encoded features through its view, dense, in float64."""
        return to_tensor(self.view.apply(features), torch.float64).to_dense()

    def run(self, features: Any, edges: Edges | None, *, encode: bool = False) -> Tensor:
        """Outputs (m, outputs) of new rows, or their states; edges from rows of fit to these."""
        run = self.frozen.encode if encode else self.frozen.forward
        return run(self.seen(features), *self._used(edges))

    def weights(self, features: Any, before: Tensor, edges: Edges | None) -> Tensor:
        """The weight (m, n) of each row of fit in the last step of each new row.

        `before` (n, hidden_channels) are the states of the rows of fit before that step.
        """
        return self.frozen.weights(self.seen(features), before, *self._used(edges))

    def _used(self, edges: Edges | None) -> tuple[Tensor | None, Tensor | None]:
        """The edges, unless the model was fitted without a graph."""
        return (None, None) if edges is None or self.frozen.num_known is None else edges

    def pack(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors and its description, for a part of a file."""
        tensors, described = self.frozen.pack()
        tensors = {f"frozen.{name}": tensor for name, tensor in tensors.items()}
        tensors |= {f"view.{name}": tensor for name, tensor in self.view.tensors().items()}
        own = {"name": self.name, "weight": self.weight, "temperature": self.temperature}
        return tensors, {**own, "view": self.view.kind, "frozen": described}

    @classmethod
    def unpack(
        cls,
        path: Path,
        tensors: dict[str, Tensor],
        described: dict[str, Any],
        kernel: Diffusivity | None,
    ) -> FittedMember:
        """The member that `pack` described."""
        parts: dict[str, dict[str, Tensor]] = {"frozen": {}, "view": {}}
        for name, tensor in tensors.items():
            part, _, own = name.partition(".")
            parts[part][own] = tensor
        return cls(
            str(described["name"]),
            View.from_tensors(described["view"], parts["view"]),
            FrozenDIFFormer.unpack(path, parts["frozen"], described["frozen"], kernel=kernel),
            float(described["weight"]),
            float(described["temperature"]),
        )

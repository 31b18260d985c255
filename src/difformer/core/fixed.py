"""Averages whose weights are fixed: Ŝ is computed once, then one product per layer.

Where rows are compared by their input features, Ŝ is the same in every layer and epoch. With a
sharp diffusivity few weights of a row are large, so Ŝ is kept as a sparse matrix of these, and the
small rest of a row's weight is spread evenly over all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import chunk_rows, tiles

LOST = (1e-3, 1e-2, 1e-1)
"""Shares of a row's weight that may be spread evenly: the smallest that leaves few partners."""
# Partners per row that count as few: keeping more costs more than it gains.
PARTNERS = 256
# Up to this many rows a dense matrix costs no more than a sparse one and is exact.
DENSE_ROWS = 1024

# Rows sampled to estimate how many partners count.
SAMPLE = 256

OmegaOfRows = Callable[[slice], Tensor]
"""ω (rows, m) of a range of rows."""


class FixedAverage:
    """Ŝ V for values (m, e), where Ŝ (n, m) is a constant."""

    def average(self, value: Tensor) -> Tensor:
        """Σ_j Ŝ_ij v_j (n, e); differentiable in the values."""
        raise NotImplementedError

    def block(self, rows: slice) -> FixedAverage:
        """The same for a range of the n rows."""
        raise NotImplementedError


@dataclass(frozen=True)
class Order:
    """An order of rows in which those with large weights between them are close together.

    A sparse product then finds the states it needs in the caches: for a million rows in groups it
    takes a quarter of its time for the same rows in random order.
    """

    row: Tensor  # the row at each place
    place: Tensor  # the place of each row

    @classmethod
    def by(cls, group: Tensor) -> Order:
        """The order in which rows of one group are adjacent, for the group (n,) of each row."""
        row = torch.argsort(group, stable=True)
        return cls(row, torch.argsort(row))

    def sort(self, rows: Tensor) -> Tensor:
        """The rows in this order; differentiable."""
        return _Moved.apply(rows, self.row, self.place)

    def restore(self, placed: Tensor) -> Tensor:
        """The rows as they were before `sort`; differentiable."""
        return _Moved.apply(placed, self.place, self.row)


class _Moved(torch.autograd.Function):
    """Rows in another order, their gradients back; `index_select` would scatter these."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, there: Tensor, back: Tensor) -> Tensor:
        ctx.there, ctx.back = there, back
        return rows.index_select(0, there)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return _Moved.apply(grads[0], ctx.back, ctx.there), None, None


@dataclass(frozen=True)
class FixedWeights(FixedAverage):
    """Ŝ itself: a dense matrix, or its large entries and what is left of each row."""

    matrix: SparseMatrix | Tensor  # (n, m); in `order`, if there is one
    rest: Tensor | None = None  # (n, 1): the share of each row that is spread evenly
    offset: Tensor | None = None  # (n, 1) by which the rows were calibrated, where they were
    missed: float = 0.0  # the mean share of a row's weight that the search for partners missed
    order: Order | None = None  # of the sparse matrix's columns
    ordered_rows: bool = True  # whether its rows are in that order, too

    def average(self, value: Tensor) -> Tensor:
        if isinstance(self.matrix, Tensor):
            return (self.matrix @ value.to(self.matrix.dtype)).to(value.dtype)
        out = self.matrix @ (value if self.order is None else self.order.sort(value))
        if self.order is not None and self.ordered_rows:
            out = self.order.restore(out)
        return out if self.rest is None else torch.addcmul(out, self.rest, value.mean(0))

    def block(self, rows: slice) -> FixedWeights:
        if isinstance(self.matrix, Tensor):
            return FixedWeights(self.matrix[rows])
        rest = None if self.rest is None else self.rest[rows]
        order = self.order if self.ordered_rows else None
        matrix = self.matrix[rows if order is None else order.place[rows]]
        return FixedWeights(matrix, rest, order=self.order, ordered_rows=False)


@dataclass(frozen=True)
class FixedLandmarks(FixedAverage):
    """Z Λ⁻¹ Zᵀ V in two sparse products: rows to landmarks and back."""

    assigned: SparseMatrix  # Z (m, l) of the rows that are averaged
    scale: Tensor  # Λ⁻¹ (l, 1)
    asking: SparseMatrix | None = None  # Z (n, l) of the rows that receive it; None: the same

    def average(self, value: Tensor) -> Tensor:
        there = SparseMatrix(self.assigned.transpose, self.assigned.csr)
        back = self.assigned if self.asking is None else self.asking
        return back @ ((there @ value) * self.scale.to(value.dtype))

    def block(self, rows: slice) -> FixedLandmarks:
        return replace(self, asking=self.assigned[rows])


def keep_partners(omega: OmegaOfRows, own: slice, n: int) -> FixedWeights:
    """Rows `own` of Ŝ (n, n) from ω, in tiles: dense up to `DENSE_ROWS`, else sparse.

    The dropped share of a row's mass is at most the smallest value in `LOST` for which a sample of
    rows keeps `PARTNERS` partners on average; it is spread evenly, so each row still sums to one.
    """
    if n <= DENSE_ROWS:
        return FixedWeights(_normalised(omega(own)))
    size = chunk_rows(n)
    share = _affordable(omega, n, size)
    held = own.stop - own.start
    counts: list[Tensor] = []
    columns: list[Tensor] = []
    values: list[Tensor] = []
    rest: list[Tensor] = []
    for rows in list(tiles(held, size)) or [slice(0, 0)]:
        weights = _normalised(omega(slice(own.start + rows.start, own.start + rows.stop)))
        kept = weights > _threshold(weights, share)
        counts.append(kept.sum(-1))
        columns.append(kept.nonzero()[:, 1].int())
        values.append(weights[kept])
        rest.append((weights * ~kept).sum(-1, keepdim=True))
    row = torch.repeat_interleave(torch.cat(counts))
    matrix = SparseMatrix.from_sorted(row, torch.cat(columns), torch.cat(values), (held, n))
    return FixedWeights(matrix, torch.cat(rest))


def keep_pairs(omega: Tensor, columns: Tensor, order: Order) -> FixedWeights:
    """Ŝ (n, n) from ω (n, k) of some pairs, their columns (n, k) distinct in each row.

    As in `keep_partners` the small entries of a row, at most the largest share in `LOST` of its
    mass, are spread evenly over all rows.
    """
    weights = _normalised(omega)
    kept = weights > _threshold(weights, LOST[-1])
    rest = (weights * ~kept).sum(-1, keepdim=True)
    columns, sorting = order.place[columns].sort(-1)
    kept, weights, n = kept.gather(1, sorting), weights.gather(1, sorting), omega.shape[0]
    kept, weights, columns = (rows[order.row] for rows in (kept, weights, columns))
    row = torch.repeat_interleave(kept.sum(-1))
    matrix = SparseMatrix.from_sorted(row, columns[kept].int(), weights[kept], (n, n))
    return FixedWeights(matrix, rest, order=order)


def _affordable(omega: OmegaOfRows, n: int, size: int) -> float:
    """The smallest share of `LOST` that leaves few partners, judged by a range of rows."""
    size = min(size, SAMPLE)
    start = max(0, (n - size) // 2)
    weights = _normalised(omega(slice(start, min(n, start + size))))
    for share in LOST[:-1]:
        kept = weights > _threshold(weights, share)
        if float(kept.sum()) <= PARTNERS * weights.shape[0]:
            return share
    return LOST[-1]


def _normalised(omega: Tensor) -> Tensor:
    return omega / omega.sum(-1, keepdim=True)


def _threshold(weights: Tensor, share: float) -> Tensor:
    """(n, 1): a weight such that the entries of a row not above it sum to at most `share`.

    Found by bisection: share / 4 may still drop too much, share / m never does.
    """
    level = torch.full_like(weights[:, :1], share / 4)
    while True:
        lost = (weights * (weights <= level)).sum(-1, keepdim=True)
        over = lost > share
        if not bool(over.any()):
            return level
        level = torch.where(over, level / 2, level)

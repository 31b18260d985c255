"""Averages whose weights are fixed: Ŝ is computed once, then one product per layer.

Where rows are compared by their input features, Ŝ is the same in every layer and epoch. With a
sharp diffusivity few weights of a row are large, so Ŝ is kept as a sparse matrix of these, and the
small rest of a row's weight is spread evenly over all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import chunk_rows

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
class FixedWeights(FixedAverage):
    """Ŝ itself: a product of matrices, with what is left of each row spread evenly."""

    factors: tuple[SparseMatrix | Tensor, ...]
    ordered: bool = False  # whether the first and the last of three only reorder rows
    rest: Tensor | None = None  # (n, 1): the share of each row that is spread evenly
    offset: Tensor | None = None  # (n, 1) by which the rows were calibrated, where they were
    missed: float = 0.0  # the mean share of a row's weight that the search for partners missed

    def average(self, value: Tensor) -> Tensor:
        out = value
        for factor in reversed(self.factors):
            if isinstance(factor, Tensor):
                out = (factor @ out.to(factor.dtype)).to(out.dtype)
            else:
                out = factor @ out
        return out if self.rest is None else torch.addcmul(out, self.rest, value.mean(0))

    def block(self, rows: slice) -> FixedWeights:
        first, *others = self.factors
        if self.ordered and isinstance(first, SparseMatrix):
            chosen = first.coo[1][rows]
            first, *others = others[0][chosen], others[1]
        else:
            first = first[rows]
        rest = None if self.rest is None else self.rest[rows]
        return FixedWeights((first, *others), rest=rest)


def row_parts(own: slice, n: int) -> list[slice]:
    """Some rows in parts that have n scores per row; one part without rows if there are none."""
    size, stop = chunk_rows(n), max(own.stop, own.start + 1)
    return [slice(at, min(at + size, own.stop)) for at in range(own.start, stop, size)]


def keep_partners(omega: OmegaOfRows, own: slice, n: int) -> FixedWeights:
    """Rows `own` of Ŝ (n, n) from ω, in tiles: dense up to `DENSE_ROWS`, else sparse.

    The dropped share of a row's mass is at most the smallest value in `LOST` for which a sample of
    rows keeps `PARTNERS` partners on average; it is spread evenly, so each row still sums to one.
    """
    if n <= DENSE_ROWS:
        return FixedWeights((_normalised(omega(own)),))
    share = _affordable(omega, n)
    parts = ((omega(rows), None) for rows in row_parts(own, n))
    matrix, rest = _keep(parts, share, n)
    return FixedWeights((matrix,), rest=rest)


def keep_pairs(omega: Tensor, columns: Tensor, group: Tensor) -> FixedWeights:
    """Ŝ (n, n) from ω (n, k) of some pairs, their columns (n, k) distinct in each row.

    As in `keep_partners` the small entries of a row, at most the largest share in `LOST` of its
    mass, are spread evenly over all rows. Rows of one group (n,), which have large weights between
    them, are kept side by side: a product then finds the states it needs in the caches. For a
    million rows in groups it takes a quarter of its time for the same rows in random order.
    """
    row = torch.argsort(group, stable=True)
    place = torch.argsort(row)
    matrix, rest = _keep([(omega[row], place[columns[row]])], LOST[-1], len(row))
    ones, each = omega.new_ones(len(row)), torch.arange(len(row), device=row.device)
    order = SparseMatrix.from_sorted(each, row, ones, (len(row), len(row)))
    return FixedWeights((order.T, matrix, order), ordered=True, rest=rest[place])


def _keep(
    parts: Iterable[tuple[Tensor, Tensor | None]], share: float, m: int
) -> tuple[SparseMatrix, Tensor]:
    """The large weights (n, m) of rows, and the rest of each row, from parts of ω.

    With each part come the columns of its entries, or None where it has all of them in order.
    """
    counts: list[Tensor] = []
    columns: list[Tensor] = []
    values: list[Tensor] = []
    rest: list[Tensor] = []
    for omega, column in parts:
        weights = _normalised(omega)
        kept = weights > _threshold(weights, share)
        rest.append((weights * ~kept).sum(-1, keepdim=True))
        if column is not None:
            column, order = column.sort(-1)
            weights, kept = weights.gather(1, order), kept.gather(1, order)
        counts.append(kept.sum(-1))
        columns.append((kept.nonzero()[:, 1] if column is None else column[kept]).int())
        values.append(weights[kept])
    row = torch.repeat_interleave(torch.cat(counts))
    spread = torch.cat(rest)
    shape = (spread.shape[0], m)
    return SparseMatrix.from_sorted(row, torch.cat(columns), torch.cat(values), shape), spread


def _affordable(omega: OmegaOfRows, n: int) -> float:
    """The smallest share of `LOST` that leaves few partners, judged by a range of rows."""
    size = min(chunk_rows(n), SAMPLE)
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

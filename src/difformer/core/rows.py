"""Rows and pairs of rows: checks, segments, sums over pairs, cosines and nearest rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import chunk_rows, tiles


def check_finite(name: str, value: Tensor) -> None:
    """Raise if `value` (dense or sparse) holds NaN or infinity; one pass over the data."""
    stored = _stored(value)
    # A sum is one read without a temporary; only a non-finite one (or an overflow) is looked at.
    if bool(torch.isfinite(stored.sum())):
        return
    bad = ~torch.isfinite(stored)
    if bool(bad.any()):
        raise ValueError(
            f"{name} must be finite, got {int(bad.sum())} NaN or infinite values, "
            f"{'first ' if value.layout == torch.strided else ''}{_place(value, bad)}"
        )


def check_within(name: str, value: Tensor, limit: float) -> None:
    """Raise if a number of `value` (dense or sparse) lies beyond ±limit; one pass over the data."""
    stored = _stored(value)
    if stored.numel() == 0 or float(torch.linalg.vector_norm(stored, torch.inf)) <= limit:
        return
    bad = stored.abs() > limit
    raise ValueError(
        f"{name} must lie within ±{limit:.0e}, or its squares overflow: got "
        f"{float(stored[bad][0]):g} {_place(value, bad)}; scale the columns first"
    )


def _stored(value: Tensor) -> Tensor:
    return (value if value.layout == torch.strided else value.values()).detach()


def _place(value: Tensor, bad: Tensor) -> str:
    """Where the first bad entry is."""
    strided = value.layout == torch.strided
    return f"at {tuple(bad.nonzero()[0].tolist())}" if strided else "among stored values"


@dataclass(frozen=True)
class Segments:
    """Rows grouped by the graph they belong to, graphs of one size stacked together.

    Each group is an index (g, s) of g graphs with s rows: stacking equal sizes needs no padding,
    so there is nothing that could leak from one graph into another.
    """

    groups: tuple[Tensor, ...]  # each (g, s) int64
    num_rows: int
    contiguous: bool  # one group, rows in order: stacking is a view

    @classmethod
    def from_batch(cls, batch: Tensor, num_rows: int) -> Segments:
        """Group rows by `batch` (n,), the id of each row's graph, in any order; O(n log n)."""
        if batch.shape != (num_rows,):
            raise ValueError(f"batch must have shape ({num_rows},), got {tuple(batch.shape)}")
        if batch.is_floating_point() or batch.dtype == torch.bool:
            raise ValueError(f"batch must hold integers, got {batch.dtype}")
        order = torch.argsort(batch, stable=True)
        counts = torch.unique_consecutive(batch[order], return_counts=True)[1]
        starts = counts.cumsum(0) - counts
        groups: list[Tensor] = []
        for size in torch.unique(counts).tolist():
            first = starts[counts == size]
            within = torch.arange(size, device=batch.device)
            groups.append(order[first.unsqueeze(1) + within])
        in_order = torch.equal(order, torch.arange(num_rows, device=batch.device))
        return cls(tuple(groups), num_rows, len(groups) == 1 and in_order)

    def map(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Apply `function` to the rows of each graph separately; tensors (n, ...) -> (n, ...).

        `function` sees and returns (g, s, ...): a leading dimension of graphs, then rows.
        """
        if self.contiguous:
            shape = self.groups[0].shape
            out = function(*(t.reshape(*shape, *t.shape[1:]) for t in tensors))
            return out.flatten(0, 1)
        parts = [function(*(t[rows] for t in tensors)).flatten(0, 1) for rows in self.groups]
        order = torch.cat([rows.flatten() for rows in self.groups])
        return torch.cat(parts)[torch.argsort(order)]


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² (..., n, m), dense, never negative."""
    square = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
    return (square - 2 * (a @ b.mT)).clamp_min(0)


def total_of_squares(z: Tensor) -> Tensor:
    """Σ_ij ‖z_i − z_j‖² = 2 n Σ‖z‖² − 2 ‖Σz‖², in O(n d)."""
    return 2 * z.shape[0] * z.square().sum() - 2 * z.sum(0).square().sum()


# Rows sampled per landmark for k-means, and the most numbers it holds.
ROWS_PER_LANDMARK = 20
SAMPLE_NUMBERS = 2**26
LLOYD_STEPS = 10
SEED = 0


@overload
def unit_rows(x: Tensor) -> Tensor: ...
@overload
def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix: ...
def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Rows scaled to unit length; a zero row stays zero."""
    if isinstance(x, SparseMatrix):
        return x.unit_rows()
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


def score_rows(asking: Tensor | SparseMatrix, rows: Tensor | SparseMatrix) -> Tensor:
    """x_i·y_j (m, n), new, for some rows x (m, p) and rows y (n, p), both dense or both sparse."""
    if isinstance(rows, SparseMatrix):
        return (rows @ asking.to_dense().T).T.contiguous()
    return asking.to_dense() @ rows.T


def landmark_sample(n: int, p: int, count: int) -> Tensor:
    """The rows, of n with width p, that `make_landmarks` is given: sorted, always the same."""
    size = max(count, min(ROWS_PER_LANDMARK * count, SAMPLE_NUMBERS // max(1, p)))
    if n <= size:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:size].sort().values


@torch.no_grad()
def make_landmarks(rows: Tensor, count: int) -> Tensor:
    """At most `count` unit landmarks (m, p) for the rows (n, p), by k-means with cosine distance.

    Drawn by k-means++ with a separate generator, then moved by some of Lloyd's steps. With at most
    `count` rows, each row is a landmark.
    """
    unit = unit_rows(rows)
    unit = unit[unit.square().sum(-1) > 0]
    if unit.shape[0] == 0:
        return unit_rows(torch.ones_like(rows[:1]))
    if unit.shape[0] <= count:
        return unit
    generator = torch.Generator().manual_seed(SEED)
    chosen = [int(torch.randint(unit.shape[0], (1,), generator=generator))]
    gap = torch.full_like(unit[:, 0], math.inf)  # 1 − cosine to the nearest landmark
    for _ in range(count - 1):
        gap = torch.minimum(gap, (1 - unit @ unit[chosen[-1]]).clamp_min_(1e-12))
        at = torch.rand((), generator=generator, dtype=torch.float64).to(gap) * gap.sum()
        chosen.append(min(int(torch.searchsorted(gap.cumsum(0), at)), unit.shape[0] - 1))
    landmarks = unit[chosen]
    for _ in range(LLOYD_STEPS):
        parts = tiles(unit.shape[0], chunk_rows(count))
        nearest = torch.cat([(unit[part] @ landmarks.T).argmax(1) for part in parts])
        total = torch.zeros_like(landmarks).index_add_(0, nearest, unit)
        lost = total.square().sum(-1, keepdim=True) == 0
        landmarks = unit_rows(torch.where(lost, landmarks, total))
    return landmarks


# Cells whose rows a row is compared with.
PROBES = 24


@dataclass(frozen=True)
class NearRows:
    """For each row the rows found nearest to it, itself included, nearest first."""

    score: Tensor  # (n, k) cosines; -inf where fewer were found
    row: Tensor  # (n, k) int64
    cell: Tensor  # (n,) int64: the cell that each row lies in


@torch.no_grad()
def near_rows(rows: Tensor | SparseMatrix, k: int, probes: int = PROBES) -> NearRows:
    """The k nearest rows (n, p) of each by cosine, among those of the cells nearest to it.

    With as many probes as cells it is exact.
    """
    n = rows.shape[0]
    cells = max(1, round(math.sqrt(n)))
    centres = make_landmarks(rows[landmark_sample(n, rows.shape[1], cells)].to_dense(), cells)
    unit = unit_rows(rows)
    probes = min(probes, centres.shape[0])
    parts = tiles(n, chunk_rows(centres.shape[0]))
    near = torch.cat([(unit[part] @ centres.T).topk(probes, dim=1).indices for part in parts])
    members = _grouped(near[:, :1], centres.shape[0])
    values = unit.values if isinstance(unit, SparseMatrix) else unit
    score = values.new_full((n, k), -math.inf)
    found = torch.zeros(n, k, dtype=torch.int64, device=values.device)
    # First each row's own cell: it has most of the near rows, and of the others few are nearer.
    for asked in (near[:, :1], near[:, 1:]):
        for known, asks in zip(members, _grouped(asked, centres.shape[0]), strict=True):
            if known.numel() == 0:
                continue
            among = unit[known].to_dense().T.contiguous()
            for mine in asks.split(chunk_rows(known.numel())):
                scores = unit[mine].to_dense() @ among
                better = (scores.amax(1) > score[mine, -1]).nonzero().squeeze(1)
                mine = mine[better]
                best = scores[better].topk(min(k, known.numel()), dim=1)
                both = torch.cat([score[mine], best.values], dim=1)
                kept = both.topk(k, dim=1)
                rows_found = torch.cat([found[mine], known[best.indices]], dim=1)
                score[mine], found[mine] = kept.values, rows_found.gather(1, kept.indices)
    return NearRows(score, found, near[:, 0])


def _grouped(cells: Tensor, count: int) -> tuple[Tensor, ...]:
    """For each cell the rows of cells (n, c) that name it."""
    order = torch.argsort(cells.reshape(-1), stable=True)
    sizes = torch.bincount(cells.reshape(-1), minlength=count)
    return (order // cells.shape[1]).split(sizes.tolist())


# Most rows need five steps; bisection bounds the number for all.
STEPS = 100
# Traced code cannot stop early; this many steps suffice for the sharpness values in use.
TRACED_STEPS = 24
# Exported code starts from the score of the last partner, as untraced code does, and needs fewer.
EXPORTED_STEPS = 4  # and one for each unit of the sharpness' square root
# Halvings of a width's logarithm, from 42 down to the last digits.
WIDTH_STEPS = 50
ROUNDING = 8  # times the precision: what may be left of the squared distance of equal rows
_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # missing in PyTorch 2.6


def offsets_for_reach(scores: Tensor, sharpness: float, reach: float) -> Tensor:
    """t (..., n, 1) with Σ_j σ(s (c_ij − t_i)) = reach, for scores c (..., n, m): O(n m) per step.

    A reach of m or more includes every row. A row's offset depends on its own scores alone, to the
    last bit: a row that has converged does not change again.
    """
    m = scores.shape[-1]
    count = torch.full((), m, dtype=torch.float64, device=scores.device)
    share = (reach / count).clamp_max(1 - 1e-9)
    wanted = (share * count).log().to(scores.dtype)
    # All scores alike at the smallest, or at the largest, bound the offset from both sides.
    shift = (share.logit() / sharpness).to(scores.dtype)
    low = scores.amin(-1, keepdim=True) - shift
    high = scores.amax(-1, keepdim=True) - shift
    traced = torch.compiler.is_compiling()
    exported = _exporting() and isinstance(m, int)  # not where the rows may vary in number
    steps = TRACED_STEPS if traced else STEPS
    if exported:
        steps = EXPORTED_STEPS + math.ceil(math.sqrt(sharpness))
    offset = (low + high) / 2
    if exported or not traced:
        if scores.dtype == torch.float64 and not traced:  # most of the way at half the cost
            near = offsets_for_reach(scores.float(), sharpness, reach).to(scores)
        else:  # the score of the last partner
            near = scores.topk(max(1, min(m, round(reach))), dim=-1).values[..., -1:]
        offset = torch.minimum(torch.maximum(near, low), high)
    tiny = torch.finfo(scores.dtype).tiny
    tolerance = torch.finfo(scores.dtype).eps ** 0.75  # of the mass; its sum rounds off the rest
    done = torch.zeros_like(offset, dtype=torch.bool)
    before = torch.full_like(offset, math.inf)
    for _ in range(steps):
        omega = (scores - offset).mul_(sharpness).sigmoid_()
        mass = omega.sum(-1, keepdim=True)
        slope = (mass - omega.square_().sum(-1, keepdim=True)) * sharpness  # −∂mass/∂t
        error = mass.clamp_min(tiny).log() - wanted
        done = done | (error.abs() <= tolerance) | (high <= low)
        if not traced and bool(done.all()):
            break
        above = error > 0  # too many partners: the offset must grow
        low, high = torch.where(above, offset, low), torch.where(above, high, offset)
        # Newton on the logarithm, which is nearly straight where few partners are left; halving
        # where that leaves the bracket or does not at least halve the error.
        moved = offset + error * mass / slope.clamp_min(tiny)
        newton = (moved > low) & (moved < high) & (error.abs() <= before / 2)
        before = error.abs()
        offset = torch.where(done, offset, torch.where(newton, moved, (low + high) / 2))
    return offset


def widths_for_reach(square: Tensor, size: Tensor, reach: float) -> Tensor:
    """b (..., n, 1) with Σ_j exp(−d²_ij / (2 b_i²)) = reach, for squared distances (..., n, m).

    By halving in the logarithm of 1/(2 b²). Where no width gives a row this reach, the result is
    the largest or the smallest width tried. `size` (..., n, 1) is the squared length of the row
    and of the longest other: distances within its rounding count as zero, and no width is smaller.
    """
    limits = torch.finfo(square.dtype)
    size = size.clamp_min(limits.tiny**0.5)  # rows of zeros have a size, and no width underflows
    noise = ROUNDING * limits.eps * size
    square = torch.where(square > noise, square, 0.0)
    farthest = square.amax(-1, keepdim=True)
    scale = torch.where(farthest > 0, farthest, size)
    low = torch.full_like(scale, math.log(1e-6))  # of d²max / (2 b²)
    high = torch.full_like(scale, math.log(1e12))
    relative = square / scale
    for _ in range(WIDTH_STEPS):
        middle = (low + high) / 2
        over = torch.exp(-relative * middle.exp()).sum(-1, keepdim=True) > reach
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return torch.maximum(scale / (2 * low.exp()), noise).sqrt()

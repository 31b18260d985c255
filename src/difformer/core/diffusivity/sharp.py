"""The sharp diffusivity: a sigmoid steep enough to cut off far pairs, at an offset per row."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.diffusivity.base import Diffusivity, check_positive
from difformer.core.diffusivity.given import AtRows
from difformer.core.diffusivity.plain import Sigmoid
from difformer.core.fixed import FixedWeights, Order, keep_pairs, keep_partners
from difformer.core.rows import NearRows, near_rows, score_rows, unit_rows
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import (
    SIGMOID_FLOOR,
    by_rows,
    chunk_rows,
    tiles,
)

# Up to this many rows all pairs are compared once: some minutes on one core.
EXACT_ROWS = 60_000
# Rows searched for each row beyond, per partner it is to have.
SEARCHED = 4
# Rows whose weights to all others are computed, to estimate what the search has missed.
CHECKED = 256


class Sharp(Sigmoid):
    """ω_ij = σ(s (q̃_i·k̃_j − (t_i + t_j)/2)): far pairs are cut off; O(n m d) time, O(n + m) memory.

    s is the sharpness; t_i an offset per row such that Σ_j σ(s (q̃_i·k̃_j − t_i)) = reach, a
    constant for the gradient. Prepared rows are (..., n, d + 1): the unit row, then its offset.

    For a fixed t, f(z²) = σ(s (1 − t) − s z²/2) and
    δ(z²) = (2/s) (softplus(s (1 − t)) − softplus(s (1 − t) − s z²/2)).

    Args:
        sharpness: s.
        reach: how many partners a row has; with None every offset is `offset` and no column is
            added.
        exact_rows: up to how many rows `fixed` compares all pairs; beyond, near ones (`near_rows`).
        offset: t where it is not calibrated, and in `f` and `delta`.
    """

    name = "sharp"
    prepares = True
    knobs = ("sharpness", "reach", "exact_rows")

    def __init__(
        self,
        sharpness: float = 40.0,
        reach: float | None = 10.0,
        exact_rows: int = EXACT_ROWS,
        *,
        offset: float = 0.0,
    ) -> None:
        check_positive(sharpness=sharpness, reach=reach)
        self.sharpness, self.reach, self.offset = sharpness, reach, offset
        self.exact_rows = exact_rows
        self.scale: Tensor | float = 1.0
        self.shift: Tensor | float = 0.0

    def tuned(self, scale: Tensor, shift: Tensor) -> Sharp:
        """This diffusivity with sharpness s · scale and offsets t_i + shift, both learned scalars.

        Offsets are calibrated at s as before, so a scale of one and a shift of zero change nothing.
        """
        tuned = copy.copy(self)
        tuned.scale, tuned.shift = scale, shift
        return tuned

    @property
    def steepness(self) -> Tensor | float:
        """s times the learned factor."""
        return self.sharpness * self.scale

    def f(self, z2: Tensor) -> Tensor:
        return self._f(z2, z2.new_tensor(self.offset))

    def delta(self, z2: Tensor) -> Tensor:
        return self._delta(z2, z2.new_tensor(self.offset))

    def at(self, states: Tensor) -> Diffusivity:
        if self.reach is None:
            return self
        unit = unit_rows(states)
        offset = self.offsets(unit, unit)
        return AtRows(self, offset, lambda a, b: (a + b) / 2, self._f, self._delta)

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        tied = q is k
        q = unit_rows(q)
        k = q if tied else unit_rows(k)
        if self.reach is None:
            return q, k
        # Known rows may already be prepared, with their offset as last column.
        against = k if known is None else unit_rows(known[..., : q.shape[-1]])
        offset = self.offsets(q, against)
        q = torch.cat([q, offset], dim=-1)
        return q, q if tied else torch.cat([k, offset], dim=-1)

    def prepared_by(self, rows: Tensor, offset: Tensor) -> Tensor:
        """What `prepare` gives for rows (n, d) whose offsets (n, 1) are known already."""
        return torch.cat([unit_rows(rows), offset], dim=-1)

    @torch.no_grad()
    def offsets(self, q: Tensor, k: Tensor) -> Tensor:
        """t (..., n, 1) of unit queries (..., n, d) among unit keys (..., m, d), in row tiles."""
        assert self.reach is not None
        reach = self.reach
        return by_rows(
            lambda rows: offsets_for_reach(rows @ k.mT, self.sharpness, reach), q, k.shape[-2]
        )

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        # s (q̃·k̃ − (t_i + t_j)/2) = [s q̃, −s t_i/2, 1] · [k̃, 1, −s t_j/2]
        s = self.steepness
        if self.reach is None:
            offset = self.offset + self.shift
            if isinstance(s, float) and offset == 0:
                return (q if s == 1.0 else s * q), k
            shift = torch.ones_like(q[..., :1]) * (-s * offset)
            return torch.cat([s * q, shift], -1), F.pad(k, (0, 1), value=1.0)
        a, b = (q[..., -1:] + self.shift) * (-s / 2), (k[..., -1:] + self.shift) * (-s / 2)
        left = torch.cat([s * q[..., :-1], a, torch.ones_like(a)], dim=-1)
        return left, torch.cat([k[..., :-1], torch.ones_like(b), b], dim=-1)

    def fixed(self, rows: Tensor | SparseMatrix, known: Tensor | None = None) -> FixedWeights:
        if rows.shape[0] > self.exact_rows and self.reach is not None:
            return self.fixed_near(rows)
        return self.fixed_rows(rows, slice(0, rows.shape[0]))

    @torch.no_grad()
    def fixed_near(self, rows: Tensor | SparseMatrix) -> FixedWeights:
        """Ŝ of the rows found near each other, calibrated among these; O(n^1.5 p) time.

        What is missed of a row's weights, as a mean over some rows compared with all, is kept with
        it (`FixedWeights.missed`).
        """
        assert self.reach is not None
        k = min(rows.shape[0], max(1, round(SEARCHED * self.reach)))
        near = near_rows(rows, k)
        t = offsets_for_reach(near.score.clamp_min(-2), self.sharpness, self.reach)
        pair = (t + t.squeeze(-1)[near.row]) / 2
        omega = torch.sigmoid((near.score - pair) * self.sharpness) + SIGMOID_FLOOR
        omega = torch.where(near.score.isinf(), 0.0, omega)
        kept = keep_pairs(omega, near.row, Order.by(near.cell))
        return replace(kept, offset=t, missed=self._missed(rows, near, t))

    def _missed(self, rows: Tensor | SparseMatrix, near: NearRows, t: Tensor) -> float:
        """The mean share of a row's exact weight, at these offsets, outside the found rows."""
        n, unit = rows.shape[0], unit_rows(rows)
        chosen = torch.linspace(0, n - 1, min(n, CHECKED)).long()
        share: list[Tensor] = []
        for part in chosen.split(chunk_rows(n)):
            scores = score_rows(unit[part], unit)
            omega = torch.sigmoid((scores - (t[part] + t.mT) / 2) * self.sharpness)
            found = omega.gather(1, near.row[part]) * near.score[part].isfinite()
            share.append(1 - found.sum(1) / omega.sum(1))
        return float(torch.cat(share).mean())

    @torch.no_grad()
    def fixed_rows(
        self, rows: Tensor | SparseMatrix, own: slice, offset: Tensor | None = None
    ) -> FixedWeights:
        """The rows `own` of Ŝ; `offset` (n, 1) those of all rows, where they are known already."""
        t = self.fixed_offsets(rows, slice(0, rows.shape[0])) if offset is None else offset
        unit = unit_rows(rows)

        def omega(part: slice) -> Tensor:
            scores = score_rows(unit[part], unit).sub_((t[part] + t.mT) / 2)
            return scores.mul_(self.sharpness).sigmoid_().add_(SIGMOID_FLOOR)

        kept = keep_partners(omega, own, rows.shape[0])
        return kept if self.reach is None else replace(kept, offset=t)

    @torch.no_grad()
    def fixed_offsets(self, rows: Tensor | SparseMatrix, own: slice) -> Tensor:
        """The offsets (own, 1) of a range of rows among all of them, in row tiles."""
        unit, n = unit_rows(rows), rows.shape[0]
        values = unit.values if isinstance(unit, SparseMatrix) else unit
        if self.reach is None:
            return values.new_full((own.stop - own.start, 1), self.offset)
        parts = [values.new_empty(0, 1)]
        for part in tiles(own.stop - own.start, chunk_rows(n)):
            part = slice(own.start + part.start, own.start + part.stop)
            scores = score_rows(unit[part], unit)
            parts.append(offsets_for_reach(scores, self.sharpness, self.reach))
        return torch.cat(parts)

    def _f(self, z2: Tensor, offset: Tensor) -> Tensor:
        return torch.sigmoid(self.steepness * (1 - offset - self.shift - z2 / 2))

    def _delta(self, z2: Tensor, offset: Tensor) -> Tensor:
        s = self.steepness
        top = s * (1 - offset - self.shift)
        return (F.softplus(top) - F.softplus(top - z2 * (s / 2))) * (2 / s)

    def __repr__(self) -> str:
        near = "" if self.exact_rows == EXACT_ROWS else f", exact_rows={self.exact_rows}"
        return f"{type(self).__name__}(sharpness={self.sharpness:g}, reach={self.reach}{near})"


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

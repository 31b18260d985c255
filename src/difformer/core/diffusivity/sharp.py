"""Diffusivities that cut off far pairs, each row calibrated by how many partners it has."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, LandmarkSums, Pairs
from difformer.core.diffusivity.plain import Diffusivity, Sigmoid, check_positive, softmax_average
from difformer.core.fixed import FixedWeights, keep_pairs, keep_partners, row_parts
from difformer.core.rows import (
    NearRows,
    near_rows,
    offsets_for_reach,
    score_rows,
    squared_distances,
    unit_rows,
    widths_for_reach,
)
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import SIGMOID_FLOOR, by_rows, chunk_rows, tiles

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
        reach: how many partners a row has.
        exact_rows: up to how many rows `fixed` compares all pairs; beyond, near ones (`near_rows`).
        offset: t in `f` and `delta` where it is not calibrated.
    """

    name = "sharp"
    prepares = True
    knobs = ("sharpness", "reach", "exact_rows")

    def __init__(
        self,
        sharpness: float = 40.0,
        reach: float = 10.0,
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

    def f(self, z2: Tensor, offset: Tensor | None = None) -> Tensor:
        return torch.sigmoid(self.steepness * (1 - self._offset(z2, offset) - z2 / 2))

    def delta(self, z2: Tensor, offset: Tensor | None = None) -> Tensor:
        s = self.steepness
        top = s * (1 - self._offset(z2, offset))
        return (F.softplus(top) - F.softplus(top - z2 * (s / 2))) * (2 / s)

    def _offset(self, z2: Tensor, offset: Tensor | None) -> Tensor:
        return (z2.new_tensor(self.offset) if offset is None else offset) + self.shift

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return (a + b) / 2

    def calibrated(self, states: Tensor) -> Tensor:
        return self.offsets(unit_rows(states), unit_rows(states))

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        tied = q is k
        q = unit_rows(q)
        k = q if tied else unit_rows(k)
        # Known rows may already be prepared, with their offset as last column.
        offset = self.offsets(q, k if known is None else unit_rows(known[..., : q.shape[-1]]))
        q = torch.cat([q, offset], dim=-1)
        return q, q if tied else torch.cat([k, offset], dim=-1)

    @torch.no_grad()
    def offsets(self, q: Tensor, k: Tensor) -> Tensor:
        """t (..., n, 1) of unit queries (..., n, d) among unit keys (..., m, d), in row tiles."""
        return by_rows(lambda rows: self._offsets_of(rows @ k.mT), q, k.shape[-2])

    def _offsets_of(self, scores: Tensor) -> Tensor:
        return offsets_for_reach(scores, self.sharpness, self.reach)

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        # s (q̃·k̃ − (t_i + t_j)/2) = [s q̃, −s t_i/2, 1] · [k̃, 1, −s t_j/2]
        s = self.steepness
        a, b = (q[..., -1:] + self.shift) * (-s / 2), (k[..., -1:] + self.shift) * (-s / 2)
        left = torch.cat([s * q[..., :-1], a, torch.ones_like(a)], dim=-1)
        return left, torch.cat([k[..., :-1], torch.ones_like(b), b], dim=-1)

    @torch.no_grad()
    def fixed(self, rows: Tensor | SparseMatrix, known: Tensor | None = None) -> FixedWeights:
        if rows.shape[0] > self.exact_rows:
            return self._fixed_near(rows)
        own = slice(0, rows.shape[0])
        return self.fixed_rows(rows, own, self.fixed_offsets(rows, own))

    def _fixed_near(self, rows: Tensor | SparseMatrix) -> FixedWeights:
        """Ŝ of the rows found near each other, calibrated among these; O(n^1.5 p) time.

        What is missed of a row's weights, as a mean over some rows compared with all, is kept with
        it (`FixedWeights.missed`).
        """
        k = min(rows.shape[0], max(1, round(SEARCHED * self.reach)))
        near = near_rows(rows, k)
        t = self._offsets_of(near.score.clamp_min(-2))
        pair = (t + t.squeeze(-1)[near.row]) / 2
        omega = torch.sigmoid((near.score - pair) * self.sharpness) + SIGMOID_FLOOR
        omega = torch.where(near.score.isinf(), 0.0, omega)
        kept = keep_pairs(omega, near.row, near.cell)
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
    def fixed_rows(self, rows: Tensor | SparseMatrix, own: slice, offset: Tensor) -> FixedWeights:
        """The rows `own` of Ŝ from the offsets (n, 1) of all rows."""
        unit = unit_rows(rows)

        def omega(part: slice) -> Tensor:
            scores = score_rows(unit[part], unit).sub_((offset[part] + offset.mT) / 2)
            return scores.mul_(self.sharpness).sigmoid_().add_(SIGMOID_FLOOR)

        return replace(keep_partners(omega, own, rows.shape[0]), offset=offset)

    @torch.no_grad()
    def fixed_offsets(self, rows: Tensor | SparseMatrix, own: slice) -> Tensor:
        """The offsets (own, 1) of a range of rows among all of them, in row tiles."""
        unit = unit_rows(rows)
        parts = row_parts(own, rows.shape[0])
        return torch.cat([self._offsets_of(score_rows(unit[part], unit)) for part in parts])

    def __repr__(self) -> str:
        near = "" if self.exact_rows == EXACT_ROWS else f", exact_rows={self.exact_rows}"
        return f"{type(self).__name__}(sharpness={self.sharpness:g}, reach={self.reach}{near})"


class Gaussian(Diffusivity):
    """Ablation "kernel": ω = exp(−s ‖q − k‖² / 2) with sharpness s; O(n + m) memory.

    With a `reach`, ω_ij = exp(−s ‖q_i − k_j‖² / (2 b_i b_j)) with a width b_i per row, such that
    Σ_j exp(−‖q_i − k_j‖² / (2 b_i²)) = reach: as sharp as the data is dense, a constant for the
    gradient; s above one then leaves fewer partners. Prepared rows are (..., n, d + 1): the row,
    and its width.

    f(z²) = exp(−s z² / 2), δ(z²) = (2/s) (1 − e^{−s z² / 2}) where there is no reach.

    Args:
        sharpness: s; 1/b² for a bandwidth b.
        reach: how many partners a row has at s = 1, itself included; None for no widths.
    """

    name = "gaussian"
    knobs = ("sharpness", "reach")

    def __init__(self, sharpness: float = 1.0, reach: float | None = None) -> None:
        check_positive(sharpness=sharpness)
        if reach is not None and not reach > 1:
            raise ValueError(f"reach must be above 1, the row itself, got {reach!r}")
        self.sharpness, self.reach, self.prepares = sharpness, reach, reach is not None

    def f(self, z2: Tensor, square: Tensor | float = 1.0) -> Tensor:
        return torch.exp(z2 * (-self.sharpness / 2) / square)

    def delta(self, z2: Tensor, square: Tensor | float = 1.0) -> Tensor:
        return torch.expm1(z2 * (-self.sharpness / 2) / square) * square * (-2 / self.sharpness)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def calibrated(self, states: Tensor) -> Tensor | None:
        return None if self.reach is None else self.prepare(states, states)[0][:, -1:]

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        reach = self.reach
        if reach is None:
            return q, k
        against = k if known is None else known[..., : q.shape[-1]]

        def widths(rows: Tensor) -> Tensor:
            size = rows.square().sum(-1, keepdim=True) + longest
            return widths_for_reach(squared_distances(rows, against), size, reach)

        with torch.no_grad():
            longest = against.square().sum(-1, keepdim=True).amax(-2, keepdim=True)
            width = by_rows(widths, q, against.shape[-2])
        left = torch.cat([q, width], dim=-1)
        return left, left if q is k else torch.cat([k, width], dim=-1)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        if self.reach is None:
            return self.f(squared_distances(q, k))
        a, b = self._factors(q, k)
        return torch.exp((a @ b.mT).clamp_max(0))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        a, b = self._factors(q, k)
        return torch.softmax(a @ b.mT, dim=-1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        a, b = self._factors(q, context.key)
        return softmax_average(a, b, context.value, 1.0)

    def _factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rows whose products are the scores, up to a constant per query, which cancels."""
        root = self.sharpness**0.5
        if self.reach is None:
            a, b = q * root, k * root
            half = b.square().sum(-1, keepdim=True) / -2
            return torch.cat([a, torch.ones_like(a[..., :1])], -1), torch.cat([b, half], -1)
        (q, k), (one, other) = (q[..., :-1], k[..., :-1]), (root / q[..., -1:], root / k[..., -1:])
        a = torch.cat([q * one, q.square().sum(-1, keepdim=True) * one / -2, one], dim=-1)
        return a, torch.cat([k * other, other, k.square().sum(-1, keepdim=True) * other / -2], -1)

    def __repr__(self) -> str:
        reach = "" if self.reach is None else f", reach={self.reach:g}"
        return f"Gaussian(sharpness={self.sharpness:g}{reach})"


class Landmarks(Diffusivity):
    """W = Z Λ⁻¹ Zᵀ, Λ = diag(Zᵀ1), Z the sharp weights of rows to m landmarks; O(n m d) time.

    Z_il ∝ σ(s (q̃_i·ℓ̃_l − t_i)) with t_i such that row i has `reach` landmarks by weight; the
    `reach` largest are kept and sum to one. W is symmetric, doubly stochastic and positive
    semi-definite. Prepared rows are those of Z, (..., n, m); the context is ZᵀV and Zᵀ1, which add.
    It does not depend on the states' distances, so it has no f: its energy is quadratic.
    """

    name = "landmarks"
    prepares = True
    anchored = True
    knobs = ("sharpness", "reach")

    def __init__(self, sharpness: float = 40.0, reach: float = 3.0) -> None:
        check_positive(sharpness=sharpness, reach=reach)
        self.sharpness, self.reach = sharpness, reach

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows of Z (..., n, m) for the landmarks `known` (..., m, d), which must be given."""
        if known is None:
            raise ValueError("known must be given: rows are compared with landmarks")
        value, index = self._largest(unit_rows(q) @ unit_rows(known).mT)
        z = value.new_zeros(*value.shape[:-1], known.shape[-2]).scatter(-1, index, value)
        return z, z

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        mass = k.sum(-2, keepdim=True)
        return (q / torch.where(mass > 0, mass, math.inf)) @ k.mT

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> LandmarkSums:
        return LandmarkSums(value=k.mT @ v, mass=k.sum(-2).unsqueeze(-1))

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, LandmarkSums)
        used = context.mass > 0  # a landmark with no rows near it has no influence
        mean = context.value / torch.where(used, context.mass, math.inf)
        return (q @ mean) / (q @ used.to(q.dtype)).clamp_min(torch.finfo(q.dtype).tiny)

    @torch.no_grad()
    def fixed(self, rows: Tensor | SparseMatrix, known: Tensor | None = None) -> FixedWeights:
        """Z made once, a few numbers per row; an average is three sparse products."""
        assert known is not None
        n, unit = rows.shape[0], unit_rows(known).T.contiguous()
        found = [
            self._largest(unit_rows(rows[part]) @ unit)
            for part in tiles(n, chunk_rows(known.shape[0]))
        ]
        value, column = (torch.cat(each) for each in zip(*found, strict=True))
        column, order = column.sort(-1)
        value = value.gather(-1, order).reshape(-1)
        row = torch.arange(n, device=column.device).repeat_interleave(column.shape[1])
        column = column.reshape(-1)
        count, each = known.shape[0], torch.arange(known.shape[0], device=column.device)
        z = SparseMatrix.from_sorted(row, column, value, (n, count))
        mass = value.new_zeros(count).index_add_(0, column, value)
        scale = torch.where(mass > 0, 1 / mass, 0.0)
        return FixedWeights(
            (z, SparseMatrix.from_sorted(each, each, scale, (count, count), True), z.T)
        )

    def _largest(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The largest weights of each row, summing to one, and their landmarks."""
        with torch.no_grad():
            offset = offsets_for_reach(scores, self.sharpness, self.reach)
        kept = max(1, min(scores.shape[-1], math.ceil(self.reach)))
        best = scores.topk(kept, dim=-1)
        omega = torch.sigmoid((best.values - offset) * self.sharpness)
        return omega / omega.sum(-1, keepdim=True), best.indices

    def __repr__(self) -> str:
        return f"Landmarks(sharpness={self.sharpness:g}, reach={self.reach:g})"

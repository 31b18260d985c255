"""The sharp diffusivity: a sigmoid steep enough to cut off far pairs, at an offset per row."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.diffusivity.at_rows import AtRows
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.diffusivity.reach import offsets_for_reach
from difformer.core.diffusivity.sigmoid import Sigmoid
from difformer.core.fixed import FixedWeights, keep_partners
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import CHUNK_SCORES, SIGMOID_FLOOR, tiles
from difformer.errors import DifformerError

# Up to this many rows all pairs are compared once: some minutes on one core.
EXACT_ROWS = 60_000

__all__ = ["Sharp", "score_rows", "unit_rows"]


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
        offset: t where it is not calibrated, and in `f` and `delta`.
        unit: scale rows to unit length. Without, s = 1 and t = 0 is the sigmoid of DIFFormer-a.
    """

    name = "sharp"
    knobs = ("sharpness", "reach")

    def __init__(
        self,
        sharpness: float = 40.0,
        reach: float | None = 10.0,
        *,
        offset: float = 0.0,
        unit: bool = True,
    ) -> None:
        for name, value in (("sharpness", sharpness), ("reach", reach)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
        self.sharpness, self.reach, self.offset, self.unit = sharpness, reach, offset, unit
        self.scale: Tensor | float = 1.0
        self.shift: Tensor | float = 0.0

    prepares = True

    def tuned(self, scale: Tensor, shift: Tensor) -> Sharp:
        """This diffusivity with sharpness s · scale and offsets t_i + shift, both learned scalars.

        Offsets are calibrated at s as before, so a scale of one and a shift of zero change nothing.
        """
        tuned = copy.copy(self)
        tuned.scale, tuned.shift = scale, shift
        return tuned

    @property
    def steepness(self) -> Tensor | float:
        """s, tuned."""
        return self.sharpness * self.scale

    def f(self, z2: Tensor) -> Tensor:
        return self._f(z2, z2.new_tensor(self.offset))

    def delta(self, z2: Tensor) -> Tensor:
        return self._delta(z2, z2.new_tensor(self.offset))

    def at(self, states: Tensor) -> Diffusivity:
        if self.reach is None:
            return self
        unit = unit_rows(states) if self.unit else states
        offset = self.offsets(unit, unit)
        return AtRows(self, offset, lambda a, b: (a + b) / 2, self._f, self._delta)

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        tied = q is k
        if self.unit:
            q = unit_rows(q)
            k = q if tied else unit_rows(k)
        if self.reach is None:
            return q, k
        # Known rows may already be prepared, with their offset as last column.
        against = k if known is None else known[..., : q.shape[-1]]
        if known is not None and self.unit:
            against = unit_rows(against)
        offset = self.offsets(q, against)
        q = torch.cat([q, offset], dim=-1)
        return q, q if tied else torch.cat([k, offset], dim=-1)

    def prepared_by(self, rows: Tensor, offset: Tensor) -> Tensor:
        """What `prepare` gives for rows (n, d) whose offsets (n, 1) are known already."""
        return torch.cat([unit_rows(rows) if self.unit else rows, offset], dim=-1)

    @torch.no_grad()
    def offsets(self, q: Tensor, k: Tensor) -> Tensor:
        """t (..., n, 1) of unit queries (..., n, d) among unit keys (..., m, d), in row tiles."""
        assert self.reach is not None
        size = max(1, CHUNK_SCORES // max(1, q.shape[:-2].numel() * k.shape[-2]))
        if torch.compiler.is_compiling() or q.shape[-2] <= size:
            return offsets_for_reach(q @ k.mT, self.sharpness, self.reach)
        parts = [
            offsets_for_reach(q[..., rows, :] @ k.mT, self.sharpness, self.reach)
            for rows in tiles(q.shape[-2], size)
        ]
        return torch.cat(parts, dim=-2)

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
        if rows.shape[0] > EXACT_ROWS:
            raise DifformerError(
                f"kernel {self.name!r} compares every pair of up to {EXACT_ROWS} rows, got "
                f"{rows.shape[0]}: take kernel 'landmarks', or train in batches"
            )
        return self.fixed_rows(rows, slice(0, rows.shape[0]))

    @torch.no_grad()
    def fixed_rows(
        self, rows: Tensor | SparseMatrix, own: slice, offset: Tensor | None = None
    ) -> FixedWeights:
        """The rows `own` of Ŝ; `offset` (n, 1) those of all rows, where they are known already."""
        t = self.fixed_offsets(rows, slice(0, rows.shape[0])) if offset is None else offset
        unit = unit_rows(rows) if self.unit else rows

        def omega(part: slice) -> Tensor:
            scores = score_rows(unit, part).sub_((t[part] + t.mT) / 2)
            return scores.mul_(self.sharpness).sigmoid_().add_(SIGMOID_FLOOR)

        kept = keep_partners(omega, own, rows.shape[0])
        return kept if self.reach is None else replace(kept, offset=t)

    @torch.no_grad()
    def fixed_offsets(self, rows: Tensor | SparseMatrix, own: slice) -> Tensor:
        """The offsets (own, 1) of a range of rows among all of them, in row tiles."""
        rows, n = unit_rows(rows) if self.unit else rows, rows.shape[0]
        values = rows.values if isinstance(rows, SparseMatrix) else rows
        if self.reach is None:
            return values.new_full((own.stop - own.start, 1), self.offset)
        parts = [values.new_empty(0, 1)]
        for part in tiles(own.stop - own.start, max(1, CHUNK_SCORES // n)):
            part = slice(own.start + part.start, own.start + part.stop)
            parts.append(offsets_for_reach(score_rows(rows, part), self.sharpness, self.reach))
        return torch.cat(parts)

    def _f(self, z2: Tensor, offset: Tensor) -> Tensor:
        return torch.sigmoid(self.steepness * (1 - offset - self.shift - z2 / 2))

    def _delta(self, z2: Tensor, offset: Tensor) -> Tensor:
        s = self.steepness
        top = s * (1 - offset - self.shift)
        return (F.softplus(top) - F.softplus(top - z2 * (s / 2))) * (2 / s)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sharpness={self.sharpness:g}, reach={self.reach})"


@overload
def unit_rows(x: Tensor) -> Tensor: ...
@overload
def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix: ...
def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Rows scaled to unit length; a zero row stays zero."""
    if isinstance(x, SparseMatrix):
        return x.unit_rows()
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


def score_rows(rows: Tensor | SparseMatrix, part: slice) -> Tensor:
    """x_i·x_j (part, n), new, for a range of the rows and all of them."""
    if isinstance(rows, SparseMatrix):
        return rows.matmul(rows.block(part).csr.to_dense().T).T.contiguous()
    return rows[part] @ rows.T

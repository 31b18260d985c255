"""The sharp diffusivity: a sigmoid steep enough to cut off far pairs, at an offset per row."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.cosine import score_rows, unit_rows
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.diffusivity.given import AtRows
from difformer.core.diffusivity.reach import offsets_for_reach
from difformer.core.diffusivity.sigmoid import Sigmoid
from difformer.core.fixed import FixedWeights, Order, keep_pairs, keep_partners
from difformer.core.near import NearRows, near_rows
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import SIGMOID_FLOOR, by_rows, chunk_rows, tiles

# Up to this many rows all pairs are compared once: some minutes on one core.
EXACT_ROWS = 60_000
# Rows searched for each row beyond, per partner it is to have.
SEARCHED = 4
# Rows whose weights to all others are computed, to estimate what the search has missed.
CHECKED = 256

__all__ = ["Sharp"]


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
        for name, value in (("sharpness", sharpness), ("reach", reach)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}")
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

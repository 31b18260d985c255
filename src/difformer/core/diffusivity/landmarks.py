"""The landmark diffusivity: rows interact through a few hundred landmarks, in linear time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from difformer.core.context import Context, LandmarkSums
from difformer.core.diffusivity.base import Diffusivity, check_positive
from difformer.core.diffusivity.sharp import offsets_for_reach
from difformer.core.fixed import FixedLandmarks
from difformer.core.rows import unit_rows
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import chunk_rows, tiles


class Landmarks(Diffusivity):
    """W = Z Λ⁻¹ Zᵀ, Λ = diag(Zᵀ1), Z the sharp weights of rows to m landmarks; O(n m d) time.

    Z_il ∝ σ(s (q̃_i·ℓ̃_l − t_i)) with t_i such that row i has `reach` landmarks by weight; the
    `reach` largest are kept and sum to one. W is symmetric, doubly stochastic and positive
    semi-definite. Prepared rows are those of Z, (..., n, m); the context is ZᵀV and Zᵀ1, which add.
    It does not depend on the states' distances, so it has no f: its energy is quadratic.
    """

    name = "landmarks"
    separable = True
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
    def fixed(self, rows: Tensor | SparseMatrix, known: Tensor | None = None) -> FixedLandmarks:
        """Z made once, a few numbers per row; an average is then two sparse products."""
        assert known is not None
        n, unit = rows.shape[0], unit_rows(known).T.contiguous()
        columns: list[Tensor] = []
        values: list[Tensor] = []
        for part in tiles(n, chunk_rows(unit.shape[1])):
            value, index = self._largest(unit_rows(rows[part]) @ unit)
            index, order = index.sort(-1)
            columns.append(index.int())
            values.append(value.gather(-1, order))
        column, value = torch.cat(columns), torch.cat(values)
        row = torch.arange(n, device=column.device).repeat_interleave(column.shape[1])
        shape = (n, unit.shape[1])
        z = SparseMatrix.from_sorted(row, column.reshape(-1), value.reshape(-1), shape)
        mass = value.new_zeros(unit.shape[1], 1)
        mass.index_add_(0, column.reshape(-1).long(), value.reshape(-1, 1))
        return FixedLandmarks(z, torch.where(mass > 0, 1 / mass, 0.0))

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

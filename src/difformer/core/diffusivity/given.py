"""Pairs whose weights are given: the energy of a layer that does not compare its states."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.core.diffusivity.base import Diffusivity
from difformer.core.pairs import PAIR_CHUNK, squared_distances
from difformer.core.tiled import tiles

__all__ = ["GivenPairs"]


class GivenPairs(Diffusivity):
    """ω_ij of a diffusivity between given rows, whatever the states: δ_ij(z²) = ω_ij z².

    The energy is then quadratic in the states. Costs O(n² d), in row tiles.
    """

    name = "given"

    def __init__(self, kernel: Diffusivity, q: Tensor, k: Tensor) -> None:
        """q, k (h, n, ·) prepared queries and keys; ω is the mean over heads."""
        self.kernel, self.q, self.k = kernel, q, k

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.omega(q, k)

    def pair_penalty(self, z: Tensor) -> Tensor:
        total = z.new_zeros(())
        for rows in self._tiles(z):
            total = total + (self._rows(rows) * squared_distances(z[rows], z)).sum()
        return total

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        pull, mass = torch.empty_like(z), torch.empty_like(z[:, :1])
        for rows in self._tiles(z):
            omega = self._rows(rows).to(z)
            pull[rows], mass[rows] = omega @ z, omega.sum(-1, keepdim=True)
        return pull, mass

    def _tiles(self, z: Tensor) -> list[slice]:
        return list(tiles(z.shape[0], max(1, PAIR_CHUNK // (z.shape[0] * self.q.shape[0]))))

    def _rows(self, rows: slice) -> Tensor:
        return self.kernel.omega(self.q[:, rows], self.k).mean(0)

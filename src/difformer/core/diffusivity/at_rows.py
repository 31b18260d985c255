"""A diffusivity with a number per row, such as an offset or a width, at given states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.core.diffusivity.base import Diffusivity
from difformer.core.pairs import PAIR_CHUNK, squared_distances
from difformer.core.tiled import tiles

__all__ = ["AtRows"]

OfPairs = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False, repr=False)
class AtRows(Diffusivity):
    """ω_ij = f(‖z_i − z_j‖², a_ij) with a_ij joined from both rows; sums over pairs in O(n² d).

    Args:
        kernel: the diffusivity that the rows' numbers come from.
        row: (n, 1), a number per row, a constant while the states move.
        join: a_ij from those of rows i and j; symmetric.
        f_of, delta_of: f and δ of squared distances and a_ij.
    """

    kernel: Diffusivity
    row: Tensor
    join: OfPairs
    f_of: OfPairs
    delta_of: OfPairs

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.omega(q, k)

    def pair_penalty(self, z: Tensor) -> Tensor:
        total = z.new_zeros(())
        for _, z2, pair in self._pairs(z):
            total = total + self.delta_of(z2, pair).sum()
        return total

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        pull, mass = torch.empty_like(z), torch.empty_like(z[:, :1])
        for rows, z2, pair in self._pairs(z):
            omega = self.f_of(z2, pair)
            pull[rows], mass[rows] = omega @ z, omega.sum(-1, keepdim=True)
        return pull, mass

    def _pairs(self, z: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows of a tile, their squared distances to all rows, and the numbers of the pairs."""
        row = self.row.to(z)
        for rows in tiles(z.shape[0], max(1, PAIR_CHUNK // z.shape[0])):
            yield rows, squared_distances(z[rows], z), self.join(row[rows], row.mT)

"""Diffusivities of given rows: the energy where ω_ij is more than a function of the distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from difformer.core.diffusivity.base import Diffusivity
from difformer.core.rows import pull_and_mass, squared_distances, total_over_pairs

OfPairs = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False, repr=False)
class AtRows(Diffusivity):
    """ω_ij = f(‖z_i − z_j‖², a_ij) with a_ij joined from both rows; sums over pairs in O(n² d).

    Args:
        kernel: the diffusivity that the rows' numbers come from.
        row: (n, 1), one number per row, such as an offset or a width; constant while the states
            move.
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
        return total_over_pairs(lambda rows: self._of(self.delta_of, z, rows), z)

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return pull_and_mass(lambda rows: self._of(self.f_of, z, rows), z)

    def _of(self, function: OfPairs, z: Tensor, rows: slice) -> Tensor:
        row = self.row.to(z)
        return function(squared_distances(z[rows], z), self.join(row[rows], row.mT))


@dataclass(eq=False, repr=False)
class GivenPairs(Diffusivity):
    """ω_ij of a diffusivity between given rows, whatever the states: δ_ij(z²) = ω_ij z².

    The energy is then quadratic in the states. Costs O(n² d), in row tiles.

    Args:
        kernel: the diffusivity.
        q, k: (h, n, ·) prepared queries and keys; ω is the mean over heads.
    """

    kernel: Diffusivity
    q: Tensor
    k: Tensor

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.omega(q, k)

    def pair_penalty(self, z: Tensor) -> Tensor:
        return total_over_pairs(
            lambda rows: self._omega(rows) * squared_distances(z[rows], z), z, self.q.shape[0]
        )

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return pull_and_mass(lambda rows: self._omega(rows).to(z), z, self.q.shape[0])

    def _omega(self, rows: slice) -> Tensor:
        return self.kernel.omega(self.q[:, rows], self.k).mean(0)

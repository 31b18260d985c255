"""Diffusivities of given rows: the energy where ω_ij is more than a function of the distance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from difformer.core.diffusivity.base import Diffusivity
from difformer.core.rows import squared_distances

OfPairs = Callable[[Tensor, Tensor], Tensor]


@dataclass(eq=False, repr=False)
class AtRows(Diffusivity):
    """ω_ij = f(‖z_i − z_j‖², a_ij) with a_ij joined from both rows.

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

    def omega_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.f_of(squared_distances(z[rows], z), self._pairs(z, rows))

    def delta_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.delta_of(squared_distances(z[rows], z), self._pairs(z, rows))

    def _pairs(self, z: Tensor, rows: slice) -> Tensor:
        row = self.row.to(z)
        return self.join(row[rows], row.mT)


class GivenPairs(Diffusivity):
    """ω_ij of a diffusivity between given rows, whatever the states: δ_ij(z²) = ω_ij z².

    The energy is then quadratic in the states.

    Args:
        kernel: the diffusivity.
        q, k: (h, n, ·) prepared queries and keys; ω is the mean over heads.
    """

    def __init__(self, kernel: Diffusivity, q: Tensor, k: Tensor) -> None:
        self.kernel, self.q, self.k, self.matrices = kernel, q, k, q.shape[0]

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.omega(q, k)

    def omega_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.kernel.omega(self.q[:, rows], self.k).mean(0).to(z)

    def delta_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.omega_at(z, rows) * squared_distances(z[rows], z)

"""Sums over all pairs of states for a function of their squared distance: exact, in row tiles.

The fallback for diffusivities without a closed form: O(n² d) time, bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from difformer.core.tiled import tiles

__all__ = [
    "PAIR_CHUNK",
    "pull_and_mass",
    "squared_distances",
    "total_of_squares",
    "total_over_pairs",
]

PAIR_CHUNK = 2**22  # pairs looked at together

OfSquare = Callable[[Tensor], Tensor]


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² (..., n, m), dense, never negative."""
    square = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
    return (square - 2 * (a @ b.mT)).clamp_min(0)


def total_of_squares(z: Tensor) -> Tensor:
    """Σ_ij ‖z_i − z_j‖² = 2 n Σ‖z‖² − 2 ‖Σz‖², in O(n d)."""
    return 2 * z.shape[0] * z.square().sum() - 2 * z.sum(0).square().sum()


def total_over_pairs(delta: OfSquare, z: Tensor) -> Tensor:
    """Σ_ij δ(‖z_i − z_j‖²) over all ordered pairs of z (n, d): a scalar."""
    total = z.new_zeros(())
    for rows in tiles(z.shape[0], max(1, PAIR_CHUNK // z.shape[0])):
        total = total + delta(squared_distances(z[rows], z)).sum()
    return total


def pull_and_mass(f: OfSquare, z: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j ω_ij z_j (n, d) and Σ_j ω_ij (n, 1) with ω_ij = f(‖z_i − z_j‖²)."""
    pull, mass = torch.empty_like(z), torch.empty_like(z[:, :1])
    for rows in tiles(z.shape[0], max(1, PAIR_CHUNK // z.shape[0])):
        omega = f(squared_distances(z[rows], z))
        pull[rows] = omega @ z
        mass[rows] = omega.sum(-1, keepdim=True)
    return pull, mass

"""Sums over all pairs of states: exact, in row tiles, O(n² d) time and bounded memory.

The fallback for diffusivities without a closed form.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from difformer.core.tiled import chunk_rows, tiles

__all__ = ["pull_and_mass", "squared_distances", "total_of_squares", "total_over_pairs"]

OfRows = Callable[[slice], Tensor]
"""A number for each pair of a range of rows with all rows, (rows, n)."""


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖a_i − b_j‖² (..., n, m), dense, never negative."""
    square = a.square().sum(-1, keepdim=True) + b.square().sum(-1).unsqueeze(-2)
    return (square - 2 * (a @ b.mT)).clamp_min(0)


def total_of_squares(z: Tensor) -> Tensor:
    """Σ_ij ‖z_i − z_j‖² = 2 n Σ‖z‖² − 2 ‖Σz‖², in O(n d)."""
    return 2 * z.shape[0] * z.square().sum() - 2 * z.sum(0).square().sum()


def total_over_pairs(delta: OfRows, z: Tensor, heads: int = 1) -> Tensor:
    """Σ_ij δ_ij over all ordered pairs of z (n, d): a scalar. `heads` matrices are held at once."""
    total = z.new_zeros(())
    for rows in tiles(z.shape[0], chunk_rows(z.shape[0] * heads)):
        total = total + delta(rows).sum()
    return total


def pull_and_mass(omega: OfRows, z: Tensor, heads: int = 1) -> tuple[Tensor, Tensor]:
    """Σ_j ω_ij z_j (n, d) and Σ_j ω_ij (n, 1). `heads` matrices are held at once."""
    pull, mass = torch.empty_like(z), torch.empty_like(z[:, :1])
    for rows in tiles(z.shape[0], chunk_rows(z.shape[0] * heads)):
        weights = omega(rows)
        pull[rows], mass[rows] = weights @ z, weights.sum(-1, keepdim=True)
    return pull, mass

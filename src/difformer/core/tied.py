"""The sigmoid average where queries and keys are equal: every tile of scores is used twice.

    out_i = Σ_j ω_ij v_j / Σ_j ω_ij,   ω_ij = σ(z_i·z_j) = ω_ji

Only tiles on and above the diagonal are made, so scores and sigmoids cost half as much, forward and
backward; memory is O(n), as in `tiled`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from difformer.core.tiled import (
    COLUMN_TILE,
    HALF,
    ROW_TILE,
    SIGMOID_FLOOR,
    in_tiles,
    rows_with_gradient,
    sigmoid_sums_backward,
    sigmoid_tile,
    tiles,
)

__all__ = ["are_tied", "tied_sigmoid_average"]


def are_tied(q: Tensor, k: Tensor) -> bool:
    """Whether queries and keys are the same tensor, and large enough to share scores."""
    if not in_tiles(q, k) or q.shape != k.shape or q.shape[:-2].numel() != 1 or q.dtype in HALF:
        return False
    return q.data_ptr() == k.data_ptr() and q.stride() == k.stride()


def tied_sigmoid_average(z: Tensor, v: Tensor) -> Tensor:
    """Σ_j σ(z_i·z_j) v_j / Σ_j σ(z_i·z_j), exact: z (..., n, d), v (..., n, e) -> (..., n, e)."""
    # Heads share the weights, so their values stand side by side as columns.
    lead, (n, e) = v.shape[:-2], v.shape[-2:]
    out = _TiedSigmoidAverage.apply(z.reshape(n, -1), v.reshape(-1, n, e).mT.reshape(-1, n).mT)
    return out.mT.reshape(-1, e, n).mT.reshape(*lead, n, e)


class _TiedSigmoidAverage(torch.autograd.Function):
    """With g_i = ∂out_i / mass_i, c_i = g_i · out_i and t_ij = g_i·v_j − c_i + g_j·v_i − c_j:

    ∂v_j = Σ_i ω_ij g_i,   ∂z_i = Σ_j t_ij ω_ij (1 − ω_ij) z_j   (z_i as query and as key).
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, v: Tensor) -> Tensor:
        z, v = z.contiguous(), v.contiguous()
        n = z.shape[0]
        out = (SIGMOID_FLOOR * v.sum(0)).expand(n, -1).contiguous()
        mass = z.new_full((n, 1), SIGMOID_FLOOR * n)
        buffer = z.new_empty(_tile_size(n))
        # The other side is accumulated transposed: a product with a transposed tile is slower.
        v_t, out_t = v.mT.contiguous(), v.new_zeros(v.shape[1], n)
        for rows, columns in _upper_tiles(n):
            omega = sigmoid_tile(z[rows], z[columns], buffer)
            out[rows].addmm_(omega, v[columns])
            mass[rows].add_(omega.sum(1, keepdim=True))
            if columns.start != rows.start:
                out_t[:, columns].addmm_(v_t[:, rows], omega)
                mass[columns].add_(omega.sum(0).unsqueeze(1))
        out.add_(out_t.mT).div_(mass)
        ctx.save_for_backward(z, v, out, mass)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        z, v, out, mass = ctx.saved_tensors
        n = z.shape[0]
        g = grads[0] / mass
        left = torch.cat([g, -(g * out).sum(1, keepdim=True)], dim=1)
        right = torch.cat([v, v.new_ones(n, 1)], dim=1)
        dz = torch.zeros_like(z)
        dv = (SIGMOID_FLOOR * g.sum(0)).expand(n, -1).contiguous()
        # A pair needs a gradient at one end: if few rows have one, these alone are fewer tiles.
        if 2 * len(rows_with_gradient(left)) < n:
            sigmoid_sums_backward(z, z, left, right, dz, dz, dv)
            return dz, dv
        # [left, right]_i · [right, left]_j is t_ij: one product for both directions of a pair.
        forth, back = torch.cat([left, right], dim=1), torch.cat([right, left], dim=1)
        z_t, g_t = z.mT.contiguous(), g.mT.contiguous()
        dz_t, dv_t = torch.zeros_like(z_t), torch.zeros_like(g_t)
        buffer, other = z.new_empty(_tile_size(n)), z.new_empty(_tile_size(n))
        for rows, columns in _upper_tiles(n):
            z_columns = z[columns]
            omega = sigmoid_tile(z[rows], z_columns, buffer)
            slope = other[: omega.numel()].view(omega.shape)
            torch.mm(forth[rows], back[columns].mT, out=slope)
            torch.ops.aten.sigmoid_backward.grad_input(slope, omega, grad_input=slope)
            dv[rows].addmm_(omega, g[columns])
            dz[rows].addmm_(slope, z_columns)
            if columns.start != rows.start:
                dv_t[:, columns].addmm_(g_t[:, rows], omega)
                dz_t[:, columns].addmm_(z_t[:, rows], slope)
        return dz.add_(dz_t.mT), dv.add_(dv_t.mT)


def _upper_tiles(n: int) -> Iterator[tuple[slice, slice]]:
    """Tiles that cover each unordered pair of rows once: a square on the diagonal, then strips."""
    for rows in tiles(n, ROW_TILE):
        yield rows, rows
        for strip in tiles(n - rows.stop, COLUMN_TILE):
            yield rows, slice(rows.stop + strip.start, rows.stop + strip.stop)


def _tile_size(n: int) -> int:
    return min(n, ROW_TILE) * min(n, max(ROW_TILE, COLUMN_TILE))

"""Exact all-pair averages in tiles, for diffusivities that do not separate: O(n + m) memory.

    out_i = Σ_j ω_ij v_j / Σ_j ω_ij

Nothing of size n × m is ever stored. The backward pass recomputes each tile, and only for the rows
whose average has a gradient: in the last layer of a model these are the rows of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# A tile of scores is a megabyte, and so is its gradient: small enough for the cache, and large
# enough for fast products and few calls, at each of which threads synchronise.
TILE = 512
# Added to every sigmoid: where all of a row underflow, its average is uniform and not 0/0.
SIGMOID_FLOOR = 1e-30
# Up to this many scores per matrix, plain batched products beat a loop over tiles.
DENSE_SCORES = 2**16
# Numbers processed at a time: 8,192 rows of width 64 are two megabytes, so a handful of such
# buffers stays in the outer cache, and threads synchronise less often than with fewer rows.
CHUNK_NUMBERS = 2**19
# A GPU has no such cache and every call costs time: chunks there only bound the memory.
DEVICE_NUMBERS = 2**26
# Scores computed at a time where nothing is gained by keeping them in the cache.
CHUNK_SCORES = 2**22

HALF = (torch.bfloat16, torch.float16)


def tiles(length: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover range(length)."""
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))


def row_tiles(x: Tensor) -> Iterator[slice]:
    """Slices of the rows of x (n, d): a CPU's cache holds one, a GPU is kept busy."""
    return tiles(x.shape[0], rows_at_once(x))


def rows_at_once(x: Tensor) -> int:
    """How many rows of x (n, d) are processed together."""
    numbers = CHUNK_NUMBERS if x.device.type == "cpu" else DEVICE_NUMBERS
    return max(1, numbers // max(1, x.shape[1]))


def chunk_rows(columns: int) -> int:
    """How many rows, each with `columns` scores, are processed together."""
    return max(1, CHUNK_SCORES // max(1, columns))


def by_rows(function: Callable[[Tensor], Tensor], q: Tensor, columns: int) -> Tensor:
    """function(q) (..., n, e) for q (..., n, d), in chunks of rows with `columns` scores each.

    Traced code takes all rows at once.
    """
    size = chunk_rows(q.shape[:-2].numel() * columns)
    if torch.compiler.is_compiling() or q.shape[-2] <= size:
        return function(q)
    parts = [function(q[..., rows, :]) for rows in tiles(q.shape[-2], size)]
    return torch.cat(parts, dim=-2)


def average_by_rows(
    weights: Callable[[Tensor, Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """weights(q, k) @ v computing the n × m weights only a few rows at a time.

    q (..., n, d), k (..., m, d), v (..., m, e) -> (..., n, e).
    """

    def part(rows: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return weights(rows, k) @ v

    size = chunk_rows(q.shape[:-2].numel() * k.shape[-2])
    if q.shape[-2] <= size:
        return part(q, k, v)
    parts = [
        checkpoint(part, q[..., rows, :], k, v, use_reentrant=False)
        for rows in tiles(q.shape[-2], size)
    ]
    return torch.cat(parts, dim=-2)


def in_tiles(q: Tensor, k: Tensor) -> bool:
    """Whether scores of q and k are computed tile by tile rather than all at once."""
    return _many(q, k) and not q.is_cuda


def _many(q: Tensor, k: Tensor) -> bool:
    # Tracing cannot follow a loop over tiles, nor branch on a dynamic number of rows.
    return not torch.compiler.is_compiling() and q.shape[-2] * k.shape[-2] > DENSE_SCORES


def sigmoid_average(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Σ_j σ(q_i·k_j) v_j / Σ_j σ(q_i·k_j), exact, in O(n m d) time and O(n + m) memory.

    q (..., n, d), k (..., m, d), v (..., m, e) -> (..., n, e).
    """
    if not _many(q, k):
        omega = torch.sigmoid(q @ k.mT) + SIGMOID_FLOOR
        return (omega @ v) / omega.sum(-1, keepdim=True)
    if q.is_cuda:
        return _sigmoid_flex(q, k, v)
    if q.dtype in HALF:
        return sigmoid_average(q.float(), k.float(), v.float()).to(q.dtype)
    if _scores_are_small(q, k):
        return _linear_average(q, k, v)
    return _SigmoidAverage.apply(q, k, v)


def _scores_are_small(q: Tensor, k: Tensor) -> bool:
    """Whether ½ + s/4 is σ(s) to the precision of the dtype, for all scores s = q_i·k_j. O(n + m).

    The next term of the series is s³/48. It is at most eps/4, half the distance of the numbers
    around ½, if |s|³ ≤ 12 eps, and |s| ≤ max ‖q‖ max ‖k‖. The slope of such a score is ¼ up to a
    share of s²/4, at most 3e-5 in single precision.
    """
    largest = [t.detach().square().sum(-1).max().sqrt() for t in (q, k)]
    return bool(largest[0] * largest[1] <= (12 * torch.finfo(q.dtype).eps) ** (1 / 3))


def _linear_average(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Σ_j (2 + s_ij) v_j / Σ_j (2 + s_ij), where ½ + s/4 is the sigmoid: O((n + m) d e) time."""
    total = 2 * v.sum(-2, keepdim=True) + q @ (k.mT @ v)
    return total / (2 * k.shape[-2] + q @ k.sum(-2).unsqueeze(-1))


class _SigmoidAverage(torch.autograd.Function):
    """The tiled forward, and the backward that recomputes tiles.

    With g_i = ∂out_i / mass_i and c_i = g_i · out_i:
        ∂v_j = Σ_i ω_ij g_i,   ∂s_ij = (g_i · v_j − c_i) ω_ij (1 − ω_ij),
        ∂q_i = Σ_j ∂s_ij k_j,  ∂k_j = Σ_i ∂s_ij q_i.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
        flat = [t.expand(*lead, *t.shape[-2:]).flatten(0, -3).contiguous() for t in (q, k, v)]
        out, mass = sigmoid_sums(*flat)
        out.div_(mass)
        ctx.save_for_backward(*flat, out, mass)
        ctx.shapes = (q.shape, k.shape, v.shape)
        return out.view(*lead, *out.shape[-2:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, mass = ctx.saved_tensors
        grad = grads[0].reshape(out.shape)
        scaled = grad / mass
        # [g_i, −c_i]·[v_j, 1] is g_i·v_j − c_i: the correction rides along in the same product.
        left = torch.cat([scaled, -(scaled * out).sum(-1, keepdim=True)], dim=-1)
        right = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)
        dq, dk = torch.zeros_like(q), torch.zeros_like(k)
        dv = (SIGMOID_FLOOR * scaled.sum(-2, keepdim=True)).expand(v.shape).contiguous()
        for b in range(q.shape[0]):
            sigmoid_sums_backward(q[b], k[b], left[b], right[b], dq[b], dk[b], dv[b])
        lead = grads[0].shape[:-2]
        full = [t.view(*lead, *t.shape[-2:]) for t in (dq, dk, dv)]
        dq, dk, dv = (t.sum_to_size(s) for t, s in zip(full, ctx.shapes, strict=True))
        return dq, dk, dv


def rows_with_gradient(left: Tensor) -> Tensor:
    """Which rows of a gradient (n, e) are not zero."""
    return left.any(-1).nonzero().squeeze(-1)


def sigmoid_sums(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j ω_ij v_j (b, n, e) and Σ_j ω_ij (b, n, 1), in tiles; sums of sets of rows j add up."""
    (batch, n, _), m = q.shape, k.shape[1]
    out = (SIGMOID_FLOOR * v.sum(-2, keepdim=True)).expand(batch, n, v.shape[-1]).contiguous()
    mass = q.new_full((batch, n, 1), SIGMOID_FLOOR * m)
    buffer = q.new_empty(min(n, TILE) * min(m, TILE))
    for b in range(batch):
        for rows in tiles(n, TILE):
            q_tile, out_tile, mass_tile = q[b, rows], out[b, rows], mass[b, rows]
            for columns in tiles(m, TILE):
                omega = sigmoid_tile(q_tile, k[b, columns], buffer)
                out_tile.addmm_(omega, v[b, columns])
                mass_tile.add_(omega.sum(-1, keepdim=True))
    return out, mass


def sigmoid_sums_backward(
    q: Tensor, k: Tensor, left: Tensor, right: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
) -> None:
    """Add the contribution of these keys and values to dq, dk and dv.

    left (n, e + 1) is [g, −c] and right (m, e + 1) is [v, 1], in the letters of `_SigmoidAverage`.
    """
    some = rows_with_gradient(left)
    if len(some) < len(left):
        part = q.new_zeros(len(some), q.shape[1])
        sigmoid_sums_backward(q[some], k, left[some], right, part, dk, dv)
        dq.index_add_(0, some, part)
        return
    n, m = q.shape[0], k.shape[0]
    size = min(n, TILE) * min(m, TILE)
    buffer, other = q.new_empty(size), q.new_empty(size)
    # Sums over rows are accumulated transposed: a product with a transposed tile is a third slower.
    q_t, g_t = q.mT.contiguous(), left[:, :-1].mT.contiguous()
    dk_t, dv_t = q.new_zeros(k.shape[1], m), q.new_zeros(dv.shape[1], m)
    for rows in tiles(n, TILE):
        q_tile, left_tile, dq_tile = q[rows], left[rows], dq[rows]
        for columns in tiles(m, TILE):
            k_tile = k[columns]
            omega = sigmoid_tile(q_tile, k_tile, buffer)
            dv_t[:, columns].addmm_(g_t[:, rows], omega)
            slope = other[: omega.numel()].view(omega.shape)
            torch.mm(left_tile, right[columns].mT, out=slope)
            torch.ops.aten.sigmoid_backward.grad_input(slope, omega, grad_input=slope)
            dq_tile.addmm_(slope, k_tile)
            dk_t[:, columns].addmm_(q_t[:, rows], slope)
    dk.add_(dk_t.mT)
    dv.add_(dv_t.mT)


def sigmoid_tile(q: Tensor, k: Tensor, buffer: Tensor) -> Tensor:
    """σ(q kᵀ), written to the start of `buffer`."""
    scores = buffer[: q.shape[0] * k.shape[0]].view(q.shape[0], k.shape[0])
    torch.mm(q, k.mT, out=scores)
    return scores.sigmoid_()


def _sigmoid_flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same average as one fused attention: σ(s)/Σσ(s) = softmax(log σ(s))."""
    from torch.nn.attention.flex_attention import flex_attention

    def log_sigmoid(score: Tensor, *_: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(score)

    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    q4, k4, v4 = (t.expand(*lead, *t.shape[-2:]).flatten(0, -3).unsqueeze(0) for t in (q, k, v))
    attend = torch.compile(flex_attention) if q.is_cuda else flex_attention
    out = attend(q4, k4, v4, score_mod=log_sigmoid, scale=1.0)
    assert isinstance(out, Tensor)
    return out.view(*lead, *out.shape[-2:])


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
        buffer = z.new_empty(min(n, TILE) ** 2)
        # The other side is accumulated transposed: a product with a transposed tile is slower.
        v_t, out_t = v.mT.contiguous(), v.new_zeros(v.shape[1], n)
        for rows, columns in combinations_with_replacement(list(tiles(n, TILE)), 2):
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
        buffer, other = z.new_empty(min(n, TILE) ** 2), z.new_empty(min(n, TILE) ** 2)
        for rows, columns in combinations_with_replacement(list(tiles(n, TILE)), 2):
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

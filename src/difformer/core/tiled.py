"""Exact all-pair averages in tiles, for diffusivities that do not separate: O(n + m) memory.

    out_i = Σ_j ω_ij v_j / Σ_j ω_ij

Nothing of size n × m is ever stored. The backward pass recomputes each tile, and only for the rows
whose average has a gradient: in the last layer of a model these are the rows of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
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


def by_rows(function: Callable[..., Tensor], q: Tensor, columns: int, *others: Tensor) -> Tensor:
    """function(q, *others) (..., n, e) for q (..., n, d), in chunks of rows with `columns` scores.

    Each chunk is computed again for its gradient. Traced code takes all rows at once.
    """
    size = chunk_rows(q.shape[:-2].numel() * columns)
    if torch.compiler.is_compiling() or q.shape[-2] <= size:
        return function(q, *others)
    parts = [
        checkpoint(function, q[..., rows, :], *others, use_reentrant=False)
        for rows in tiles(q.shape[-2], size)
    ]
    return torch.cat(parts, dim=-2)


def _many(q: Tensor, k: Tensor) -> bool:
    """Whether scores of q and k are computed tile by tile rather than all at once."""
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
    if _are_tied(q, k):
        # Heads share the weights, so their values stand side by side as columns.
        lead, (n, e) = v.shape[:-2], v.shape[-2:]
        beside = v.reshape(-1, n, e).mT.reshape(1, -1, n).mT
        out = _SigmoidAverage.apply(q.reshape(1, n, -1), None, beside)
        return out.mT.reshape(-1, e, n).mT.reshape(*lead, n, e)
    if _scores_are_small(q, k):
        return _linear_average(q, k, v)
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    out = _SigmoidAverage.apply(*(t.expand(*lead, *t.shape[-2:]).flatten(0, -3) for t in (q, k, v)))
    return out.view(*lead, *out.shape[-2:])


def _are_tied(q: Tensor, k: Tensor) -> bool:
    """Whether queries and keys are the same tensor: a pair's score then serves both ways."""
    same = q.shape == k.shape and q.data_ptr() == k.data_ptr() and q.stride() == k.stride()
    return same and q.shape[:-2].numel() == 1


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
    """The tiled forward, and the backward that recomputes tiles; k is None where it is q.

    With g_i = ∂out_i / mass_i and c_i = g_i · out_i:
        ∂v_j = Σ_i ω_ij g_i,   ∂s_ij = (g_i · v_j − c_i) ω_ij (1 − ω_ij),
        ∂q_i = Σ_j ∂s_ij k_j,  ∂k_j = Σ_i ∂s_ij q_i.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor | None, v: Tensor) -> Tensor:
        q, v = q.contiguous(), v.contiguous()
        k = None if k is None else k.contiguous()
        out, mass = sigmoid_sums(q, k, v)
        out.div_(mass)
        ctx.save_for_backward(q, k, v, out, mass)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        q, k, v, out, mass = ctx.saved_tensors
        scaled = grads[0] / mass
        # [g_i, −c_i]·[v_j, 1] is g_i·v_j − c_i: the correction rides along in the same product.
        left = torch.cat([scaled, -(scaled * out).sum(-1, keepdim=True)], dim=-1)
        right = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], dim=-1)
        dq, dk = torch.zeros_like(q), None if k is None else torch.zeros_like(k)
        dv = (SIGMOID_FLOOR * scaled.sum(-2, keepdim=True)).expand(v.shape).contiguous()
        for b in range(q.shape[0]):
            key, dkey = (None, None) if k is None or dk is None else (k[b], dk[b])
            sigmoid_sums_backward(q[b], key, left[b], right[b], dq[b], dkey, dv[b])
        return dq, dk, dv


def sigmoid_sums(q: Tensor, k: Tensor | None, v: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_j ω_ij v_j (b, n, e) and Σ_j ω_ij (b, n, 1), in tiles; sums of sets of rows j add up.

    Where k is None it is q, and each tile serves both of its sides.
    """
    key = q if k is None else k
    (batch, n, _), m = q.shape, key.shape[1]
    out = (SIGMOID_FLOOR * v.sum(-2, keepdim=True)).expand(batch, n, v.shape[-1]).contiguous()
    mass = q.new_full((batch, n, 1), SIGMOID_FLOOR * m)
    buffer = q.new_empty(min(n, TILE) * min(m, TILE))
    for b in range(batch):
        # The other side is accumulated transposed: a product with a transposed tile is slower.
        v_t = None if k is not None else v[b].mT.contiguous()
        out_t = None if v_t is None else torch.zeros_like(v_t)
        for rows, columns in _tiles_of_pairs(n, m, tied=k is None):
            omega = sigmoid_tile(q[b, rows], key[b, columns], buffer)
            out[b, rows].addmm_(omega, v[b, columns])
            mass[b, rows].add_(omega.sum(-1, keepdim=True))
            if v_t is not None and out_t is not None and columns != rows:
                out_t[:, columns].addmm_(v_t[:, rows], omega)
                mass[b, columns].add_(omega.sum(0).unsqueeze(1))
        if out_t is not None:
            out[b].add_(out_t.mT)
    return out, mass


def sigmoid_sums_backward(
    q: Tensor,
    k: Tensor | None,
    left: Tensor,
    right: Tensor,
    dq: Tensor,
    dk: Tensor | None,
    dv: Tensor,
) -> None:
    """Add the contribution of these keys and values to dq, dk and dv.

    left (n, e + 1) is [g, −c] and right (m, e + 1) is [v, 1], in the letters of `_SigmoidAverage`.
    Where k is None it is q: a pair's ∂s_ij + ∂s_ji then goes to both of its rows.
    """
    key, dkey = q if k is None else k, dq if dk is None else dk
    some = left.any(-1).nonzero().squeeze(-1)
    # A pair needs a gradient at one end: if few rows have one, these alone are fewer tiles.
    if len(some) * (2 if k is None else 1) < len(left):
        part = q.new_zeros(len(some), q.shape[1])
        sigmoid_sums_backward(q[some], key, left[some], right, part, dkey, dv)
        dq.index_add_(0, some, part)
        return
    n, m, tied = q.shape[0], key.shape[0], k is None
    size = min(n, TILE) * min(m, TILE)
    buffer, other = q.new_empty(size), q.new_empty(size)
    g = left[:, :-1]
    if tied:  # [left, right]_i · [right, left]_j is ∂s_ij + ∂s_ji: one product for both
        g = g.contiguous()
        left, right = torch.cat([left, right], dim=1), torch.cat([right, left], dim=1)
    # Sums over rows are accumulated transposed: a product with a transposed tile is a third slower.
    q_t, g_t = q.mT.contiguous(), g.mT.contiguous()
    dk_t, dv_t = q.new_zeros(q.shape[1], m), q.new_zeros(g.shape[1], m)
    for rows, columns in _tiles_of_pairs(n, m, tied=tied):
        k_tile = key[columns]
        omega = sigmoid_tile(q[rows], k_tile, buffer)
        beyond = not tied or columns != rows
        if beyond:
            dv_t[:, columns].addmm_(g_t[:, rows], omega)
        if tied:
            dv[rows].addmm_(omega, g[columns])
        slope = other[: omega.numel()].view(omega.shape)
        torch.mm(left[rows], right[columns].mT, out=slope)
        torch.ops.aten.sigmoid_backward.grad_input(slope, omega, grad_input=slope)
        dq[rows].addmm_(slope, k_tile)
        if beyond:
            dk_t[:, columns].addmm_(q_t[:, rows], slope)
    dkey.add_(dk_t.mT)
    dv.add_(dv_t.mT)


def _tiles_of_pairs(n: int, m: int, *, tied: bool) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each tile; of a tile and its mirror image only one where it is tied."""
    rows, columns = list(tiles(n, TILE)), list(tiles(m, TILE))
    return combinations_with_replacement(rows, 2) if tied else product(rows, columns)


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

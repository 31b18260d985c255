"""-a over processes: keys and values go round the ring in blocks, queries stay where they are.

    out_i = Σ_r Σ_{j in r} ω_ij v_j / Σ_r Σ_{j in r} ω_ij,      ω = σ(q·k)

P − 1 messages of one block each forward; backward the blocks go round again and carry their
gradients home. No process ever holds more than two blocks of others.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.core.tiled import sigmoid_sums, sigmoid_sums_backward
from difformer.train.comm import Comm


def ring_average(q: Tensor, k: Tensor, v: Tensor, comm: Comm) -> Tensor:
    """Σ_j σ(q_i·k_j) v_j / Σ_j σ(q_i·k_j) over all processes' rows j.

    q, k (h, n_r, d), v (h, n_r, e) of this process -> (h, n_r, e).
    """
    heads = max(q.shape[0], k.shape[0], v.shape[0])
    q, k, v = (t.expand(heads, -1, -1) for t in (q, k, v))
    return _Ring.apply(q, k, v, comm)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, comm: Comm) -> Tensor:
        q, block = q.contiguous(), torch.cat([k, v], dim=-1)
        counts = comm.counts(k.shape[1])
        ctx.save_for_backward(q, block)
        out = q.new_zeros(q.shape[0], q.shape[1], v.shape[2])
        mass = q.new_zeros(q.shape[0], q.shape[1], 1)
        for step in range(comm.size):
            if step:
                block = _next(block, counts, step, comm)
            if q.shape[1] and block.shape[1]:
                key, value = _halves(block, q.shape[2])
                sums = sigmoid_sums(q, key, value)
                out += sums[0]
                mass += sums[1]
        ctx.comm, ctx.counts = comm, counts
        out.div_(mass)
        ctx.out, ctx.mass = out, mass
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        q, block = ctx.saved_tensors
        comm, counts = ctx.comm, ctx.counts
        scaled = grads[0] / ctx.mass
        left = torch.cat([scaled, -(scaled * ctx.out).sum(-1, keepdim=True)], dim=-1)
        dq, gradient = torch.zeros_like(q), torch.zeros_like(block)
        for step in range(comm.size):
            if step:
                block = _next(block, counts, step, comm)
                gradient = _next(gradient, counts, step, comm)
            if q.shape[1] and block.shape[1]:
                _add_gradients(q, block, left, dq, gradient)
        if comm.size > 1:
            gradient = _next(gradient, counts, comm.size, comm)  # home
        dk, dv = _halves(gradient, q.shape[2])
        return dq, dk, dv, None


def _add_gradients(q: Tensor, block: Tensor, left: Tensor, dq: Tensor, gradient: Tensor) -> None:
    key, value = _halves(block, q.shape[2])
    right = torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)
    dk, dv = torch.zeros_like(key), torch.zeros_like(value)
    for h in range(q.shape[0]):
        sigmoid_sums_backward(q[h], key[h], left[h], right[h], dq[h], dk[h], dv[h])
    gradient += torch.cat([dk, dv], dim=-1)


def _next(block: Tensor, counts: list[int], step: int, comm: Comm) -> Tensor:
    """The block held in this step: it comes from the process `step` places before."""
    origin = (comm.rank - step) % comm.size
    return comm.shift(block, (block.shape[0], counts[origin], block.shape[2]), "ring")


def _halves(block: Tensor, width: int) -> tuple[Tensor, Tensor]:
    return block[..., :width].contiguous(), block[..., width:].contiguous()

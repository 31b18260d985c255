"""The simple diffusivity's average straight from the states, keeping nothing but the states.

With unit queries q̃ and keys k̃, both rows of affine maps of z, and ω = a + q̃·k̃ (a = 1 + ε):

    C = Σ k̃_j v_jᵀ,  s = Σ k̃_j,  u = Σ v_j,      P_i = (a u + q̃_i C) / (a n + q̃_i · s)

Rows are taken a chunk at a time, small enough for the cache, so that queries, keys and their
gradients never exist as whole tensors; the backward pass computes them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from difformer.core.tiled import tiles

__all__ = ["Affine", "simple_average_of_states"]

Affine = tuple[Tensor, Tensor] | None
"""Weight (h·d, d) and bias (h·d,) of a map of the states; None for the states themselves."""

# 4,096 rows of width 64 are one megabyte: a handful of such buffers stays in the outer cache.
ROW_CHUNK = 4096
# Up to so many numbers, unit queries and keys are kept for the backward pass after all: they cost
# little memory then, and making them again costs a third of the step.
KEPT_NUMBERS = 2**23


def simple_average_of_states(
    z: Tensor, query: Affine, key: Affine, value: Affine, heads: int, constant: float
) -> Tensor:
    """P averaged over heads, (n, d): O(n d² h) time; saves z and O(d² h) numbers for backward."""
    flat = [t for affine in (query, key, value) for t in (affine or (None, None))]
    return _SimpleAverage.apply(z, heads, constant, *flat)


class _SimpleAverage(torch.autograd.Function):
    """Forward: one pass over keys, one over queries. Backward: one over queries, one over keys."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, heads: int, constant: float, *flat: Tensor | None) -> Tensor:
        query, key, value = (_split(flat[i], flat[i + 1], heads) for i in (0, 2, 4))
        keep = 2 * heads * z.numel() <= KEPT_NUMBERS
        queries = _Units(z, query, keep)
        # Where both are the states, they are one.
        tied = flat[0] is None and flat[2] is None
        keys = queries if tied else _Units(z, key, keep)
        contexts = [_summarise(z, keys, value[h], h) for h in range(heads)]
        out = torch.empty_like(z)
        for rows in tiles(z.shape[0], ROW_CHUNK):
            target = out[rows]
            for h, (c, s, u) in enumerate(contexts):
                q, _ = queries.get(h, rows)
                numerator = torch.addmm(u, q, c, beta=constant)
                mass = (q @ s).add_(constant * z.shape[0])
                if h == 0:
                    torch.div(numerator, mass, out=target)
                else:
                    target.addcdiv_(numerator, mass)
            if heads > 1:
                target.div_(heads)
        # The average itself saves a product of the backward pass where one head made it.
        kept = out if keep and heads == 1 else None
        ctx.save_for_backward(z, *flat, kept, *(t for context in contexts for t in context))
        ctx.heads, ctx.constant, ctx.units = heads, constant, (queries, keys)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        z, *rest = ctx.saved_tensors
        heads, constant = ctx.heads, ctx.constant
        flat, out, saved = rest[:6], rest[6], rest[7:]
        grad = grads[0]
        query, key, value = (_split(flat[i], flat[i + 1], heads) for i in (0, 2, 4))
        queries, keys = ctx.units
        dz = torch.zeros_like(z)
        into: list[list[_AffineGrad]] = [[], [], []]
        for h in range(heads):
            c, s, u = saved[3 * h : 3 * h + 3]
            for side, affine in zip(into, (query, key, value), strict=True):
                side.append(_AffineGrad(affine[h], dz))
            dc, ds, du = torch.zeros_like(c), torch.zeros_like(s), torch.zeros_like(u)
            for rows in tiles(z.shape[0], ROW_CHUNK):
                q, length = queries.get(h, rows)
                mass = (q @ s).add_(constant * z.shape[0])
                if out is None:
                    average = torch.addmm(u, q, c, beta=constant).div_(mass)
                else:
                    average = out[rows]
                g = grad[rows] / (mass if heads == 1 else mass * heads)
                dmass = torch.linalg.vecdot(average, g).unsqueeze(1).neg_()
                du.add_(g.sum(0, keepdim=True), alpha=constant)
                dc.addmm_(q.T, g)
                ds.addmm_(q.T, dmass)
                dq = torch.addmm(dmass * s.T, g, c.T)
                into[0][h].add(rows, z[rows], _unit_backward(dq, q, length))
            for rows in tiles(z.shape[0], ROW_CHUNK):
                part = z[rows]
                k, length = keys.get(h, rows)
                v = _affine(part, value[h])
                dk = torch.addmm(ds.T, v, dc.T)
                into[2][h].add(rows, part, torch.addmm(du, k, dc))
                into[1][h].add(rows, part, _unit_backward(dk, k, length))
        return (dz, None, None, *(t for side in into for t in _join(side)))


class _Units:
    """Unit rows of an affine map of the states and their lengths, made chunk by chunk."""

    def __init__(self, z: Tensor, affine: Sequence[Affine], keep: bool) -> None:
        self.z, self.affine = z.detach(), affine
        self.kept: dict[tuple[int, int], tuple[Tensor, Tensor]] | None = {} if keep else None

    def get(self, head: int, rows: slice) -> tuple[Tensor, Tensor]:
        if self.kept is None:
            return _unit(_affine(self.z[rows], self.affine[head]))
        if (head, rows.start) not in self.kept:
            self.kept[head, rows.start] = _unit(_affine(self.z[rows], self.affine[head]))
        return self.kept[head, rows.start]


class _AffineGrad:
    """Gradients of one head's affine map, and of the states through it, added up by chunks."""

    def __init__(self, affine: Affine, dz: Tensor) -> None:
        self.affine, self.dz = affine, dz
        self.sums = None if affine is None else tuple(torch.zeros_like(t) for t in affine)

    def add(self, rows: slice, part: Tensor, grad: Tensor) -> None:
        if self.affine is None or self.sums is None:
            self.dz[rows].add_(grad)
            return
        self.dz[rows].addmm_(grad, self.affine[0])
        self.sums[0].addmm_(grad.T, part)
        self.sums[1].add_(grad.sum(0))


def _join(heads: Sequence[_AffineGrad]) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of all heads as those of the stacked weight and bias."""
    sums = [head.sums for head in heads if head.sums is not None]
    if not sums:
        return None, None
    return torch.cat([weight for weight, _ in sums]), torch.cat([bias for _, bias in sums])


def _split(weight: Tensor | None, bias: Tensor | None, heads: int) -> Sequence[Affine]:
    if weight is None or bias is None:
        return [None] * heads
    return list(zip(weight.chunk(heads), bias.chunk(heads), strict=True))


def _affine(z: Tensor, affine: Affine) -> Tensor:
    return z if affine is None else torch.addmm(affine[1], z, affine[0].T)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of unit length (a zero row stays zero), and their lengths before."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    length.clamp_min_(torch.finfo(x.dtype).tiny)
    return x / length, length


def _unit_backward(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient with respect to x of x/‖x‖: the part across the row, divided by its length."""
    along = (grad * unit).sum(-1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1).div_(length)


def _summarise(z: Tensor, keys: _Units, value: Affine, head: int) -> tuple[Tensor, Tensor, Tensor]:
    """C (d, d), s (d, 1) and u (1, d) over all rows, chunk by chunk."""
    d = z.shape[1]
    c, s, u = z.new_zeros(d, d), z.new_zeros(d), z.new_zeros(d)
    for rows in tiles(z.shape[0], ROW_CHUNK):
        k, _ = keys.get(head, rows)
        v = _affine(z[rows], value)
        c.addmm_(k.T, v)
        s.add_(k.sum(0))
        u.add_(v.sum(0))
    return c, s.unsqueeze(1), u.unsqueeze(0)

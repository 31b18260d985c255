"""The simple diffusivity's average straight from the states, keeping them and two lengths per row.

With unit queries q̃ and keys k̃, both rows of affine maps of z, and ω = a + q̃·k̃ (a = 1 + ε):

    C = Σ k̃_j v_jᵀ,  s = Σ k̃_j,  u = Σ v_j,      P_i = (a u + q̃_i C) / (a n + q̃_i · s)

Rows are taken one chunk at a time, small enough for the cache, so that queries, keys and their
gradients never exist as whole tensors; the backward pass recomputes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from difformer.core.euler import Affine, Averaged, StepWeights, Tensors
from difformer.core.tiled import row_tiles

# Up to this many numbers, unit queries and keys are kept for the backward pass: they need little
# memory then, and recomputing them costs a third of the step.
KEPT_NUMBERS = 2**23

Moment = tuple[Tensor, Tensor, Tensor]  # C (d, d), s (d,), u (d,) of a head


class Sums(NamedTuple):
    """The sums over keys of each head, and over how many rows they run."""

    moments: list[Moment]
    rows: float


@dataclass(frozen=True)
class RowAverage:
    """P averaged over heads in O(n d² h) time, keeping O(n h + d² h) numbers of many rows.

    Forward: one pass over keys, one over queries. Backward: one over queries, one over keys. With
    g = ∂P / (m · heads) for the mass m and y = C g, the gradient of the mass needs no average:

        ∂m_i = −(q̃_i · y_i + a u · g_i) / m_i,   ∂q̃_i = y_i + ∂m_i s,   ∂C = Σ q̃_i g_iᵀ
    """

    heads: int
    constant: float  # a
    total: Callable[[Tensor], Tensor] | None = None
    """Adds up the sums of all processes that hold some of the rows; None where all are here."""

    def forward(self, of: Averaged) -> tuple[Tensor, Tensors, Sums]:
        """The step; lengths of queries and keys, unit ones where they are kept; sums over keys."""
        z, maps, weights = of
        query, key, value = self._split(maps)
        keep = 2 * self.heads * z.numel() <= KEPT_NUMBERS
        keys = _Units.of(z, key, keep)
        found = [_summarise(z, keys, value[h], h) for h in range(self.heads)]
        sums = self._everywhere(Sums(found, float(z.shape[0])))
        moments = sums.moments
        # Where both are the states they are the same rows, already computed.
        tied = maps[0] is None and maps[2] is None
        queries = keys if tied else _Units.of(z, query, keep)
        unit_query = queries.get if tied else queries.make
        out = torch.empty_like(z)
        for rows in row_tiles(z):
            target = out[rows]
            for h, (c, s, u) in enumerate(moments):
                q, _ = unit_query(h, rows)
                weight = self._mass(q, s, sums).reciprocal_().mul_(weights.pairs / self.heads)
                weight = weight.unsqueeze(1)
                if h == 0:
                    torch.addmm(u, q, c, beta=self.constant, out=target).mul_(weight)
                else:
                    target.addcmul_(torch.addmm(u, q, c, beta=self.constant), weight)
            if weights.state:
                target.add_(z[rows], alpha=weights.state)
        return out, (queries.unit, queries.length, keys.unit, keys.length), sums

    def backward(
        self, grad: Tensor, of: Averaged, kept: Tensors, small: Sums
    ) -> tuple[Tensor, Tensors]:
        """∂z, and the gradients of weights and biases."""
        z, weights = of.z, of.weights
        query, key, value = self._split(of.maps)
        unit_query, query_length, unit_key, key_length = kept
        assert query_length is not None
        assert key_length is not None
        queries = _Units(z, query, unit_query, query_length)
        keys = _Units(z, key, unit_key, key_length)
        dz = torch.empty_like(grad)
        into = [[_AffineGrad(each, dz) for each in side] for side in (query, key, value)]
        found = [
            self._query_gradients(grad, queries, small, weights, h, into[0][h])
            for h in range(self.heads)
        ]
        for h, dmoment in enumerate(self._everywhere(Sums(found, 0.0)).moments):
            _key_gradients(keys, value[h], dmoment, h, into[1][h], into[2][h])
        return dz, [t for side in into for t in _join(side)]

    def _query_gradients(
        self,
        grad: Tensor,
        queries: _Units,
        sums: Sums,
        weights: StepWeights,
        head: int,
        into: _AffineGrad,
    ) -> Moment:
        """One pass over queries: their gradients go to `into`; ∂C, ∂s and ∂u are returned."""
        (c, s, u), z = sums.moments[head], queries.z
        dc, ds, du = torch.zeros_like(c), torch.zeros_like(s), torch.zeros_like(u)
        for rows in row_tiles(z):
            if head == 0:  # while these rows are in the cache
                torch.mul(grad[rows], weights.state, out=into.dz[rows])
            q, length = queries.get(head, rows)
            per_mass = self._mass(q, s, sums).reciprocal_()
            g = grad[rows] * (per_mass * (weights.pairs / self.heads)).unsqueeze(1)
            dq = g @ c.T
            dmass = torch.linalg.vecdot(q, dq).addmv_(g, u, beta=-1, alpha=-self.constant)
            dmass.mul_(per_mass)
            du.add_(g.sum(0), alpha=self.constant)
            dc.addmm_(q.T, g)
            ds.addmv_(q.T, dmass)
            dq.addcmul_(dmass.unsqueeze(1), s)  # as a product of rank one it is slower
            into.add(rows, z[rows], _unit_backward(dq, q, length))
        return dc, ds, du

    def _split(self, maps: Tensors) -> list[Sequence[Affine]]:
        """The maps of query, key and value, head by head."""
        return [_heads(maps[i], maps[i + 1], self.heads) for i in (0, 2, 4)]

    def _mass(self, q: Tensor, s: Tensor, sums: Sums) -> Tensor:
        """m (rows,)."""
        return torch.mv(q, s).add_(self.constant * sums.rows)

    def _everywhere(self, sums: Sums) -> Sums:
        """The sums over the rows of all processes, in one message."""
        if self.total is None:
            return sums
        flat = [t for moment in sums.moments for t in moment]
        rows = flat[0].new_tensor([sums.rows])
        packed = self.total(torch.cat([rows, *(t.reshape(-1) for t in flat)]))
        count, *pieces = packed.split([1, *(t.numel() for t in flat)])
        whole = [piece.view_as(t) for piece, t in zip(pieces, flat, strict=True)]
        moments = [(c, s, u) for c, s, u in zip(*(whole[i::3] for i in range(3)), strict=True)]
        return Sums(moments, float(count))


@dataclass(frozen=True)
class _Units:
    """Unit rows of an affine map of the states: lengths are kept, and the rows where they fit."""

    z: Tensor
    affine: Sequence[Affine]
    unit: Tensor | None  # (h, n, d)
    length: Tensor  # (h, n, 1)

    @classmethod
    def of(cls, z: Tensor, affine: Sequence[Affine], keep: bool) -> _Units:
        """An empty record, before `make`."""
        heads = len(affine)
        unit = z.new_empty(heads, *z.shape) if keep else None
        return cls(z, affine, unit, z.new_empty(heads, z.shape[0], 1))

    def make(self, head: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Unit rows and their lengths before, for the first time."""
        length = self.length[head, rows]
        kept = None if self.unit is None else self.unit[head, rows]
        x = _affine(self.z[rows], self.affine[head], kept)
        torch.linalg.vector_norm(x, dim=-1, keepdim=True, out=length)
        length.clamp_min_(torch.finfo(x.dtype).tiny)  # a zero row stays zero
        return self._divide(x, length, head, kept), length

    def get(self, head: int, rows: slice) -> tuple[Tensor, Tensor]:
        """The same rows and lengths again, after `make`."""
        length = self.length[head, rows]
        if self.unit is not None:
            return self.unit[head, rows], length
        return self._divide(_affine(self.z[rows], self.affine[head]), length, head), length

    def _divide(self, x: Tensor, length: Tensor, head: int, out: Tensor | None = None) -> Tensor:
        """Into `out`, else in place unless x are the states."""
        if out is None and self.affine[head] is not None:
            out = x
        return torch.div(x, length, out=out)


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


def _heads(weight: Tensor | None, bias: Tensor | None, heads: int) -> Sequence[Affine]:
    if weight is None or bias is None:
        return [None] * heads
    return list(zip(weight.chunk(heads), bias.chunk(heads), strict=True))


def _affine(z: Tensor, affine: Affine, out: Tensor | None = None) -> Tensor:
    """The map of some rows, into `out` if given; the rows themselves without a map."""
    return z if affine is None else torch.addmm(affine[1], z, affine[0].T, out=out)


def _unit_backward(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient with respect to x of x/‖x‖: the part across the row, divided by its length."""
    along = (grad * unit).sum(-1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1).div_(length)


def _summarise(z: Tensor, keys: _Units, value: Affine, head: int) -> Moment:
    """C (d, d), s (d,) and u (d,) over all rows, chunk by chunk."""
    d = z.shape[1]
    c, s, u = z.new_zeros(d, d), z.new_zeros(d), z.new_zeros(d)
    for rows in row_tiles(z):
        k, _ = keys.make(head, rows)
        v = _affine(z[rows], value)
        c.addmm_(k.T, v)
        s.add_(k.sum(0))
        u.add_(v.sum(0))
    return c, s, u


def _key_gradients(
    keys: _Units,
    value: Affine,
    dmoment: Moment,
    head: int,
    into_key: _AffineGrad,
    into_value: _AffineGrad,
) -> None:
    """One pass over keys and values: their gradients from those of C, s and u."""
    (dc, ds, du), z = dmoment, keys.z
    for rows in row_tiles(z):
        part = z[rows]
        k, length = keys.get(head, rows)
        dk = torch.addmm(ds, _affine(part, value), dc.T)
        if value is None:
            into_value.dz[rows].addmm_(k, dc).add_(du)
        else:
            into_value.add(rows, part, torch.addmm(du, k, dc))
        into_key.add(rows, part, _unit_backward(dk, k, length))

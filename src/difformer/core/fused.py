"""The simple diffusivity's averages straight from the states, with hand-written gradients.

With unit queries q̃ and keys k̃, both rows of affine maps of z, and ω = a + q̃·k̃ (a = 1 + ε):

    C = Σ k̃_j v_jᵀ,  s = Σ k̃_j,  u = Σ v_j,      P_i = (a u + q̃_i C) / (a n + q̃_i · s)

Rows are taken one chunk at a time, small enough for the cache, so that queries, keys and their
gradients never exist as whole tensors; the backward pass recomputes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import row_count
from difformer.core.euler import Affine, Averaged, StepWeights, Tensors
from difformer.core.tiled import row_tiles, rows_at_once

# Up to this many numbers, unit queries and keys are kept for the backward pass: they need little
# memory then, and recomputing them costs a third of the step.
KEPT_NUMBERS = 2**23

Sums = tuple[Tensor, ...]  # C (d, d), s (d,), u (d,) and n () of a head


@dataclass(frozen=True)
class RowAverage:
    """P averaged over heads in O(n d² h) time, keeping O(d² h) numbers of many rows.

    Forward: one pass over keys, one over queries. Backward: one over queries, one over keys. With
    g = ∂P / (m · heads) for the mass m and y = C g, the gradient of the mass needs no average:

        ∂m_i = −(q̃_i · y_i + a u · g_i) / m_i,   ∂q̃_i = y_i + ∂m_i s,   ∂C = Σ q̃_i g_iᵀ
    """

    heads: int
    constant: float  # a
    total: Callable[[Tensor], Tensor] | None = None
    """Adds up the sums of all processes that hold some of the rows; None where all are here."""

    def forward(self, of: Averaged) -> tuple[Tensor, Tensors, list[Sums]]:
        """The step; unit queries and keys and their lengths, if kept; sums over keys."""
        z, maps, weights = of
        query, key, value = self._split(maps)
        keys = _Units(z, key, *self._room(z))
        sums = self._everywhere([_summarise(keys, value[h], h) for h in range(self.heads)])
        # Where both are the states they are the same rows, already computed.
        tied = maps[0] is None and maps[2] is None
        queries = keys if tied else _Units(z, query, *self._room(z))
        unit_query = queries.get if tied else queries.make
        out = torch.empty_like(z)
        for rows in row_tiles(z):
            target = out[rows]
            for h, (c, s, u, n) in enumerate(sums):
                q, _ = unit_query(h, rows)
                weight = self._per_mass(q, s, n).mul_(weights.pairs / self.heads)
                weight = weight.unsqueeze(1)
                if h == 0:
                    torch.addmm(u, q, c, beta=self.constant, out=target).mul_(weight)
                else:
                    target.addcmul_(torch.addmm(u, q, c, beta=self.constant), weight)
            if weights.state:
                target.add_(z[rows], alpha=weights.state)
        return out, (queries.unit, queries.length, keys.unit, keys.length), sums

    def backward(
        self, grad: Tensor, of: Averaged, kept: Tensors, small: list[Sums]
    ) -> tuple[Tensor, Tensors]:
        """∂z, and the gradients of weights and biases."""
        query, key, value = self._split(of.maps)
        queries, keys = _Units(of.z, query, *kept[:2]), _Units(of.z, key, *kept[2:])
        dz = torch.empty_like(grad)
        into = [[_AffineGrad(each, dz) for each in side] for side in (query, key, value)]
        dsums = self._everywhere(
            [
                self._query_gradients(grad, queries, small[h], of.weights, h, into[0][h])
                for h in range(self.heads)
            ]
        )
        for h, dmoment in enumerate(dsums):
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
    ) -> Sums:
        """One pass over queries: their gradients go to `into`; those of the sums are returned."""
        (c, s, u, n), z = sums, queries.z
        dc, ds, du, dn = map(torch.zeros_like, sums)
        for rows in row_tiles(z):
            if head == 0:  # while these rows are in the cache
                torch.mul(grad[rows], weights.state, out=into.dz[rows])
            q, length = queries.get(head, rows)
            per_mass = self._per_mass(q, s, n)
            g = grad[rows] * (per_mass * (weights.pairs / self.heads)).unsqueeze(1)
            dq = g @ c.T
            dmass = torch.linalg.vecdot(q, dq).addmv_(g, u, beta=-1, alpha=-self.constant)
            dmass.mul_(per_mass)
            du.add_(g.sum(0), alpha=self.constant)
            dc.addmm_(q.T, g)
            ds.addmv_(q.T, dmass)
            dq.addcmul_(dmass.unsqueeze(1), s)  # as a product of rank one it is slower
            into.add(rows, z[rows], _unit_backward(dq, q, length))
        return dc, ds, du, dn

    def _room(self, z: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Where unit rows and their lengths are kept, if they fit."""
        if 2 * self.heads * z.numel() > KEPT_NUMBERS:
            return None, None
        return z.new_empty(self.heads, *z.shape), z.new_empty(self.heads, z.shape[0], 1)

    def _split(self, maps: Tensors) -> list[Sequence[Affine]]:
        """The maps of query, key and value, head by head."""
        return [
            [None] * self.heads
            if weight is None or bias is None
            else list(zip(weight.chunk(self.heads), bias.chunk(self.heads), strict=True))
            for weight, bias in zip(maps[::2], maps[1::2], strict=True)
        ]

    def _per_mass(self, q: Tensor, s: Tensor, n: Tensor) -> Tensor:
        """1/m of some queries."""
        return torch.mv(q, s).add_(self.constant * float(n)).reciprocal_()

    def _everywhere(self, heads: list[Sums]) -> list[Sums]:
        """The sums over the rows of all processes, in one message."""
        if self.total is None:
            return heads
        flat = torch.stack([torch.cat([part.reshape(-1) for part in sums]) for sums in heads])
        sizes = [part.numel() for part in heads[0]]
        return [
            tuple(p.view_as(q) for p, q in zip(head.split(sizes), heads[0], strict=True))
            for head in self.total(flat)
        ]


@dataclass(frozen=True)
class _Units:
    """Unit rows of an affine map of the states and their lengths before, kept where they fit."""

    z: Tensor
    affine: Sequence[Affine]
    unit: Tensor | None = None  # (h, n, d)
    length: Tensor | None = None  # (h, n, 1)

    def make(self, head: int, rows: slice) -> tuple[Tensor, Tensor]:
        """Unit rows and their lengths."""
        x = _affine(self.z[rows], self.affine[head])
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        length.clamp_min_(torch.finfo(x.dtype).tiny)  # a zero row stays zero
        if self.unit is None or self.length is None:
            return torch.div(x, length, out=None if self.affine[head] is None else x), length
        self.length[head, rows] = length
        return torch.div(x, length, out=self.unit[head, rows]), length

    def get(self, head: int, rows: slice) -> tuple[Tensor, Tensor]:
        """The same again, after `make`."""
        if self.unit is None or self.length is None:
            return self.make(head, rows)
        return self.unit[head, rows], self.length[head, rows]


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


def _affine(z: Tensor, affine: Affine) -> Tensor:
    return z if affine is None else torch.addmm(affine[1], z, affine[0].T)


def _unit_backward(grad: Tensor, unit: Tensor, length: Tensor) -> Tensor:
    """The gradient with respect to x of x/‖x‖: the part across the row, divided by its length."""
    along = (grad * unit).sum(-1, keepdim=True)
    return grad.addcmul_(unit, along, value=-1).div_(length)


def _summarise(keys: _Units, value: Affine, head: int) -> Sums:
    """C, s, u and n over all rows, chunk by chunk."""
    z, d = keys.z, keys.z.shape[1]
    c, s, u = z.new_zeros(d, d), z.new_zeros(d), z.new_zeros(d)
    for rows in row_tiles(z):
        k, _ = keys.make(head, rows)
        v = _affine(z[rows], value)
        c.addmm_(k.T, v)
        s.add_(k.sum(0))
        u.add_(v.sum(0))
    return c, s, u, row_count(z)


def _key_gradients(
    keys: _Units,
    value: Affine,
    dsums: Sums,
    head: int,
    into_key: _AffineGrad,
    into_value: _AffineGrad,
) -> None:
    """One pass over keys and values: their gradients from those of C, s and u."""
    (dc, ds, du, _), z = dsums, keys.z
    for rows in row_tiles(z):
        part = z[rows]
        k, length = keys.get(head, rows)
        dk = torch.addmm(ds, _affine(part, value), dc.T)
        if value is None:
            into_value.dz[rows].addmm_(k, dc).add_(du)
        else:
            into_value.add(rows, part, torch.addmm(du, k, dc))
        into_key.add(rows, part, _unit_backward(dk, k, length))


@dataclass(frozen=True)
class WholeTensorAverage:
    """The same where queries and keys are divided by the norm of their whole tensor; keeps 1/m.

    That is linear in a row, so queries and keys need not exist. With z̄ = [z, 1], the Gram matrix
    Ḡ = Σ z̄_j z̄_jᵀ and maps W̄ = [Wᵀ; bᵀ] of q, k and v:

        ‖Q‖² = ⟨W̄_q, Ḡ W̄_q⟩,  Σ k_j v_jᵀ = W̄_kᵀ Ḡ W̄_v,  Σ k_j = W̄_kᵀ Ḡ e,  Σ v_j = W̄_vᵀ Ḡ e

    (e the last unit vector; ‖K‖² likewise); numerator and mass m of row i are one product z̄_i B:

        B = W̄_q [Σ k_j v_jᵀ, Σ k_j] / (‖Q‖ ‖K‖) + a e [Σ v_jᵀ, n]

    All but Ḡ and the last product is O(d³), whatever the number of rows (`_Pull`). With
    h = ∂P / (m · heads) and y = B h for each row, the gradient of the mass needs no average:

        ∂m_i = −z̄_i · y_i / m_i,   ∂B = Σ z̄_i [h_i, ∂m_i]ᵀ,   ∂z_i = B [h_i, ∂m_i] + (∂Ḡ + ∂Ḡᵀ) z̄_i
    """

    heads: int
    constant: float  # a

    def forward(self, of: Averaged) -> tuple[Tensor, Tensors, _Pull]:
        """The step; 1/m (h, n); B and what it is made from."""
        z, weights = of.z, of.weights
        pull = _Pull(_gram(z), of.maps, self.heads, self.constant)
        heads = len(pull.b)  # one where all heads are the same
        blocks = [_blocks(b) for b in pull.b]
        out, per_mass = torch.empty_like(z), z.new_empty(heads, z.shape[0])
        for rows in row_tiles(z):
            part, target = z[rows], out[rows]
            for h, (square, column, row, corner) in enumerate(blocks):
                m = torch.addmv(corner, part, column, out=per_mass[h, rows]).reciprocal_()
                weight = (m * (weights.pairs / heads)).unsqueeze(1)
                if h == 0:
                    torch.addmm(row, part, square, out=target).mul_(weight)
                else:
                    target.addcmul_(torch.addmm(row, part, square), weight)
            if weights.state:
                target.add_(part, alpha=weights.state)
        return out, (per_mass,), pull

    def backward(
        self, grad: Tensor, of: Averaged, kept: Tensors, small: _Pull
    ) -> tuple[Tensor, Tensors]:
        """∂z, and the gradients of weights and biases."""
        z, weights = of.z, of.weights
        (per_mass,), (n, d), heads = kept, z.shape, len(small.b)
        assert per_mass is not None
        dz, db = torch.empty_like(z), torch.zeros_like(small.b)
        blocks = [(_blocks(b), _blocks(g)) for b, g in zip(small.b, db, strict=True)]
        columns = small.b[:, :-1, -1].contiguous()  # strides cost a pass over the rows much time
        buffer = z.new_empty(min(n, rows_at_once(z)), d)
        for rows in row_tiles(z):
            part, dpart = z[rows], dz[rows]
            for h, ((square, _, row, _), into) in enumerate(blocks):
                m = per_mass[h, rows]
                weight = (m * (weights.pairs / heads)).unsqueeze(1)
                scaled = torch.mul(grad[rows], weight, out=buffer[: part.shape[0]])
                y = torch.mm(scaled, square.T, out=dpart if h == 0 else None)
                dmass = torch.linalg.vecdot(part, y).addmv_(scaled, row, beta=-1, alpha=-1).mul_(m)
                into[0].addmm_(part.T, scaled)
                into[1].addmv_(part.T, dmass)
                into[2].add_(scaled.sum(0))
                into[3].add_(dmass.sum())
                y.addcmul_(dmass.unsqueeze(1), columns[h])  # as a product of rank one it is slower
                if h > 0:
                    dpart.add_(y)
        dgram, dmaps = small.backward(db)
        square, _, row, _ = _blocks(dgram + dgram.T)
        for rows in row_tiles(z):
            dpart = dz[rows].addmm_(z[rows], square).add_(row)
            if weights.state:
                dpart.add_(grad[rows], alpha=weights.state)
        return dz, dmaps


class _Pull:
    """B (h, d + 1, d + 1) from Ḡ and the maps, and the way back: O(h d³), no rows.

    The maps stand as rows: M_q = W̄_qᵀ and M_k = W̄_kᵀ, one above the other in M, so that one product
    serves both. With s = 1 / (‖Q‖ ‖K‖), X = [W̄_v, e] and R = M_k Ḡ X:

        B = s M_qᵀ R + a e (eᵀ Ḡ X)
    """

    def __init__(self, gram: Tensor, maps: Tensors, heads: int, constant: float) -> None:
        query, key = (_rows(maps[i], maps[i + 1], gram, heads) for i in (0, 2))
        self.gram, self.constant = gram, constant
        self.given = [weight is not None for weight in maps[::2]]
        self.stacked = torch.stack([query, key])  # M (2, h, d, d + 1)
        self.through = self.stacked @ gram
        # Two factors: the product of two vanishing squares would underflow.
        squares = (self.stacked * self.through).sum((1, 2, 3), keepdim=True)
        self.squares = squares.clamp_min_(torch.finfo(gram.dtype).tiny)
        self.scale = self.squares.rsqrt().prod()
        self.x = None  # where the values are the states, X is the identity
        if self.given[2]:
            self.x = F.pad(_rows(maps[4], maps[5], gram, heads).mT, (0, 1))
            self.x[:, -1, -1] = 1  # the sum of ones is the mass
        self.r, uniform = self.through[1], gram[-1:]
        if self.x is not None:
            self.r, uniform = self.r @ self.x, uniform @ self.x
        self.b = (self.stacked[0].mT @ self.r).mul_(self.scale)
        self.b[:, -1:].add_(uniform, alpha=constant)

    def backward(self, db: Tensor) -> tuple[Tensor, Tensors]:
        """∂Ḡ (not made symmetric), and the gradients of weights and biases."""
        query, key = self.stacked
        scaled, duniform = db * self.scale, db[:, -1:] * self.constant
        dr = query @ scaled
        # ∂‖Q‖² and ∂‖K‖², through s.
        dsquares = (dr * self.r).sum().mul_(-0.5) / self.squares
        dt, dvalue = dr, None
        if self.x is not None:
            dvalue = (self.through[1].mT @ dr + self.gram[:, -1:] @ duniform)[..., :-1].mT
            dt, duniform = dr @ self.x.mT, duniform @ self.x.mT
        # Where the states are queries and keys, one of each serves the values of every head.
        dt = dt.sum_to_size(key.shape)
        dstacked = self.through * (2 * dsquares)
        dstacked[0].add_((self.r @ scaled.mT).sum_to_size(query.shape))
        dstacked[1].add_(dt @ self.gram)
        inner = self.stacked * dsquares
        inner[1].add_(dt)
        dgram = self.stacked.flatten(0, 2).T @ inner.flatten(0, 2)
        dgram[-1:].add_(duniform.sum(0))
        dmaps: list[Tensor | None] = []
        for rows, given in zip((*dstacked, dvalue), self.given, strict=True):
            if given and rows is not None:
                dmaps += [rows[..., :-1].flatten(0, 1), rows[..., -1].flatten()]
            else:
                dmaps += [None, None]
        return dgram, dmaps


def _gram(z: Tensor) -> Tensor:
    """Ḡ (d + 1, d + 1), added up chunk by chunk."""
    gram = z.new_zeros(z.shape[1] + 1, z.shape[1] + 1)
    square, column, total, count = _blocks(gram)
    for rows in row_tiles(z):
        part = z[rows]
        square.addmm_(part.T, part)
        total.add_(part.sum(0))
    column.copy_(total)
    count.fill_(z.shape[0])
    return gram


def _rows(weight: Tensor | None, bias: Tensor | None, gram: Tensor, heads: int) -> Tensor:
    """W̄ᵀ = [W, b] (h, d, d + 1), or (1, d, d + 1) for the states themselves."""
    d = gram.shape[0] - 1
    if weight is None or bias is None:
        return torch.eye(d, d + 1, dtype=gram.dtype, device=gram.device).unsqueeze(0)
    return torch.cat([weight, bias.unsqueeze(1)], dim=1).view(heads, d, d + 1)


def _blocks(b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a (d + 1, d + 1) matrix: the square, the last column, the last row, the corner; views."""
    return b[:-1, :-1], b[:-1, -1], b[-1, :-1], b[-1, -1]

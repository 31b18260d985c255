"""The simple diffusivity under the whole-tensor norm: two products with the states are enough.

Dividing by the norm of the whole tensor is linear in a row, so queries and keys need not exist.
With z̄ = [z, 1], the Gram matrix Ḡ = Σ z̄_j z̄_jᵀ and maps W̄ = [Wᵀ; bᵀ] of q, k and v:

    ‖Q‖² = ⟨W̄_q, Ḡ W̄_q⟩,  Σ k_j v_jᵀ = W̄_kᵀ Ḡ W̄_v,  Σ k_j = W̄_kᵀ Ḡ e,  Σ v_j = W̄_vᵀ Ḡ e

(e the last unit vector; ‖K‖² likewise), and numerator and mass of row i are one product z̄_i B with

    B = W̄_q [Σ k_j v_jᵀ, Σ k_j] / (‖Q‖ ‖K‖) + a e [Σ v_jᵀ, n]

All but Ḡ and the last product is O(d³), whatever the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.core.euler import Averaged, Tensors
from difformer.core.tiled import row_tiles, rows_at_once


@dataclass(frozen=True)
class WholeTensorAverage:
    """P = mean over heads of (z̄ B)[:, :d] / m with the mass m = (z̄ B)[:, d]; keeps 1/m.

    O(n d² h) time: two products forward and three backward. With h = ∂P / (m · heads) and y = B h
    for each row, the gradient of the mass needs no average:

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
        # Where the values are the states, X is the identity.
        self.x = _with_mass(_rows(maps[4], maps[5], gram, heads).mT) if self.given[2] else None
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
        return dgram, [
            t
            for rows, given in zip((*dstacked, dvalue), self.given, strict=True)
            for t in (_split(rows) if given else (None, None))
        ]


def _blocks(b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a (d + 1, d + 1) matrix: the square, the last column, the last row, the corner; views."""
    return b[:-1, :-1], b[:-1, -1], b[-1, :-1], b[-1, -1]


def _gram(z: Tensor) -> Tensor:
    """Ḡ (d + 1, d + 1), added up chunk by chunk."""
    n, d = z.shape
    gram = z.new_zeros(d + 1, d + 1)
    square, total = gram[:d, :d], gram[d, :d]
    for rows in row_tiles(z):
        part = z[rows]
        square.addmm_(part.T, part)
        total.add_(part.sum(0))
    gram[:d, d] = total
    gram[d, d] = n
    return gram


def _rows(weight: Tensor | None, bias: Tensor | None, gram: Tensor, heads: int) -> Tensor:
    """W̄ᵀ = [W, b] (h, d, d + 1), or (1, d, d + 1) for the states themselves."""
    d = gram.shape[0] - 1
    if weight is None or bias is None:
        return torch.eye(d, d + 1, dtype=gram.dtype, device=gram.device).unsqueeze(0)
    return torch.cat([weight, bias.unsqueeze(1)], dim=1).view(heads, d, d + 1)


def _split(rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias of all heads from that of their rows."""
    assert rows is not None
    return rows[..., :-1].flatten(0, 1), rows[..., -1].flatten()


def _with_mass(value: Tensor) -> Tensor:
    """[W̄_v, e]: the sum of ones is the mass."""
    one = value.new_zeros(*value.shape[:-1], 1)
    one[:, -1] = 1
    return torch.cat([value, one], dim=-1)

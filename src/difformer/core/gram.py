"""The simple diffusivity under the whole-tensor norm: two products with the states are enough.

Dividing by the norm of the whole tensor is linear in a row, so queries and keys need not exist.
With z̄ = [z, 1], the Gram matrix Ḡ = Σ z̄_j z̄_jᵀ and maps W̄ = [Wᵀ; bᵀ] of q, k and v:

    ‖Q‖² = ⟨W̄_q, Ḡ W̄_q⟩,  Σ k_j v_jᵀ = W̄_kᵀ Ḡ W̄_v,  Σ k_j = W̄_kᵀ Ḡ e,  Σ v_j = W̄_vᵀ Ḡ e

(e the last unit vector; ‖K‖² likewise), and numerator and mass of row i are one product z̄_i B with

    B = W̄_q [Σ k_j v_jᵀ, Σ k_j] / (‖Q‖ ‖K‖) + a e [Σ v_jᵀ, n]

All but Ḡ and the last product is O(d³), whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.core.euler import StepWeights
from difformer.core.fused import ROW_CHUNK
from difformer.core.tiled import tiles

__all__ = ["WholeTensorAverage"]


@dataclass(frozen=True)
class WholeTensorAverage:
    """P = mean over heads of (z̄ B)[:, :d] / m with the mass m = (z̄ B)[:, d]; keeps 1/m.

    O(n d² h) time: two products forward and three backward. With h = ∂P / (m · heads) and y = B h
    for each row, the gradient of the mass needs no average:

        ∂m_i = −z̄_i · y_i / m_i,   ∂B = Σ z̄_i [h_i, ∂m_i]ᵀ,   ∂z_i = B [h_i, ∂m_i] + (∂Ḡ + ∂Ḡᵀ) z̄_i
    """

    heads: int
    constant: float  # a

    def forward(
        self, z: Tensor, maps: Sequence[Tensor | None], weights: StepWeights
    ) -> tuple[Tensor, tuple[Tensor | None, ...], _Pull]:
        """The step; 1/m (h, n, 1); B and what it is made from."""
        query, key, value = (_augmented(z, self.heads, *maps[i : i + 2]) for i in (0, 2, 4))
        pull = _Pull(_gram(z), query, key, None if maps[4] is None else value, self.constant)
        heads = len(pull.b)  # one where all heads are the same
        blocks = [_blocks(b) for b in pull.b]
        out, per_mass = torch.empty_like(z), z.new_empty(heads, z.shape[0], 1)
        for rows in tiles(z.shape[0], ROW_CHUNK):
            part, target = z[rows], out[rows]
            for h, (square, column, row, corner) in enumerate(blocks):
                m = torch.addmm(corner, part, column, out=per_mass[h, rows]).reciprocal_()
                weight = m * (weights.pairs / heads)
                if h == 0:
                    torch.addmm(row, part, square, out=target).mul_(weight)
                else:
                    target.addcmul_(torch.addmm(row, part, square), weight)
            if weights.state:
                target.add_(part, alpha=weights.state)
        return out, (per_mass,), pull

    def backward(
        self,
        grad: Tensor,
        z: Tensor,
        maps: Sequence[Tensor | None],
        weights: StepWeights,
        kept: Sequence[Tensor | None],
        small: _Pull,
    ) -> tuple[Tensor, Sequence[Tensor | None]]:
        """∂z, and the gradients of weights and biases."""
        (per_mass,), (n, d), heads = kept, z.shape, len(small.b)
        assert per_mass is not None
        dz, db = torch.empty_like(z), torch.zeros_like(small.b)
        blocks = [(_blocks(b), _blocks(g)) for b, g in zip(small.b, db, strict=True)]
        buffer = z.new_empty(min(n, ROW_CHUNK), d)
        for rows in tiles(n, ROW_CHUNK):
            part, dpart = z[rows], dz[rows]
            for h, ((square, column, row, _), into) in enumerate(blocks):
                m = per_mass[h, rows]
                scaled = buffer[: part.shape[0]]
                torch.mul(grad[rows], m * (weights.pairs / heads), out=scaled)
                y = torch.mm(scaled, square.T, out=dpart if h == 0 else None)
                dmass = torch.mv(scaled, row).add_(torch.linalg.vecdot(part, y))
                dmass = dmass.unsqueeze(1).mul_(m).neg_()
                into[0].addmm_(part.T, scaled)
                into[1].addmm_(part.T, dmass)
                into[2].add_(scaled.sum(0))
                into[3].add_(dmass.sum())
                y.addmm_(dmass, column.T)
                if h > 0:
                    dpart.add_(y)
        dgram, *dmaps = small.backward(db)
        square, _, row, _ = _blocks(dgram + dgram.T)
        for rows in tiles(n, ROW_CHUNK):
            dpart = dz[rows].addmm_(z[rows], square).add_(row)
            if weights.state:
                dpart.add_(grad[rows], alpha=weights.state)
        given = zip(dmaps, maps[::2], strict=True)
        pairs = ((None, None) if weight is None else _split(m) for m, weight in given)
        return dz, [t for pair in pairs for t in pair]


class _Pull:
    """B (h, d + 1, d + 1) from Ḡ and the maps W̄, and the way back: O(h d³), no rows.

    With s = 1 / (‖Q‖ ‖K‖), T = W̄_kᵀ Ḡ, X = [W̄_v, e] and R = T X:

        B = s W̄_q R + a e (eᵀ Ḡ X)
    """

    def __init__(
        self, gram: Tensor, query: Tensor, key: Tensor, value: Tensor | None, constant: float
    ) -> None:
        self.gram, self.query, self.key, self.constant = gram, query, key, constant
        self.gram_query, self.gram_key = gram @ query, gram @ key
        # Two factors: the product of two vanishing squares would underflow.
        tiny = torch.finfo(gram.dtype).tiny
        self.query_square = (query * self.gram_query).sum().clamp_min_(tiny)
        self.key_square = (key * self.gram_key).sum().clamp_min_(tiny)
        self.scale = self.query_square.rsqrt() * self.key_square.rsqrt()
        # Where the values are the states, X is the identity.
        self.x = None if value is None else _with_mass(value)
        self.r, uniform = self.gram_key.mT, gram[-1:]
        if self.x is not None:
            self.r, uniform = self.r @ self.x, uniform @ self.x
        self.b = (query @ self.r).mul_(self.scale)
        self.b[:, -1:].add_(uniform, alpha=constant)

    def backward(self, db: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """∂Ḡ (not made symmetric), ∂W̄_q, ∂W̄_k and ∂W̄_v."""
        scaled, duniform = db * self.scale, db[:, -1:] * self.constant
        dr = self.query.mT @ scaled
        # ∂‖Q‖² and ∂‖K‖², through s.
        by_scale = (dr * self.r).sum().mul_(-0.5)
        dquery_square, dkey_square = by_scale / self.query_square, by_scale / self.key_square
        dt, dvalue = dr, None
        if self.x is not None:
            dvalue = (self.gram_key @ dr + self.gram[:, -1:] @ duniform)[..., :-1]
            dt, duniform = dr @ self.x.mT, duniform @ self.x.mT
        dquery = scaled @ self.r.mT + self.gram_query * (2 * dquery_square)
        dkey = self.gram @ dt.mT + self.gram_key * (2 * dkey_square)
        dgram = (self.key @ dt).sum(0)
        dgram += (self.query @ self.query.mT).sum(0) * dquery_square
        dgram += (self.key @ self.key.mT).sum(0) * dkey_square
        dgram[-1:].add_(duniform.sum(0))
        return dgram, dquery, dkey, dvalue


def _blocks(b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of a (d + 1, d + 1) matrix: the square, the last column, the last row, the corner."""
    return b[:-1, :-1], b[:-1, -1:], b[-1, :-1], b[-1:, -1:]


def _gram(z: Tensor) -> Tensor:
    """Ḡ (d + 1, d + 1), added up chunk by chunk."""
    n, d = z.shape
    gram = z.new_zeros(d + 1, d + 1)
    square, total = gram[:d, :d], gram[d, :d]
    for rows in tiles(n, ROW_CHUNK):
        part = z[rows]
        square.addmm_(part.T, part)
        total.add_(part.sum(0))
    gram[:d, d] = total
    gram[d, d] = n
    return gram


def _augmented(z: Tensor, heads: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """W̄ (h, d + 1, d), or (1, d + 1, d) for the states themselves."""
    d = z.shape[1]
    if weight is None or bias is None:
        return torch.eye(d + 1, d, dtype=z.dtype, device=z.device).unsqueeze(0)
    return torch.cat([weight.view(heads, -1, d).mT, bias.view(heads, 1, -1)], dim=1)


def _split(augmented: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weight and bias of all heads from W̄, or their gradients."""
    assert augmented is not None
    return augmented[:, :-1].mT.flatten(0, 1), augmented[:, -1].flatten()


def _with_mass(value: Tensor) -> Tensor:
    """[W̄_v, e]: the sum of ones is the mass."""
    one = value.new_zeros(*value.shape[:-1], 1)
    one[:, -1] = 1
    return torch.cat([value, one], dim=-1)

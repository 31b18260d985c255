"""The simple diffusivity under the whole-tensor norm: two products with the states are enough.

Dividing by the norm of the whole tensor is linear in a row, so queries and keys need not exist.
With z̄ = [z, 1], the Gram matrix Ḡ = Σ z̄_j z̄_jᵀ and maps W̄ = [Wᵀ; bᵀ] of q, k and v:

    ‖Q‖² = ⟨W̄_q, Ḡ W̄_q⟩,  Σ k_j v_jᵀ = W̄_kᵀ Ḡ W̄_v,  Σ k_j = W̄_kᵀ Ḡ e,  Σ v_j = W̄_vᵀ Ḡ e

(e the last unit vector; ‖K‖² likewise), and numerator and mass of row i are one product z̄_i B with

    B = W̄_q [Σ k_j v_jᵀ, Σ k_j] / (‖Q‖ ‖K‖) + a e [Σ v_jᵀ, n]

All but Ḡ and the last product is O(d³), whatever the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.core.fused import KEPT_NUMBERS, ROW_CHUNK, Affine
from difformer.core.tiled import tiles

__all__ = ["whole_tensor_average_of_states"]


def whole_tensor_average_of_states(
    z: Tensor, query: Affine, key: Affine, value: Affine, heads: int, constant: float
) -> Tensor:
    """P averaged over heads, (n, d): O(n d² h) time, five products of it forward and backward."""
    gram = _Gram.apply(z)
    q, k, v = (_augmented(affine, z, heads) for affine in (query, key, value))
    one = torch.eye(z.shape[1] + 1, dtype=z.dtype, device=z.device)[:, -1:].expand(len(v), -1, 1)
    values = torch.cat([v, one], dim=-1)  # [W̄_v, e]: the sum of ones is the mass
    k_gram = k.mT @ gram
    # Two factors: the product of two vanishing squares would underflow.
    tiny = torch.finfo(z.dtype).tiny
    per_query = (q * (gram @ q)).sum().clamp_min(tiny).rsqrt()
    per_key = (k_gram.mT * k).sum().clamp_min(tiny).rsqrt()
    pulled = q @ (k_gram @ values) * per_query * per_key
    uniform = constant * (one * (gram[-1:] @ values))
    return _Quotient.apply(z, pulled + uniform)


def _augmented(affine: Affine, z: Tensor, heads: int) -> Tensor:
    """W̄ (h, d + 1, d), or (1, d + 1, d) for the states themselves."""
    if affine is None:
        return torch.eye(z.shape[1] + 1, z.shape[1], dtype=z.dtype, device=z.device).unsqueeze(0)
    weight, bias = affine
    return torch.cat([weight.T, bias.unsqueeze(0)]).view(z.shape[1] + 1, heads, -1).transpose(0, 1)


class _Gram(torch.autograd.Function):
    """Ḡ (d + 1, d + 1); ∂z_i = (∂Ḡ + ∂Ḡᵀ) z̄_i without its last entry."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
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

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        both = grads[0] + grads[0].T
        return torch.addmm(both[-1, :-1], z, both[:-1, :-1])


class _Quotient(torch.autograd.Function):
    """Mean over heads of (z̄ B)[:, :d] / (z̄ B)[:, d] for B (h, d + 1, d + 1)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, b: Tensor) -> Tensor:
        (n, d), heads = z.shape, b.shape[0]
        out, mass = torch.empty_like(z), z.new_empty(heads, n, 1)
        for rows in tiles(n, ROW_CHUNK):
            for h in range(heads):
                m = torch.addmm(b[h, d:, d:], z[rows], b[h, :d, d:], out=mass[h, rows])
                if h == 0:
                    numerator = torch.addmm(b[h, d, :d], z[rows], b[h, :d, :d], out=out[rows])
                    numerator.div_(m)
                else:
                    out[rows].addcdiv_(torch.addmm(b[h, d, :d], z[rows], b[h, :d, :d]), m)
            if heads > 1:
                out[rows].div_(heads)
        keep = heads == 1 and z.numel() <= KEPT_NUMBERS
        ctx.save_for_backward(z, b, mass, out if keep else None)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        z, b, mass, out = ctx.saved_tensors
        grad, ((n, d), heads) = grads[0], (z.shape, b.shape[0])
        dz, db = torch.empty_like(z), torch.zeros_like(b)
        buffer = z.new_empty(min(n, ROW_CHUNK), d + 1)
        for rows in tiles(n, ROW_CHUNK):
            part = z[rows]
            # [∂numerator, ∂mass] side by side: one product for each of dz and dB.
            both = buffer[: part.shape[0]]
            numerator, dmass = both[:, :d], both[:, d:]
            for h in range(heads):
                m = mass[h, rows]
                if out is None:
                    average = torch.addmm(b[h, d, :d], part, b[h, :d, :d]).div_(m)
                else:
                    average = out[rows]
                torch.div(grad[rows], m if heads == 1 else m * heads, out=numerator)
                torch.linalg.vecdot(average, numerator, out=dmass.squeeze(1))
                dmass.neg_()
                db[h, :d].addmm_(part.T, both)
                db[h, d].add_(both.sum(0))
                if h == 0:
                    torch.mm(both, b[h, :d].T, out=dz[rows])
                else:
                    dz[rows].addmm_(both, b[h, :d].T)
        return dz, db

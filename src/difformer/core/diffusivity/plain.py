"""Diffusivities of one formula: identity, constant, sigmoid (DIFFormer-a) and softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Mean, Pairs, row_count
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.rows import total_of_squares
from difformer.core.tiled import (
    SIGMOID_FLOOR,
    are_tied,
    sigmoid_average,
    tied_sigmoid_average,
)


class Identity(Diffusivity):
    """Ablation: no row influences another, Ŝ = I; the model is then an MLP. δ = 0."""

    name = "identity"
    local = True
    compares = False

    def f(self, z2: Tensor) -> Tensor:
        return torch.zeros_like(z2)

    def delta(self, z2: Tensor) -> Tensor:
        return torch.zeros_like(z2)

    def pair_penalty(self, z: Tensor) -> Tensor:
        return z.new_zeros(())

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z, torch.ones_like(z[:, :1])  # every row influences only itself

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.weights_of(slice(None), q, k)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        _check_rows(q, k)
        own = torch.arange(k.shape[-2], device=q.device)[rows]
        return F.one_hot(own, k.shape[-2]).to(q.dtype).expand(*q.shape[:-2], -1, -1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        _check_rows(q, context.value)
        return context.value


def _check_rows(q: Tensor, k: Tensor) -> None:
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"the identity diffusivity needs as many queries as keys, got {q.shape[-2]} "
            f"and {k.shape[-2]}"
        )


class Constant(Diffusivity):
    """Ablation: the same weight for every pair, Ŝ = 1/m; O(n d). f = 1, δ(z²) = z²."""

    name = "constant"
    separable = True
    compares = False

    def f(self, z2: Tensor) -> Tensor:
        return torch.ones_like(z2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2

    def pair_penalty(self, z: Tensor) -> Tensor:
        return total_of_squares(z)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return q.new_ones(*q.shape[:-1], k.shape[-2])

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Mean:
        return Mean(value_sum=v.sum(-2, keepdim=True), count=row_count(k))

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Mean)
        mean = context.value_sum / context.count
        return mean.expand(*mean.shape[:-2], q.shape[-2], mean.shape[-1])


class Sigmoid(Diffusivity):
    """DIFFormer-a: ω = σ(q·k) (eq. 10); exact in tiles, O(n m d) time and O(n + m) memory.

    On unit vectors f(z²) = 1 / (1 + e^{z²/2 − 1}), δ(z²) = z² − 2 log(e^{z²/2 − 1} + 1).
    """

    name = "sigmoid"

    def f(self, z2: Tensor) -> Tensor:
        return torch.sigmoid(1.0 - z2 / 2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2 - 2.0 * F.softplus(z2 / 2 - 1.0)

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rows whose products are the scores: ω_ij = σ(a_i·b_j)."""
        return q, k

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        a, b = self.factors(q, k)
        return torch.sigmoid(a @ b.mT) + SIGMOID_FLOOR

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        (q, k), v = self.factors(q, context.key), context.value
        return tied_sigmoid_average(q, v) if are_tied(q, k) else sigmoid_average(q, k, v)


class Softmax(Diffusivity):
    """Ablation "full attention": ω = exp(q·k / √d); PyTorch's own fused attention, O(n + m) memory.

    On unit vectors of width d, tied: f(z²) = exp(1 − z²/2) at unit temperature,
    δ(z²) = 2 e (1 − e^{−z²/2}).
    """

    name = "softmax"

    def f(self, z2: Tensor) -> Tensor:
        return torch.exp(1.0 - z2 / 2)

    def delta(self, z2: Tensor) -> Tensor:
        return -2.0 * math.e * torch.expm1(-z2 / 2)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        # Shifted by the row's maximum: the plain quotient overflows where exp does.
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        return softmax_average(q, context.key, context.value, 1.0 / math.sqrt(q.shape[-1]))


def softmax_average(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Σ_j softmax_j(scale q_i·k_j) v_j (..., n, e), in O(n + m) memory."""
    width = max(q.shape[-1], v.shape[-1])
    # Equal widths let PyTorch take its fused kernel, which keeps no n × m matrix.
    q, k = F.pad(q, (0, width - q.shape[-1])), F.pad(k, (0, width - k.shape[-1]))
    value = F.pad(v, (0, width - v.shape[-1]))
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], value.shape[:-2])
    q4, k4, v4 = (
        t.expand(*lead, *t.shape[-2:]).flatten(0, -4)
        if len(lead) > 1
        else t.expand(*lead, *t.shape[-2:]).unsqueeze(0)
        for t in (q, k, value)
    )
    out = F.scaled_dot_product_attention(q4, k4, v4, scale=scale)
    return out.reshape(*lead, *out.shape[-2:])[..., : v.shape[-1]]

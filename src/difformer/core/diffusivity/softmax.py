"""The softmax diffusivity, "full attention", through PyTorch's own fused attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity.base import Diffusivity

__all__ = ["Softmax", "softmax_average"]


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

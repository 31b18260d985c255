"""The Gaussian diffusivity, a kernel of the distance between query and key."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.diffusivity.softmax import softmax_average

__all__ = ["Gaussian"]


class Gaussian(Diffusivity):
    """Ablation "kernel": ω = exp(−‖q − k‖² / (2 s²)) with bandwidth s; O(n + m) memory.

    f(z²) = exp(−z² / (2 s²)), δ(z²) = 2 s² (1 − e^{−z² / (2 s²)}).
    """

    name = "gaussian"

    def __init__(self, bandwidth: float = 1.0) -> None:
        if not bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
        self.bandwidth = bandwidth

    def f(self, z2: Tensor) -> Tensor:
        return torch.exp(-z2 / (2 * self.bandwidth**2))

    def delta(self, z2: Tensor) -> Tensor:
        s2 = self.bandwidth**2
        return -2 * s2 * torch.expm1(-z2 / (2 * s2))

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        z2 = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2) - 2 * (q @ k.mT)
        return self.f(z2.clamp_min(0))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(self._scores(q, k), dim=-1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        # The query's own norm cancels in the quotient; the key's rides along as one more column.
        assert isinstance(context, Pairs)
        k = context.key
        q = torch.cat([q, q.new_ones(*q.shape[:-1], 1)], dim=-1)
        k = torch.cat([k, -k.square().sum(-1, keepdim=True) / 2], dim=-1)
        return softmax_average(q, k, context.value, 1.0 / self.bandwidth**2)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT - k.square().sum(-1).unsqueeze(-2) / 2) / self.bandwidth**2

    def __repr__(self) -> str:
        return f"Gaussian(bandwidth={self.bandwidth})"

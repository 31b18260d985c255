"""The constant diffusivity: every pair has the same weight."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.core.context import Context, Mean, row_count
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.pairs import total_of_squares

__all__ = ["Constant"]


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

"""The sigmoid diffusivity of DIFFormer-a, exact in tiles."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.fused import Affine
from difformer.core.tied import tied_sigmoid_average
from difformer.core.tiled import DENSE_SCORES, SIGMOID_FLOOR, sigmoid_average

__all__ = ["Sigmoid"]


class Sigmoid(Diffusivity):
    """DIFFormer-a: ω = σ(q·k) (eq. 10); exact in tiles, O(n m d) time and O(n + m) memory.

    On unit vectors f(z²) = 1 / (1 + e^{z²/2 − 1}), δ(z²) = z² − 2 log(e^{z²/2 − 1} + 1).
    """

    name = "sigmoid"

    def f(self, z2: Tensor) -> Tensor:
        return torch.sigmoid(1.0 - z2 / 2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2 - 2.0 * F.softplus(z2 / 2 - 1.0)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.sigmoid(q @ k.mT) + SIGMOID_FLOOR

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        return sigmoid_average(q, context.key, context.value)

    def of_states(self, z: Tensor, query: Affine, key: Affine, value: Affine, heads: int) -> Tensor:
        plain = torch.compiler.is_compiling() or z.is_cuda or z.shape[0] ** 2 <= DENSE_SCORES
        if plain or query is not None or key is not None:
            return super().of_states(z, query, key, value, heads)
        # All heads share the weights, so the mean of their values is enough.
        if value is None:
            return tied_sigmoid_average(z, z)
        weight, bias = (t.view(heads, -1, *t.shape[1:]).mean(0) for t in value)
        return tied_sigmoid_average(z, F.linear(z, weight, bias))

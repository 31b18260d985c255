"""The sigmoid diffusivity of DIFFormer-a, exact in tiles."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.tied import are_tied, tied_sigmoid_average
from difformer.core.tiled import SIGMOID_FLOOR, sigmoid_average

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

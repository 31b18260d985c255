"""One explicit Euler step as a single linear operation, with the graph's product added in place.

    U = a Z + b P + c Ã V + e Z⁽⁰⁾

Written term by term it would pass over (n, d) twice as often, forward and backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from difformer.core.sparse import SparseMatrix

__all__ = ["StepWeights", "euler_step"]


class StepWeights(NamedTuple):
    """What an Euler step gives the state, the all-pair average, the neighbours and the source."""

    state: float
    pairs: float
    neighbours: float
    source: float


def euler_step(
    weights: StepWeights,
    z: Tensor,
    pairs: Tensor,
    first: Tensor | None = None,
    adjacency: SparseMatrix | None = None,
    value: Tensor | None = None,
) -> Tensor:
    """U (n, d), in O(n d + nonzeros d); `value` is V, the states where it is None."""
    return _Step.apply(z, pairs, first, value, adjacency, weights)


class _Step(torch.autograd.Function):
    """Linear, so the backward pass keeps nothing: ∂Z = a g [+ c Ãᵀ g], ∂P = b g, and so on."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        pairs: Tensor,
        first: Tensor | None,
        value: Tensor | None,
        adjacency: SparseMatrix | None,
        weights: StepWeights,
    ) -> Tensor:
        ctx.rest = (value is None, first is not None, adjacency, weights)
        out = z * weights.state
        out.add_(pairs, alpha=weights.pairs)
        if first is not None:
            out.add_(first, alpha=weights.source)
        if adjacency is not None:
            adjacency.add_product(out, z if value is None else value, weights.neighbours)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        own, sourced, adjacency, weights = ctx.rest
        grad = grads[0]
        dz, dvalue = grad * weights.state, None
        if adjacency is not None:
            if not own:
                dvalue = torch.zeros_like(grad)
            adjacency.add_transposed_product(dz if own else dvalue, grad, weights.neighbours)
        dfirst = grad * weights.source if sourced else None
        return dz, grad * weights.pairs, dfirst, dvalue, None, None

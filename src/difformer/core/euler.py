"""One explicit Euler step as a single operation, with the graph's product added in place.

    U = a Z + b P + c Ã V + e Z⁽⁰⁾

Written term by term it would pass over (n, d) twice as often, forward and backward. Where the
average P is computed directly from the states, U overwrites P, and neither is kept for backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from difformer.core.sparse import SparseMatrix

Affine = tuple[Tensor, Tensor] | None
"""Weight (h·d, d) and bias (h·d,) of a map of the states; None for the states themselves."""


class StepWeights(NamedTuple):
    """What an Euler step gives the state, the all-pair average, the neighbours and the source."""

    state: float
    pairs: float
    neighbours: float
    source: float


Tensors = Sequence[Tensor | None]
"""Some tensors; None for one that is not needed."""


class Averaged(NamedTuple):
    """What an average of states is made from."""

    z: Tensor  # (n, d)
    maps: Tensors  # weight and bias of query, key and value, one after the other
    weights: StepWeights


class AverageOfStates(Protocol):
    """An all-pair average of maps of the states, with hand-written gradients."""

    def forward(self, of: Averaged) -> tuple[Tensor, Tensors, Any]:
        """a Z + b P (n, d), new; tensors of many rows to keep; small things to keep."""
        ...

    def backward(
        self, grad: Tensor, of: Averaged, kept: Tensors, small: Any
    ) -> tuple[Tensor, Tensors]:
        """∂z (n, d), new, and the gradients of the maps."""
        ...


def euler_step(
    weights: StepWeights,
    z: Tensor,
    average: AverageOfStates | Tensor,
    maps: Sequence[Affine] = (),
    *,
    first: Tensor | None = None,
    adjacency: SparseMatrix | None = None,
    value: Tensor | None = None,
) -> Tensor:
    """U (n, d), in O(n d + nonzeros d) beside the average.

    Args:
        average: P itself, or how it is made from the states and these maps: then it is written in
            place and never stored separately.
        value: V; the states where it is None.
    """
    if isinstance(average, Tensor):
        return _Step.apply(z, first, value, adjacency, weights, None, average)
    flat = [t for affine in maps for t in (affine or (None, None))]
    return _Step.apply(z, first, value, adjacency, weights, average, *flat)


def average_of_states(z: Tensor, average: AverageOfStates, maps: Sequence[Affine]) -> Tensor:
    """P (n, d) alone."""
    return euler_step(StepWeights(0.0, 1.0, 0.0, 0.0), z, average, maps)


def add_product(out: Tensor, adjacency: SparseMatrix, value: Tensor, weight: float) -> Tensor:
    """out + c Ã V, written into `out`, which must not be used again. O(nonzeros d)."""
    return _AddProduct.apply(out, value, adjacency, weight)


class _AddProduct(torch.autograd.Function):
    """Linear: the gradient of `out` passes through, ∂V = c Ãᵀ g."""

    @staticmethod
    def forward(
        ctx: Any, out: Tensor, value: Tensor, adjacency: SparseMatrix, weight: float
    ) -> Tensor:
        ctx.rest = (adjacency, weight, value.shape)
        ctx.mark_dirty(out)
        adjacency.add_product(out, value, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        adjacency, weight, shape = ctx.rest
        dvalue = grads[0].new_zeros(shape)
        adjacency.add_transposed_product(dvalue, grads[0], weight)
        return grads[0], dvalue, None, None


class _Step(torch.autograd.Function):
    """Linear in all but what P is made of: ∂Z = a g [+ c Ãᵀ g], ∂P = b g, ∂Z⁽⁰⁾ = e g, ∂V = c Ãᵀ g.

    Of a P that is given the backward pass keeps nothing, else the states and what ∂P needs.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        first: Tensor | None,
        value: Tensor | None,
        adjacency: SparseMatrix | None,
        weights: StepWeights,
        average: AverageOfStates | None,
        *given: Tensor | None,
    ) -> Tensor:
        ctx.rest = (value is None, first is not None, adjacency, weights, average)
        if average is None:
            out = (z * weights.state).add_(cast("Tensor", given[0]), alpha=weights.pairs)
        else:
            out, kept, small = average.forward(Averaged(z, given, weights))
            ctx.save_for_backward(z, *given, *kept)
            ctx.small, ctx.num_maps = small, len(given)
        if first is not None:
            out.add_(first, alpha=weights.source)
        if adjacency is not None:
            adjacency.add_product(out, z if value is None else value, weights.neighbours)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        (grad,), (own, sourced, adjacency, weights, average) = grads, ctx.rest
        if average is None:
            dz, dgiven = grad * weights.state, [grad * weights.pairs]
        else:
            z, *saved = ctx.saved_tensors
            of = Averaged(z, saved[: ctx.num_maps], weights)
            dz, dgiven = average.backward(grad, of, saved[ctx.num_maps :], ctx.small)
        dvalue = None
        if adjacency is not None:
            dvalue = None if own else torch.zeros_like(grad)
            adjacency.add_transposed_product(dz if own else dvalue, grad, weights.neighbours)
        dfirst = grad * weights.source if sourced else None
        return (dz, dfirst, dvalue, None, None, None, *dgiven)

"""One explicit Euler step as a single operation, with the graph's product added in place.

    U = a Z + b P + c Ã V + e Z⁽⁰⁾

Written term by term it would pass over (n, d) twice as often, forward and backward. Where the
average P is computed directly from the states, U overwrites P, and neither is kept for backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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
    pairs: Tensor,
    first: Tensor | None = None,
    adjacency: SparseMatrix | None = None,
    value: Tensor | None = None,
) -> Tensor:
    """U (n, d), in O(n d + nonzeros d); `value` is V, the states where it is None."""
    return _Step.apply(z, pairs, first, value, adjacency, weights)


def averaged_step(
    weights: StepWeights,
    z: Tensor,
    average: AverageOfStates,
    maps: Sequence[Affine],
    first: Tensor | None = None,
    adjacency: SparseMatrix | None = None,
    value: Tensor | None = None,
) -> Tensor:
    """U (n, d) with P = average(z, maps), which is written in place and never stored separately."""
    flat = [t for affine in maps for t in (affine or (None, None))]
    return _AveragedStep.apply(z, first, value, adjacency, weights, average, *flat)


def average_of_states(z: Tensor, average: AverageOfStates, maps: Sequence[Affine]) -> Tensor:
    """P (n, d) alone."""
    return averaged_step(StepWeights(0.0, 1.0, 0.0, 0.0), z, average, maps)


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
        out = (z * weights.state).add_(pairs, alpha=weights.pairs)
        return _add_rest(out, z, first, value, adjacency, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        grad, weights = grads[0], ctx.rest[-1]
        dz = grad * weights.state
        dfirst, dvalue = _rest_backward(dz, grad, *ctx.rest)
        return dz, grad * weights.pairs, dfirst, dvalue, None, None


class _AveragedStep(torch.autograd.Function):
    """The same with P computed in place of U; only the states and what ∂P needs are kept."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        first: Tensor | None,
        value: Tensor | None,
        adjacency: SparseMatrix | None,
        weights: StepWeights,
        average: AverageOfStates,
        *maps: Tensor | None,
    ) -> Tensor:
        out, kept, small = average.forward(Averaged(z, maps, weights))
        ctx.save_for_backward(z, *maps, *kept)
        ctx.average, ctx.small, ctx.num_maps = average, small, len(maps)
        ctx.rest = (value is None, first is not None, adjacency, weights)
        return _add_rest(out, z, first, value, adjacency, weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        z, *saved = ctx.saved_tensors
        maps, kept = saved[: ctx.num_maps], saved[ctx.num_maps :]
        grad, weights = grads[0], ctx.rest[-1]
        of = Averaged(z, maps, weights)
        dz, dmaps = ctx.average.backward(grad, of, kept, ctx.small)
        dfirst, dvalue = _rest_backward(dz, grad, *ctx.rest)
        return (dz, dfirst, dvalue, None, None, None, *dmaps)


def _add_rest(
    out: Tensor,
    z: Tensor,
    first: Tensor | None,
    value: Tensor | None,
    adjacency: SparseMatrix | None,
    weights: StepWeights,
) -> Tensor:
    """a Z + b P, made into U in place."""
    if first is not None:
        out.add_(first, alpha=weights.source)
    if adjacency is not None:
        adjacency.add_product(out, z if value is None else value, weights.neighbours)
    return out


def _rest_backward(
    dz: Tensor,
    grad: Tensor,
    own: bool,
    sourced: bool,
    adjacency: SparseMatrix | None,
    weights: StepWeights,
) -> tuple[Tensor | None, Tensor | None]:
    """Add the graph's part to ∂Z where it carries the states; ∂Z⁽⁰⁾ and, where it does not, ∂V."""
    dvalue = None
    if adjacency is not None:
        dvalue = None if own else torch.zeros_like(grad)
        into = dz if dvalue is None else dvalue
        adjacency.add_transposed_product(into, grad, weights.neighbours)
    return grad * weights.source if sourced else None, dvalue

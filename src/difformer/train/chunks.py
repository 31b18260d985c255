"""A whole graph through a model, exactly, a few rows at a time: layer by layer, in row chunks.

Contexts are additive, so a layer's context is the sum of its chunks' contexts; then each chunk is
moved by it. Beside the features and the graph this holds one or two (n, d) states (three with a
source term) and what one chunk needs: never queries, keys or values of all rows (-a keeps the last
two), and nothing for a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from difformer.core.context import Context
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.nn.layer import DiffusionLayer
from difformer.nn.model import DIFFormer

# 65,536 rows of width 128 are 32 MB: large enough for fast products, small beside the states.
CHUNK_ROWS = 2**16


@torch.no_grad()
def predict_in_chunks(
    model: DIFFormer, x: Tensor, graph: Graph | None = None, *, chunk: int = CHUNK_ROWS
) -> Tensor:
    """`model(x, graph)` for all rows, (n, out_channels), in eval mode and bounded memory.

    x may be memory-mapped: only a chunk of it is read at a time. Equal to the model's own forward
    up to rounding.
    """
    training = model.training
    model.eval()
    try:
        z = _embed(model, x, chunk)
        first = z.clone() if model.config.source else None
        prepared = None if graph is None or not model.config.use_graph else graph.to(z)
        for layer in model.layers:
            z = _layer(cast("DiffusionLayer", layer), z, first, prepared, chunk)
        return torch.cat([model.decode(z[rows]) for rows in tiles(z.shape[0], chunk)])
    finally:
        model.train(training)


def recompute_layers(model: DIFFormer) -> DIFFormer:
    """Make every layer keep only its input for the backward pass and compute the rest again.

    Memory falls from about two states a layer to one; a step takes about a third longer. The
    results are the same bits: dropout is drawn again from the same state. Returns the model.
    """
    for layer in model.layers:
        if not isinstance(layer, _Recomputed):
            layer.__class__ = _Recomputed
    return model


def recomputes(layer: nn.Module) -> bool:
    """Whether `recompute_layers` has been called for the layer's model."""
    return isinstance(layer, _Recomputed)


class _Recomputed(DiffusionLayer):
    """A layer whose inner results are not kept between forward and backward."""

    def forward(self, *arguments: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not torch.is_grad_enabled():
            return super().forward(*arguments)  # pyright: ignore[reportArgumentType]
        return computed_again(super().forward, *arguments)


def computed_again(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """The function's value; what it needs for the backward pass is computed again there."""
    states = (a for a in arguments if isinstance(a, Tensor))
    # Re-entrant where it can be: nothing at all is kept then, also not what a function of ours
    # notes down beside its saved tensors. It sees only gradients that come in by its arguments.
    entrant = any(state.requires_grad for state in states)
    return cast("Tensor", checkpoint(function, *arguments, use_reentrant=entrant))


def _embed(model: DIFFormer, x: Tensor, chunk: int) -> Tensor:
    n, weight = x.shape[0], model.input.weight
    z = torch.empty(n, model.hidden_channels, dtype=weight.dtype, device=weight.device)
    sparse = None if x.layout == torch.strided else SparseMatrix.from_csr(x)
    for rows in tiles(n, chunk):
        part = x[rows].to(weight.device) if sparse is None else sparse.block(rows)
        z[rows] = model.embed(model.check_features(part) if isinstance(part, Tensor) else part)
    return z


def _layer(
    layer: DiffusionLayer, z: Tensor, first: Tensor | None, graph: Graph | None, chunk: int
) -> Tensor:
    """One layer over all rows; overwrites z where no other row still needs it."""
    kernel = layer.diffusivity
    values = None
    if graph is not None:
        values = z if layer.value is None else torch.empty_like(z)
    context: Context | None = None
    for rows in tiles(z.shape[0], chunk):
        part = z[rows]
        if not kernel.local:
            q, k, v = layer.project(part)
            mine = kernel.summarise(k, v, q)
            context = mine if context is None else context + mine
        if values is not None and values is not z:
            values[rows] = layer.mean_value(part)
    # Without a graph, or with its values apart, a chunk's own rows are all it takes from z.
    out = torch.empty_like(z) if values is z else z
    for rows in tiles(z.shape[0], chunk):
        part = z[rows]
        q, k, v = layer.project(part)
        known = kernel.summarise(k, v, q) if context is None else context
        pairs = kernel.apply(q, known).mean(-3)
        near = None
        if graph is not None and values is not None:
            near = graph.adjacency.block(rows).matmul(values)
        mixed = layer.mix(part, pairs, near, None if first is None else first[rows])
        out[rows] = mixed if layer.config.center else layer.finish(mixed)
    if layer.config.center:
        mean = layer.row_mean(out)
        for rows in tiles(out.shape[0], chunk):
            out[rows] = layer.finish(out[rows] - mean)
    return out

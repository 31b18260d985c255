"""Run a model on a whole graph exactly, layer by layer, a chunk of rows at a time.

Contexts are additive, so a layer's context is the sum of its chunks' contexts; it is then applied
to each chunk. Besides the features and the graph, memory holds one or two (n, d) states (three with
a source term) and what one chunk needs: never the queries, keys or values of all rows (-a keeps the
last two), and nothing for a backward pass.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from difformer.core.context import Context
from difformer.core.diffusivity import Diffusivity
from difformer.core.fixed import FixedAverage
from difformer.core.graph import Graph
from difformer.core.randomness import drawing_from, generator
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.nn.exchange import Exchange
from difformer.nn.layer import DiffusionLayer
from difformer.nn.model import DIFFormer

# 65,536 rows of width 128 are 32 MB: large enough for fast products, small beside the states.
CHUNK_ROWS = 2**16


@torch.no_grad()
def predict_in_chunks(
    model: DIFFormer, x: Tensor, graph: Graph | None = None, *, chunk: int = CHUNK_ROWS
) -> Tensor:
    """`model(x, graph)` for all rows, (n, out_channels), in eval mode and bounded memory.

    x may be memory-mapped: one chunk is read at a time. Equal to the model's own forward
    up to rounding.
    """
    training = model.training
    model.eval()
    try:
        features = x if x.layout == torch.strided else SparseMatrix.from_csr(x)
        model.choose_landmarks(features)
        landmarks, fixed = model.compared_landmarks(), model.fixed_average(features)
        z, compared = _embed(model, x, chunk, looks=fixed is None)
        if compared is not None:
            whole = Exchange()
            whole.landmarks = landmarks
            compared = model.prepared(compared, whole)
        first = z.clone() if model.config.source else None
        prepared = model.prepare_graph(graph, None, z)
        for layer in model.layers:
            known = _Rows(z, first, compared, prepared, fixed, landmarks)
            z = _layer(cast("DiffusionLayer", layer), known, chunk)
        return torch.cat([model.decode(z[rows]) for rows in tiles(z.shape[0], chunk)])
    finally:
        model.train(training)


def recompute_layers(model: DIFFormer) -> DIFFormer:
    """Make every layer keep only its input for the backward pass and recompute the rest.

    Memory falls from about two states per layer to one; a step takes about a third longer. The
    results are the same bits: dropout is drawn again from the same state. Returns the model.
    """
    for layer in model.layers:
        if not isinstance(layer, _Recomputed):
            layer.__class__ = _Recomputed
    return model


class _Recomputed(DiffusionLayer):
    """A layer whose inner results are not kept between forward and backward."""

    def forward(self, *arguments: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        run: Callable[..., Tensor] = super().forward
        if not torch.is_grad_enabled():
            return run(*arguments)
        own, first = generator(), True
        state = None if own is None else own.get_state()

        def same(*arguments: object) -> Tensor:
            """Recompute from the random state of the first pass, so that dropout is the same."""
            nonlocal first
            if own is None or state is None or first:
                first = False
                return run(*arguments)
            now = own.get_state()
            own.set_state(state)
            try:
                with drawing_from(own):
                    return run(*arguments)
            finally:
                own.set_state(now)

        # Re-entrant where possible: then nothing at all is kept, not even what our autograd
        # functions store beside their saved tensors. It sees only gradients that arrive through its
        # arguments.
        entrant = any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        return cast("Tensor", checkpoint(same, *arguments, use_reentrant=entrant))


def _embed(model: DIFFormer, x: Tensor, chunk: int, looks: bool) -> tuple[Tensor, Tensor | None]:
    """The first states of all rows and, if `looks`, what the rows are compared by."""
    n, weight = x.shape[0], model.input.weight
    z = torch.empty(n, model.hidden_channels, dtype=weight.dtype, device=weight.device)
    compared: list[Tensor] = []
    sparse = None if x.layout == torch.strided else SparseMatrix.from_csr(x)
    for rows in tiles(n, chunk):
        part = x[rows].to(weight.device) if sparse is None else sparse.block(rows)
        part = model.check_features(part) if isinstance(part, Tensor) else part
        z[rows] = first = model.embed(part)
        seen = model.compared(part, first) if looks else None
        if seen is not None:
            compared.append(seen if isinstance(seen, Tensor) else seen.csr.to_dense())
    return z, torch.cat(compared) if compared else None


@dataclass(frozen=True)
class _Rows:
    """All rows before a layer, and how they exchange values."""

    z: Tensor
    first: Tensor | None
    compared: Tensor | None
    graph: Graph | None
    fixed: FixedAverage | None
    landmarks: Tensor | None


def _layer(layer: DiffusionLayer, known: _Rows, chunk: int) -> Tensor:
    """One layer over all rows; overwrites z where no other row still needs it."""
    z, first, compared = known.z, known.first, known.compared
    graph, fixed, landmarks = known.graph, known.fixed, known.landmarks
    parts = list(tiles(z.shape[0], chunk))
    meets, context, keys = graph is not None or fixed is not None, None, None
    if fixed is None and not layer.diffusivity.local:
        learned = compared is None or layer.query is not None
        if layer.diffusivity.prepares and learned and landmarks is None:
            found = [layer.unprepared(z[rows], _part(compared, rows))[1] for rows in parts]
            keys = torch.cat(found, dim=-2)
        among = _Chunk(None, None, z, keys)
        among.landmarks = landmarks
        mine = (layer.summarise(z[rows], _part(compared, rows), among) for rows in parts)
        context = reduce(operator.add, mine)
    values = z
    if meets and layer.value is not None:
        values = torch.empty_like(z)
        for rows in parts:
            values[rows] = layer.mean_value(z[rows])
    # Without a graph, or with separate values, a chunk reads only its own rows of z.
    out = z if not meets or values is not z else torch.empty_like(z)
    if layer.config.residual and layer.config.center and out is z:
        out = torch.empty_like(z)  # the states are needed again, after the mean
    for rows in parts:
        block = None if graph is None else graph.adjacency.block(rows)
        exchange = _Chunk(context, block, values, keys)
        exchange.landmarks = landmarks
        exchange.fixed = None if fixed is None else _OfAll(fixed.block(rows), values)
        moved = layer.move(z[rows], _part(first, rows), exchange, _part(compared, rows))
        out[rows] = moved if layer.config.center else layer.finish(moved, z[rows])
    if layer.config.center:
        mean = Exchange().mean(out)
        for rows in parts:
            out[rows] = layer.finish(out[rows] - mean, z[rows])
    return out


class _Chunk(Exchange):
    """Some rows that meet all rows, whose context and values are already known."""

    here = False

    def __init__(
        self,
        merged: Context | None,
        block: SparseMatrix | None,
        values: Tensor,
        keys: Tensor | None,
    ) -> None:
        super().__init__()
        self.merged, self.block, self.values, self.keys = merged, block, values, keys

    def known(self, k: Tensor) -> Tensor | None:
        return self.keys

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        return super().context(kernel, q, k, v) if self.merged is None else self.merged

    def neighbours(self, value: Tensor | None) -> Tensor | None:
        return None if self.block is None else self.block.matmul(self.values)


@dataclass(frozen=True)
class _OfAll(FixedAverage):
    """Some rows of Ŝ, applied to the values of all rows, which are already known."""

    rows: FixedAverage
    values: Tensor

    def average(self, value: Tensor) -> Tensor:
        return self.rows.average(self.values)


def _part(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]

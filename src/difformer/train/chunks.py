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
from difformer.core.draws import drawing_from, generator
from difformer.core.fixed import FixedAverage
from difformer.core.graph import Graph
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
            compared = model.prepared(compared, Exchange(landmarks=landmarks))
        first = z.clone() if model.config.source else None
        prepared = model.prepare_graph(graph, None, z)
        for layer in model.layers:
            known = _Rows(z, first, compared, prepared, fixed, landmarks, chunk)
            z = _layer(cast("DiffusionLayer", layer), known)
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
        part = x[rows].to(weight.device) if sparse is None else sparse[rows]
        part = model.check_features(part) if isinstance(part, Tensor) else part
        z[rows] = first = model.embed(part)
        seen = model.compared(part, first) if looks else None
        if seen is not None:
            compared.append(seen.to_dense())
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
    chunk: int

    @property
    def parts(self) -> list[slice]:
        return list(tiles(self.z.shape[0], self.chunk))

    def keys(self, layer: DiffusionLayer) -> Tensor | None:
        """The keys of all rows, if the layer's diffusivity calibrates each row by them."""
        if self.fixed is not None or layer.diffusivity.local or self.landmarks is not None:
            return None
        learned = self.compared is None or layer.query is not None
        if not layer.diffusivity.prepares or not learned:
            return None
        found = [layer.unprepared(self.z[r], _part(self.compared, r))[1] for r in self.parts]
        return torch.cat(found, dim=-2)

    def context(self, layer: DiffusionLayer, keys: Tensor | None) -> Context | None:
        """The sum of the contexts of all chunks; None where none is needed."""
        if self.fixed is not None or layer.diffusivity.local:
            return None
        among = _Chunk(None, None, self.z, keys, landmarks=self.landmarks)
        parts = ((self.z[rows], _part(self.compared, rows)) for rows in self.parts)
        return reduce(operator.add, (layer.summarise(*part, among) for part in parts))

    def values(self, layer: DiffusionLayer) -> Tensor:
        """What a graph, or a fixed average, carries from row to row."""
        if layer.value is None or (self.graph is None and self.fixed is None):
            return self.z
        values = torch.empty_like(self.z)
        for rows in self.parts:
            values[rows] = layer.mean_value(self.z[rows])
        return values

    def room(self, layer: DiffusionLayer, values: Tensor) -> Tensor:
        """Where the next states go: over z, unless it is read again after its rows are written."""
        carried = values is self.z and (self.graph is not None or self.fixed is not None)
        added = layer.config.residual and layer.config.center  # after the mean of all rows
        return torch.empty_like(self.z) if carried or added else self.z


def _layer(layer: DiffusionLayer, known: _Rows) -> Tensor:
    """One layer over all rows."""
    z, keys, values = known.z, known.keys(layer), known.values(layer)
    context, out = known.context(layer, keys), known.room(layer, values)
    for rows in known.parts:
        block = None if known.graph is None else known.graph.adjacency[rows]
        fixed = None if known.fixed is None else _OfAll(known.fixed.block(rows), values)
        exchange = _Chunk(context, block, values, keys, landmarks=known.landmarks, fixed=fixed)
        moved = layer.move(z[rows], _part(known.first, rows), exchange, _part(known.compared, rows))
        out[rows] = moved if layer.config.center else layer.finish(moved, z[rows])
    if layer.config.center:
        mean = Exchange().mean(out)
        for rows in known.parts:
            out[rows] = layer.finish(out[rows] - mean, z[rows])
    return out


class _Chunk(Exchange):
    """Some rows that interact with all rows, whose context and values are already known."""

    here = False

    def __init__(
        self,
        merged: Context | None,
        block: SparseMatrix | None,
        values: Tensor,
        keys: Tensor | None,
        *,
        landmarks: Tensor | None,
        fixed: FixedAverage | None = None,
    ) -> None:
        super().__init__(landmarks=landmarks, fixed=fixed)
        self.merged, self.block, self.values, self.keys = merged, block, values, keys

    def known(self, k: Tensor) -> Tensor | None:
        return self.keys

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        return super().context(kernel, q, k, v) if self.merged is None else self.merged

    def neighbours(self, value: Tensor | None) -> Tensor | None:
        return None if self.block is None else self.block @ self.values


@dataclass(frozen=True)
class _OfAll(FixedAverage):
    """Some rows of Ŝ, applied to the values of all rows, which are already known."""

    rows: FixedAverage
    values: Tensor

    def average(self, value: Tensor) -> Tensor:
        return self.rows.average(self.values)


def _part(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]

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
        whole = Exchange(landmarks=model.compared_landmarks(), fixed=model.fixed_average(features))
        z, compared = _embed(model, features, chunk, looks=whole.fixed is None)
        if compared is not None:
            compared = model.prepared(compared, Exchange(landmarks=whole.landmarks))
        first = z.clone() if model.config.source else None
        whole.graph = model.prepare_graph(graph, None, z)
        for layer in model.layers:
            z = _layer(cast("DiffusionLayer", layer), z, first, compared, whole, chunk)
        return torch.cat([model.decode(z[rows]) for rows in tiles(z.shape[0], chunk)])
    finally:
        model.train(training)


def _embed(
    model: DIFFormer, features: Tensor | SparseMatrix, chunk: int, *, looks: bool
) -> tuple[Tensor, Tensor | None]:
    """The first states of all rows and, if `looks`, what the rows are compared by."""
    n, weight = features.shape[0], model.input.weight
    z = torch.empty(n, model.hidden_channels, dtype=weight.dtype, device=weight.device)
    compared: list[Tensor] = []
    for rows in tiles(n, chunk):
        part = features[rows]
        if isinstance(part, Tensor):
            part = model.check_features(part.to(weight.device))
        z[rows] = first = model.embed(part)
        seen = model.compared(part, first) if looks else None
        if seen is not None:
            compared.append(seen.to_dense())
    return z, torch.cat(compared) if compared else None


def _layer(
    layer: DiffusionLayer,
    z: Tensor,
    first: Tensor | None,
    compared: Tensor | None,
    whole: Exchange,
    chunk: int,
) -> Tensor:
    """One layer over all rows."""
    config, exchange = layer.config, _Chunk(whole, z)
    parts = [(rows, z[rows], _part(compared, rows)) for rows in tiles(z.shape[0], chunk)]
    if whole.fixed is None and not layer.diffusivity.local:
        learned = compared is None or layer.query is not None
        if whole.landmarks is None and layer.diffusivity.prepares and learned:
            keys = [layer.unprepared(some, seen)[1] for _, some, seen in parts]
            exchange.keys = torch.cat(keys, dim=-2)
        summaries = (layer.summarise(some, seen, exchange) for _, some, seen in parts)
        exchange.merged = reduce(operator.add, summaries)
    carries = whole.graph is not None or whole.fixed is not None
    if carries and layer.value is not None:
        exchange.values = torch.empty_like(z)
        for rows, some, _ in parts:
            exchange.values[rows] = layer.mean_value(some)
    # Over z, unless it is read again after its rows are written.
    again = (carries and layer.value is None) or (config.residual and config.center)
    out = torch.empty_like(z) if again else z
    for rows, some, seen in parts:
        exchange.take(rows)
        moved = layer.move(some, _part(first, rows), exchange, seen)
        out[rows] = moved if config.center else layer.finish(moved, some)
    if config.center:
        mean = Exchange().mean(out)
        for rows, some, _ in parts:
            out[rows] = layer.finish(out[rows] - mean, some)
    return out


class _Chunk(Exchange):
    """Some rows that interact with all rows, whose context and values are already known."""

    here = False

    def __init__(self, whole: Exchange, values: Tensor) -> None:
        super().__init__(landmarks=whole.landmarks)
        self.whole, self.values = whole, values  # (n, d): what a graph or a fixed average carries
        self.keys: Tensor | None = None  # if the diffusivity calibrates each row by those of all
        self.merged: Context | None = None
        self.block: SparseMatrix | None = None  # of the graph's matrix

    def take(self, rows: slice) -> None:
        """Go on to these rows."""
        graph, fixed = self.whole.graph, self.whole.fixed
        self.block = None if graph is None else graph.adjacency[rows]
        self.fixed = None if fixed is None else OfAll(fixed.block(rows), lambda _: self.values)

    def known(self, k: Tensor) -> Tensor | None:
        return self.keys

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        return super().context(kernel, q, k, v) if self.merged is None else self.merged

    def neighbours(self, value: Tensor | None) -> Tensor | None:
        return None if self.block is None else self.block @ self.values


@dataclass(frozen=True)
class OfAll(FixedAverage):
    """Some rows of Ŝ, applied to the values of all rows, which `gather` returns."""

    rows: FixedAverage
    gather: Callable[[Tensor], Tensor]

    def average(self, value: Tensor) -> Tensor:
        return self.rows.average(self.gather(value))


def _part(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]


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

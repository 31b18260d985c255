"""How new rows interact with the rows a model was frozen on: what each layer keeps of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import CONTEXTS, Context, Pairs
from difformer.core.diffusivity import Diffusivity
from difformer.nn.exchange import Exchange
from difformer.nn.passages import Passage

# The name of a layer's keys in a file.
KEY = "context.key"


@dataclass(frozen=True)
class FrozenLayer:
    """What one layer stores of the rows it was frozen on."""

    context: Context | None  # None where the diffusivity is local
    center: Tensor | None  # (1, d): the mean over rows that `center` subtracts
    value: Tensor | None  # (n, d): values of the rows, for edges from them; only with a graph

    @classmethod
    def of(cls, passage: Passage) -> FrozenLayer:
        """What the layer of a passage keeps of its rows."""
        layer, exchange = passage.layer, passage.exchange
        q, k, v = passage.project()
        center = None
        if layer.config.center:
            center = exchange.mean(layer.meet(passage.before, q, k, v, passage.first, exchange))
        context = None
        if not layer.diffusivity.local:
            context = layer.diffusivity.summarise(k, v, q).map(lambda t: t.detach().clone())
        return cls(context, center, None if exchange.graph is None else v.mean(0))

    def map(self, function: Callable[[Tensor], Tensor]) -> FrozenLayer:
        """The layer with `function` applied to each tensor."""
        context = None if self.context is None else self.context.map(function)
        center, value = (None if t is None else function(t) for t in (self.center, self.value))
        return FrozenLayer(context, center, value)

    def tensors(self) -> dict[str, Tensor]:
        """What it stores, by name."""
        inner = {} if self.context is None else self.context.tensors()
        kept = {f"context.{name}": tensor for name, tensor in inner.items()}
        kept |= {} if self.center is None else {"center": self.center}
        return kept if self.value is None else {**kept, "value": self.value}

    @classmethod
    def from_tensors(cls, kind: str | None, index: int, tensors: dict[str, Tensor]) -> FrozenLayer:
        """The layer number `index` of a file's tensors; where it has no keys, those of layer 0."""
        prefix = f"layer.{index}."
        mine = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        context = None
        if kind is not None:
            if kind not in CONTEXTS:
                raise ValueError(f"unknown context {kind!r}")
            own = {
                n.removeprefix("context."): t for n, t in mine.items() if n.startswith("context.")
            }
            if kind == Pairs.__name__ and "key" not in own:
                own["key"] = tensors[f"layer.0.{KEY}"]
            context = CONTEXTS[kind](**own)
        return cls(context, mine.get("center"), mine.get("value"))


class Known(Exchange):
    """New rows interact with known rows only, and may have edges from them."""

    here = False

    def __init__(
        self,
        kept: FrozenLayer,
        landmarks: Tensor | None,
        loops: bool | None = None,
        edges: tuple[Incoming, slice] | None = None,
    ) -> None:
        """`loops`: whether a row has an edge to itself; None without a graph."""
        super().__init__(landmarks=landmarks)
        self.kept, self.loops, self.edges = kept, loops, edges

    def known(self, k: Tensor) -> Tensor | None:
        return self.kept.context.key if isinstance(self.kept.context, Pairs) else None

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        return super().context(kernel, q, k, v) if self.kept.context is None else self.kept.context

    def neighbours(self, value: Tensor | None) -> Tensor | None:
        if self.loops is None or value is None:
            return None
        if self.edges is None:
            return value if self.loops else torch.zeros_like(value)
        incoming, rows = self.edges
        return incoming.average(rows, self.kept.value, value)

    def mean(self, u: Tensor) -> Tensor:
        if self.kept.center is None:  # in a damaged file
            raise ValueError("center must be stored for a layer that subtracts it")
        return self.kept.center


class Incoming:
    """The edges of new rows, scaled as in Ã; D counts a new row's own edges.

    A source is a known row, or a new one from index `known` on; `joined` says whether there are
    any.
    """

    def __init__(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        degree: Tensor,
        num_new: int,
        loops: bool,
        row: bool,
    ) -> None:
        source, target = edge_index[0].long(), edge_index[1].long()
        order = torch.argsort(target, stable=True)
        self.source, self.target = source[order], target[order]
        self.joined = bool((source >= degree.numel()).any())
        weight = degree.new_ones(source.numel()) if edge_weight is None else edge_weight.to(degree)
        weight = weight[order]
        own = degree.new_zeros(num_new).index_add_(0, self.target, weight)
        if loops:
            own = own + 1
        tiny = torch.finfo(degree.dtype).tiny
        if row:  # the mean over the edges of a row
            scale = 1 / own[self.target].clamp_min(tiny)
        else:
            degree = torch.cat([degree, own])
            scale = (own[self.target] * degree[self.source]).clamp_min(tiny).rsqrt()
        self.weight = weight * scale
        self.loop = (1 / own).unsqueeze(-1) if loops else None
        counts = torch.bincount(self.target, minlength=num_new)
        self.start = F.pad(counts.cumsum(0), (1, 0))

    def average(self, rows: slice, value: Tensor | None, own: Tensor) -> Tensor:
        """Ã V for the new rows of one block, (BLOCK, d), or of all rows if some are joined."""
        if value is None:
            raise ValueError("edges must be left out: nothing of a graph was frozen")
        value = torch.cat([value, own]) if self.joined else value
        part = slice(int(self.start[rows.start]), int(self.start[rows.stop]))
        messages = value[self.source[part]] * self.weight[part].unsqueeze(-1)
        out = torch.zeros_like(own).index_add_(0, self.target[part] - rows.start, messages)
        if self.loop is not None:
            size = rows.stop - rows.start
            out[:size] += self.loop[rows] * own[:size]
        return out


def degrees(graph: Any, like: Tensor) -> tuple[Tensor | None, bool]:
    """The out-degree (n,) of each row, None without a graph, and whether every row has a loop."""
    if graph is None:
        return None, False
    source, target = graph.edge_index[0], graph.edge_index[1]
    weight = like.new_ones(source.numel()) if graph.edge_weight is None else graph.edge_weight
    degree = like.new_zeros(graph.num_nodes).index_add_(0, source, weight.to(like))
    return degree, int((source == target).sum()) == graph.num_nodes

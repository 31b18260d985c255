"""Exchange: how rows interact in a diffusion step. Everything else is row by row.

Full-batch training, separate graphs, chunks, rows over processes and frozen rows each have their
own Exchange; the step itself is in one place, `DiffusionLayer`. A Passage is one step that was
taken: its input and its output, for inspection and for freezing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import CONTEXTS, Context, Pairs
from difformer.core.diffusion import Diffusion
from difformer.core.diffusivity import Diffusivity
from difformer.core.euler import AverageOfStates
from difformer.core.fixed import FixedAverage
from difformer.core.graph import edge_scales
from difformer.core.rows import Segments, squared_distances
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.settings import check_count

if TYPE_CHECKING:
    from difformer.nn.layer import DiffusionLayer

# Diffusivities computed at a time when only the strongest of each row are kept.
ROW_SCORES = 2**24
# The name of a layer's keys in a file.
KEY = "context.key"


class Exchange:
    """Every row interacts with every other and with its neighbours; all rows are in memory."""

    here: ClassVar[bool] = True
    """Whether the graph's product of the rows in memory may be added in place."""

    def __init__(
        self,
        graph: Any = None,
        *,
        landmarks: Tensor | None = None,
        fixed: FixedAverage | None = None,
    ) -> None:
        """What rows interact with besides each other.

        Args:
            graph: a Graph, or an object with its `propagate`.
            landmarks: (m, p) that rows are compared with, if the diffusivity has them.
            fixed: Ŝ, if it is the same in every layer and already computed.
        """
        self.graph, self.landmarks, self.fixed = graph, landmarks, fixed

    def closed_form(self, kernel: Diffusivity, heads: int) -> AverageOfStates | None:
        """The average computed directly from the states, if this exchange allows it."""
        return kernel.closed_form(heads)

    def prepare(
        self, kernel: Diffusivity, q: Tensor, k: Tensor, landmarks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys (h, n, ·) as the diffusivity takes them.

        `landmarks` (h, m, ·) where the diffusivity has them.
        """
        return kernel.prepare(q, k, self.known(k) if landmarks is None else landmarks)

    def known(self, k: Tensor) -> Tensor | None:
        """The keys of all rows that rows with the keys k interact with; None: these keys."""
        return None

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        """The context that the rows are averaged with: their own, or merged with others'."""
        return kernel.summarise(k, v, q)

    def average(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Σ_j Ŝ_ij v_j, averaged over heads: q, k, v (h, n, d) -> (n, d)."""
        return kernel.apply(q, self.context(kernel, q, k, v)).mean(-3)

    def neighbours(self, value: Tensor | None) -> Tensor | None:
        """Ã V (n, d) for values (n, d); None without a graph."""
        if self.graph is None or value is None:
            return None
        return self.graph.propagate(value)

    @property
    def adjacency(self) -> SparseMatrix | None:
        """Ã itself, for the rows in memory."""
        return None if self.graph is None else self.graph.adjacency

    def add_beyond(self, out: Tensor, value: Tensor | None, weight: float) -> Tensor:
        """`out` (n, d) with what the graph carries from rows that are elsewhere, times `weight`."""
        return out

    def mean(self, u: Tensor) -> Tensor:
        """The mean over rows; broadcasts with u (n, d)."""
        return u.mean(0, keepdim=True)


class Apart(Exchange):
    """Rows of one tensor that belong to separate graphs and interact only within each."""

    def __init__(self, segments: Segments, graph: Any = None) -> None:
        super().__init__(graph)
        self.segments = segments

    def closed_form(self, kernel: Diffusivity, heads: int) -> None:
        return None

    def prepare(
        self, kernel: Diffusivity, q: Tensor, k: Tensor, landmarks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if landmarks is not None:
            return super().prepare(kernel, q, k, landmarks)
        if q is k:
            both = self._each(lambda q: kernel.prepare(q, q)[0], q)
            return both, both
        joined = self._each(lambda q, k: torch.cat(kernel.prepare(q, k), -1), q, k)
        first, second = joined.chunk(2, dim=-1)
        return first, second

    def average(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._each(kernel, q, k, v).mean(0)

    def _each(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`function` of the (graphs, h, rows, ·) of some (h, n, ·), joined as (h, n, ·)."""
        heads = max(t.shape[0] for t in tensors)
        rows = (t.expand(heads, -1, -1).transpose(0, 1) for t in tensors)
        each = self.segments.map(
            lambda *parts: function(*(t.transpose(1, 2) for t in parts)).transpose(1, 2), *rows
        )
        return each.transpose(0, 1)

    def mean(self, u: Tensor) -> Tensor:
        return self.segments.map(lambda t: t.mean(1, keepdim=True).expand_as(t), u)


@dataclass(frozen=True)
class Passage:
    """One layer of a forward pass: its input and its output."""

    layer: DiffusionLayer
    before: Tensor  # (n, d)
    after: Tensor  # (n, d)
    first: Tensor  # (n, d)
    exchange: Exchange
    compared: Tensor | None  # (n, p); the states where it is None

    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.layer.project(self.before, self.compared, self.exchange)

    def diffusivity(
        self, rows: Tensor | None, top_k: int | None, batch: Tensor | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Ŝ[rows] averaged over heads, or its `top_k` strongest: see `DIFFormer.diffusivity`."""
        q, k, _ = self.project()
        kernel, n = self.layer.diffusivity, self.before.shape[0]
        rows = torch.arange(n, device=q.device) if rows is None else _checked_rows(rows, n)
        if top_k is None:
            return _weight_rows(kernel, q, k, rows, batch)
        top_k = min(check_count("top_k", top_k), n)
        size = max(1, ROW_SCORES // (n * self.layer.num_heads))
        parts = [
            _weight_rows(kernel, q, k, rows[part], batch).topk(top_k, dim=-1)
            for part in tiles(rows.numel(), size)
        ]
        return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])

    @cached_property
    def pairs(self) -> Diffusivity:
        """The diffusivity whose δ is in this layer's energy, on unit states."""
        kernel = self.layer.diffusivity
        if self.compared is not None and not kernel.local:
            return GivenPairs(kernel, *self.project()[:2])
        return kernel.at(F.normalize(self.before, dim=-1))

    @property
    def source_weight(self) -> float:
        """μ = β/(1 − β) times the mean row mass of the first state; 0 without a source β."""
        beta = self.layer.config.source
        if not beta:
            return 0.0
        masses = Diffusion(self.pairs).masses(F.normalize(self.first, dim=-1))
        return beta / (1 - beta) * float(masses.mean())

    def energy(self, unit: Tensor, weight: float, source_weight: float) -> Tensor:
        """E(·, k) of states on unit rows (n, d), relative to the state before this layer."""
        process = Diffusion(self.pairs, graph=self.exchange.graph, source_weight=source_weight)
        before, first = F.normalize(self.before, dim=-1), F.normalize(self.first, dim=-1)
        return process.energy(unit, before, weight, first)


class GivenPairs(Diffusivity):
    """ω_ij between given rows, averaged over heads, whatever the states: δ_ij(z²) = ω_ij z².

    The energy is then quadratic in the states. `q` and `k` (h, n, ·) are prepared.
    """

    def __init__(self, kernel: Diffusivity, q: Tensor, k: Tensor) -> None:
        self.kernel, self.q, self.k = kernel, q, k

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.omega(q, k)

    def omega_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.omega(self.q[:, rows], self.k).mean(0).to(z)

    def delta_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.omega_at(z, rows) * squared_distances(z[rows], z)


def _checked_rows(rows: Tensor, n: int) -> Tensor:
    rows = torch.as_tensor(rows).long()
    if rows.dim() != 1 or (rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= n)):
        raise ValueError(f"rows must be a list of rows from 0 to {n - 1}, got {rows.tolist()}")
    return rows


def _weight_rows(
    kernel: Diffusivity, q: Tensor, k: Tensor, rows: Tensor, batch: Tensor | None
) -> Tensor:
    """Ŝ[rows] (r, n), averaged over heads; zero between graphs."""
    if batch is None:
        return kernel.weights_of(rows, q, k).mean(-3)
    out = q.new_zeros(rows.numel(), q.shape[-2])
    for graph_id in torch.unique(batch[rows]).tolist():
        members = (batch == graph_id).nonzero().squeeze(1)
        mine = (batch[rows] == graph_id).nonzero().squeeze(1)
        within = torch.searchsorted(members, rows[mine])
        part = kernel.weights_of(within, q[:, members], k[:, members]).mean(-3)
        out[mine.unsqueeze(1), members] = part
    return out


@dataclass(frozen=True)
class FrozenLayer:
    """What one layer stores of the rows it was frozen on.

    Its tensors are the fields of its context as context.NAME; "center" (1, d), the mean over rows
    that `center` subtracts; and "value" (n, d), the rows' values for edges from them, with a graph.
    """

    kind: str | None  # of its context; None where the diffusivity is local
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, passage: Passage) -> FrozenLayer:
        """What the layer of a passage keeps of its rows."""
        layer, exchange, kept = passage.layer, passage.exchange, dict[str, Tensor]()
        q, k, v = passage.project()
        kind = None
        if not layer.diffusivity.local:
            context = layer.diffusivity.summarise(k, v, q)
            kind = type(context).__name__
            kept = {f"context.{n}": t.detach().clone() for n, t in context.tensors().items()}
        if layer.config.center:
            moved = layer.meet(passage.before, q, k, v, passage.first, exchange)
            kept["center"] = exchange.mean(moved)
        if exchange.graph is not None:
            kept["value"] = v.mean(0)
        return cls(kind, kept)

    @cached_property
    def context(self) -> Context | None:
        """The context of all known rows."""
        if self.kind is None:
            return None
        if self.kind not in CONTEXTS:
            raise ValueError(f"unknown context {self.kind!r}")
        return CONTEXTS[self.kind](**under("context.", self.tensors))


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start so, without the start."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


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
        return incoming.average(rows, self.kept.tensors.get("value"), value)

    def mean(self, u: Tensor) -> Tensor:
        if "center" not in self.kept.tensors:  # in a damaged file
            raise ValueError("center must be stored for a layer that subtracts it")
        return self.kept.tensors["center"]


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
        norm: str,
    ) -> None:
        target, order = edge_index[1].long().sort(stable=True)
        self.source, self.target = edge_index[0].long()[order], target
        self.joined = bool((self.source >= degree.numel()).any())
        weight = degree.new_ones(len(order)) if edge_weight is None else edge_weight.to(degree)
        weight = weight[order]
        own = degree.new_full((num_new,), float(loops)).index_add_(0, target, weight)
        left, right = edge_scales(own, torch.cat([degree, own]), norm)
        self.weight = weight * (left[target] * right[self.source])
        self.loop = (1 / own).unsqueeze(-1) if loops else None
        self.start = F.pad(torch.bincount(target, minlength=num_new).cumsum(0), (1, 0))

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

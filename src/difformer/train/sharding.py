"""Rows and edges spread over processes, the graph term across them, and batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.draws import generator
from difformer.core.graph import Graph, inverse_sqrt
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import Batch
from difformer.data.split import PARTS, HeldSplit
from difformer.shards.partition import metis_parts
from difformer.train.batches import (
    Background,
    check_batch_size,
    hide_labels,
    labels_of,
    predict,
)
from difformer.train.partition import EDGE_CHUNK, Epoch
from difformer.train.processes import Comm
from difformer.train.settings import PARTITIONS

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split


@dataclass(frozen=True)
class Layout:
    """Which process holds which row: new ids, `order[new] = old`, and where each range starts."""

    order: Tensor  # (n,)
    starts: tuple[int, ...]  # (P + 1,)

    @classmethod
    def make(cls, graph: Graph | None, n: int, comm: Comm, partition: str = "range") -> Layout:
        """Equal ranges of the ids as they are, or METIS's parts, which cut few edges.

        METIS runs on rank 0 and its answer is sent to the others.
        """
        if partition not in PARTITIONS:
            raise ValueError(f"partition must be one of {', '.join(PARTITIONS)}, got {partition!r}")
        if comm.size > n:
            raise ValueError(f"rows must be at least one per process, got {n} for {comm.size}")
        if partition == "range" or graph is None or comm.size == 1:
            starts = [n * r // comm.size for r in range(comm.size + 1)]
            return cls(torch.arange(n), tuple(starts))
        part = torch.empty(n, dtype=torch.int64)
        if comm.rank == 0:
            part.copy_(_metis(graph, comm.size))
        comm.broadcast(part)
        counts = torch.bincount(part, minlength=comm.size)
        starts = [0, *counts.cumsum(0).tolist()]
        return cls(torch.argsort(part, stable=True), tuple(starts))

    def own(self, rank: int) -> slice:
        """The new ids a process holds."""
        return slice(self.starts[rank], self.starts[rank + 1])

    def new_ids(self) -> Tensor:
        """(n,): the new id of each old one."""
        new = torch.empty_like(self.order)
        new[self.order] = torch.arange(self.order.numel())
        return new


@dataclass(frozen=True)
class LocalEdges:
    """The edges that enter this process's rows, by new ids, sorted by target, then source."""

    edge_index: Tensor  # (2, e_r)
    weight: Tensor | None
    symmetric: bool  # the whole graph is, and so is the block of each process's own rows
    norm: str = "symmetric"  # as in `Graph`

    @classmethod
    def of(cls, graph: Graph, layout: Layout, rank: int) -> LocalEdges:
        """Cut one process's part out of the whole graph."""
        new, own = layout.new_ids(), layout.own(rank)
        mine: list[Tensor] = []
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        for start in range(0, graph.num_edges, EDGE_CHUNK):
            source, target = graph.ends(start, min(start + EDGE_CHUNK, graph.num_edges))
            target = new.index_select(0, target)
            held = ((target >= own.start) & (target < own.stop)).nonzero().squeeze(1)
            mine.append(held + start)
            sources.append(new.index_select(0, source.index_select(0, held)))
            targets.append(target.index_select(0, held))
        if not mine:
            none = torch.zeros(2, 0, dtype=torch.int64)
            return cls(none, graph.edge_weight, graph.symmetric, graph.norm)
        source, target = torch.cat(sources), torch.cat(targets)
        order = torch.argsort(target * graph.num_nodes + source)
        weight = graph.edge_weight
        weight = None if weight is None else weight[torch.cat(mine)][order]
        ends = torch.stack([source[order], target[order]])
        return cls(ends, weight, graph.symmetric, graph.norm)

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    def ends(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Sources and targets of a range of the edges."""
        return self.edge_index[0, start:stop], self.edge_index[1, start:stop]

    def inside(self, plan: Epoch, index: int) -> LocalEdges:
        """The edges inside one batch of an epoch, by the places of their ends in the batch."""
        chosen = plan.edges[index]
        ends = torch.stack([plan.places(end[chosen]) for end in self.edge_index])
        weight = None if self.weight is None else self.weight[chosen]
        return replace(self, edge_index=ends, weight=weight)


@dataclass(frozen=True)
class ShardedGraph:
    """Ã over rows spread over processes: own rows from here, boundary rows by one all-to-all.

    `propagate` is `Graph.propagate` for this process's rows, with its gradient.
    """

    num_nodes: int  # rows held here
    inner: SparseMatrix  # (n_r, n_r)
    outer: SparseMatrix  # (n_r, boundary rows)
    boundary: Tensor  # own rows that others need, grouped by process
    send: list[int]
    receive: list[int]
    comm: Comm

    @classmethod
    def build(cls, edges: LocalEdges, starts: list[int], comm: Comm) -> ShardedGraph:
        """Agree on the boundary and normalise; a few all-to-alls, once per graph.

        `starts` are the ranges of ids that the edges refer to; the same on every process.
        """
        low, high = starts[comm.rank], starts[comm.rank + 1]
        n = high - low
        source, target = edges.edge_index[0], edges.edge_index[1] - low
        near = (source >= low) & (source < high)
        far = ~near
        wanted, column = torch.unique(source[far], return_inverse=True)
        bounds = torch.searchsorted(wanted, torch.tensor(starts))
        receive = bounds.diff().tolist()
        send = comm.deal(receive)
        boundary = comm.swap(wanted, receive, send) - low
        weight = torch.ones(source.numel()) if edges.weight is None else edges.weight
        into = weight.new_zeros(n).index_add_(0, target, weight)
        if edges.norm == "row":
            left = into.clamp_min(torch.finfo(into.dtype).tiny).reciprocal()
            right = torch.ones_like(into)
        else:
            out_of = weight.new_zeros(n).index_add_(0, source[near] - low, weight[near])
            # Out-degrees towards other processes are known there: they send them back.
            elsewhere = weight.new_zeros(wanted.numel()).index_add_(0, column, weight[far])
            out_of.index_add_(0, boundary, comm.swap(elsewhere, receive, send))
            left, right = inverse_sqrt(into), inverse_sqrt(out_of)
        far_right = comm.swap(right[boundary], send, receive)
        value = weight.clone()
        value[near] *= left[target[near]] * right[source[near] - low]
        value[far] *= left[target[far]] * far_right[column]
        inner = SparseMatrix.from_sorted(
            target[near], source[near] - low, value[near], (n, n), symmetric=edges.symmetric
        )
        outer = SparseMatrix.from_sorted(target[far], column, value[far], (n, wanted.numel()))
        return cls(n, inner, outer, boundary, send, receive, comm)

    def propagate(self, value: Tensor) -> Tensor:
        """Ã V for the rows held here: O(edges here · width) time, sends the boundary rows."""
        if value.shape[0] != self.num_nodes:
            raise ValueError(
                f"value must have this process's {self.num_nodes} rows, got {value.shape[0]}"
            )
        here = self.inner @ value
        return here if self.comm.size == 1 else here + self.outer @ self.received(value)

    def received(self, value: Tensor) -> Tensor:
        """The values of the boundary rows of other processes; sends the own ones they need."""
        needed = value.index_select(0, self.boundary)
        return self.comm.exchange(needed, self.send, self.receive, "boundary")

    def to(self, like: Tensor) -> ShardedGraph:
        """The graph with the dtype and device of `like`; itself when they agree."""
        inner = self.inner.to(like)
        if inner is self.inner:
            return self
        boundary = self.boundary.to(like.device)
        return replace(self, inner=inner, outer=self.outer.to(like), boundary=boundary)


def _metis(graph: Graph, parts: int) -> Tensor:
    edges = graph.edge_index
    if not graph.symmetric:
        edges = Graph.from_edges(edges, graph.num_nodes, undirected=True).edge_index
    source, target = edges[:, edges[0] != edges[1]]
    ends = torch.bincount(target, minlength=graph.num_nodes).cumsum(0)
    whole = (0, ends.numpy(), source.numpy())
    return torch.from_numpy(metis_parts(lambda: [whole], graph.num_nodes, parts))


def held_split(mark: Tensor, split: str, sizes: Mapping[str, int], text: str | None) -> HeldSplit:
    """The split of the rows held here, by (n_r,) marks: 0, 1, 2 for train, val, test, else -1."""
    train, val, test = (torch.nonzero(mark == i).flatten() for i in range(len(PARTS)))
    return HeldSplit(split, train, val, test, sizes=sizes, text=text)


def seed_epoch(seed: int, number: int, comm: Comm) -> None:
    """Seed an epoch's dropout by its number and the rank: a restarted run draws the same."""
    if comm.size == 1:
        return
    words = np.random.SeedSequence([seed, number, comm.rank]).generate_state(1)
    own = generator()
    draw: Any = torch.manual_seed if own is None else own.manual_seed
    draw(int(words[0]))


class Shards:
    """The rows this process holds, whole or in the mini-batches of `Partitions`. Source of batches.

    A mini-batch is the same random set of rows for any number of processes; each contributes those
    it holds. There is one pass over the edges per epoch, in the background. Dropout is seeded for
    each epoch and process, so that a restarted run draws the same.

    Args:
        dataset, split, graph: the whole data, the same on every process; only the process's own
            rows and edges are kept. Features may be memory-mapped: only its rows are read.
        comm: the processes.
        partition: "range" or "metis": which rows go where.
        batch_size: rows in a batch of all processes together; None for all rows.
        seed: with the epoch's number it decides the batches and, with the rank, dropout.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        graph: Graph | None,
        comm: Comm,
        *,
        partition: str = "range",
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        n = dataset.num_rows
        check_batch_size(batch_size, n)
        self.comm, self._size, self._seed = comm, batch_size, seed
        self.layout = Layout.make(graph, n, comm, partition)
        held = self.layout.order[self.layout.own(comm.rank)]
        mark = torch.full((n,), -1, dtype=torch.int8)
        for index, part in enumerate(PARTS):
            mark[getattr(split.check(n), part)] = index
        sizes = {part: split.size(part) for part in PARTS}
        self.split = held_split(mark[held], split.name, sizes, split.to_json())
        self._trains = mark[self.layout.order] == 0  # by new id, of all rows
        self.y = labels_of(dataset)[held]
        sparse = dataset.x.layout != torch.strided
        self._sparse = SparseMatrix.from_csr(dataset.x)[held] if sparse else None
        x = dataset.x[held] if self._sparse is None else self._sparse.csr
        self._edges = None if graph is None else LocalEdges.of(graph, self.layout, comm.rank)
        whole = None
        if self._edges is not None:
            whole = ShardedGraph.build(self._edges, list(self.layout.starts), comm)
        y = hide_labels(self.y, self.split.train)
        self._all = Batch(x, y, whole, self.split.train, counted=split.size("train"))
        self._background = Background[Epoch]()

    def observed(self) -> Batch:
        return self._all

    def epoch(self, number: int) -> Iterator[Batch]:
        seed_epoch(self._seed, number, self.comm)
        if self._size is None:
            yield self._all
            return
        plan = self._background.start(self._plan, number).result()
        self._background.start(self._plan, number + 1)
        for index in range(len(plan.rows)):
            batch = self._batch(plan, index)
            if batch.size:
                yield batch

    def evaluate(self, model: nn.Module) -> Tensor:
        """Outputs of the rows held here."""
        return predict(model, self._all).output

    def to(self, device: torch.device) -> Shards:
        if device == self._all.x.device:
            return self
        moved = copy(self)
        moved._all, moved.y = self._all.to(device), self.y.to(device)
        return moved

    def _plan(self, number: int) -> Epoch:
        """The part of an epoch's preparation that needs no other process."""
        assert self._size is not None
        layout = self.layout
        n, seed = layout.order.numel(), [self._seed, number]
        return Epoch.draw(n, self._size, seed, self._edges, layout.new_ids())

    def _batch(self, plan: Epoch, index: int) -> Batch:
        members, own = plan.rows[index], self.layout.own(self.comm.rank)
        starts = torch.searchsorted(members, torch.tensor(self.layout.starts)).tolist()
        mine = members[starts[self.comm.rank] : starts[self.comm.rank + 1]] - own.start
        graph = None
        if self._edges is not None:
            graph = ShardedGraph.build(self._edges.inside(plan, index), starts, self.comm)
        device = self._all.x.device
        where = mine.to(device)
        x = self._all.x[where] if self._sparse is None else self._sparse[mine].csr
        rows = self._trains[own][mine].nonzero().squeeze(1)
        counted = int(self._trains[members].sum())
        y = self._all.y[where]
        return Batch(x.to(device), y, graph, rows.to(device), counted=counted)

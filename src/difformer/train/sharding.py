"""Which process holds which row, and the graph term across processes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from difformer.core.graph import Graph, inverse_sqrt
from difformer.core.sparse import SparseMatrix
from difformer.shards.partition import metis_parts
from difformer.train.partition import EDGE_CHUNK
from difformer.train.processes import Comm
from difformer.train.settings import PARTITIONS


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


def edges_into(graph: Graph, layout: Layout, rank: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Sources, targets and weights of the edges that enter one process's rows.

    By new ids, sorted by target, then source.
    """
    new, own = layout.new_ids(), layout.own(rank)
    pieces: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, graph.num_edges, EDGE_CHUNK):
        source, target = graph.ends(start, min(start + EDGE_CHUNK, graph.num_edges))
        target = new.index_select(0, target)
        held = ((target >= own.start) & (target < own.stop)).nonzero().squeeze(1)
        sources = new.index_select(0, source.index_select(0, held))
        pieces.append((held + start, sources, target.index_select(0, held)))
    if not pieces:
        none = torch.zeros(0, dtype=torch.int64)
        return none, none, graph.edge_weight
    mine, source, target = map(torch.cat, zip(*pieces, strict=True))
    order = torch.argsort(target * graph.num_nodes + source)
    weight = None if graph.edge_weight is None else graph.edge_weight[mine][order]
    return source[order], target[order], weight


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
    def build(
        cls,
        source: Tensor,
        target: Tensor,
        weight: Tensor | None,
        starts: list[int],
        comm: Comm,
        *,
        symmetric: bool,
        norm: str = "symmetric",
        dtype: torch.dtype | None = None,
    ) -> ShardedGraph:
        """Agree on the boundary and normalise; a few all-to-alls, once per graph.

        Args:
            source, target, weight: the edges that enter this process's rows, sorted by target, then
                source.
            starts: the ranges of ids that the edges refer to; the same on every process.
            symmetric: the whole graph is, and so is the block of each process's own rows.
            norm, dtype: as in `Graph.from_sorted`.
        """
        low, high = starts[comm.rank], starts[comm.rank + 1]
        n = high - low
        target = target - low
        near = (source >= low) & (source < high)
        far = ~near
        wanted, column = torch.unique(source[far], return_inverse=True)
        bounds = torch.searchsorted(wanted, torch.tensor(starts))
        receive = bounds.diff().tolist()
        send = comm.deal(receive)
        boundary = comm.swap(wanted, receive, send) - low
        weight = torch.ones(source.numel(), dtype=dtype) if weight is None else weight
        into = weight.new_zeros(n).index_add_(0, target, weight)
        if norm == "row":
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
            target[near], source[near] - low, value[near], (n, n), symmetric=symmetric
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

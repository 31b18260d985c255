"""Mini-batches of a graph: a random partition of its rows each epoch (appendix I.4 of the paper).

Each batch holds the edges inside it. All batches of an epoch get theirs in one pass over the
edge list, not one per batch, in a separate thread, while the model trains on earlier batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.batch import Batch
from difformer.nn.model import DIFFormer
from difformer.train.background import background_worker
from difformer.train.batches import hide_labels, known_labels, predict
from difformer.train.chunks import CHUNK_ROWS, predict_in_chunks
from difformer.train.sharding import EDGE_CHUNK

if TYPE_CHECKING:
    from difformer.data import Dataset, Split

# Batches prepared in advance while the model trains.
AHEAD = 2


class Partitions:
    """Every epoch all rows once, in batches of `batch_size` drawn at random. Source of batches.

    The rows of a batch are in the order of their ids, so that the graph's sorted edges stay sorted
    in each batch and need no sorting. Cost of an epoch, besides the model's: O(n + e) time, 20
    bytes per row and O(edges kept) memory; the graph is not copied.

    Args:
        dataset: features (also a memory-mapped tensor: a batch reads its own rows) and labels.
        split: its training rows are counted in the loss, and their labels are visible.
        graph: a prepared Graph over the rows, or None.
        batch_size: rows per batch; the last one may have fewer.
        seed: with the epoch's number it decides the partition.
        chunk: rows that the model processes at a time when all rows are evaluated.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        graph: Graph | None = None,
        *,
        batch_size: int,
        seed: int = 0,
        chunk: int = CHUNK_ROWS,
    ) -> None:
        n = dataset.num_rows
        if not 1 <= batch_size <= n:
            raise ValueError(
                f"batch_size must lie in 1 to {n}, the number of rows, got {batch_size}; "
                "leave it out to train on all rows at once"
            )
        if graph is not None and graph.num_nodes != n:
            raise ValueError(f"graph must have the dataset's {n} rows, it has {graph.num_nodes}")
        self.y = dataset.y if dataset.task == "multiclass" else dataset.y.reshape(n, -1)
        seen = hide_labels(self.y, split.check(n).train)
        if not bool(known_labels(seen).any()):
            raise ValueError(f"split {split.name!r} must have labelled training rows, it has none")
        self._all = Batch(dataset.x, seen, graph, split.train)
        sparse = dataset.x.layout != torch.strided
        self._sparse = SparseMatrix.from_csr(dataset.x) if sparse else None
        self._trains = torch.zeros(n, dtype=torch.bool)
        self._trains[split.train] = True
        self._size, self._seed, self._chunk = batch_size, seed, chunk
        self._device = torch.device("cpu")
        self._worker: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Epoch]] | None = None

    @property
    def num_batches(self) -> int:
        """How many batches an epoch has."""
        return -(-self._all.x.shape[0] // self._size)

    def observed(self) -> Batch:
        return self._all.to(self._device)

    def epoch(self, number: int) -> Iterator[Batch]:
        if self._worker is None:
            self._worker = background_worker()
        worker = self._worker
        ready = self._next[1] if self._next and self._next[0] == number else None
        plan = (ready or worker.submit(self._plan, number)).result()
        waiting: deque[Future[Batch]] = deque()
        try:
            for index in range(self.num_batches):
                while len(waiting) <= AHEAD and index + len(waiting) < self.num_batches:
                    waiting.append(worker.submit(self._batch, plan, index + len(waiting)))
                if index + len(waiting) == self.num_batches and self._pending() != number + 1:
                    self._next = number + 1, worker.submit(self._plan, number + 1)
                batch = waiting.popleft().result()
                if batch.rows.numel():  # a batch without training rows is skipped
                    yield batch
        finally:
            for future in waiting:
                future.cancel()

    def evaluate(self, model: nn.Module) -> Tensor:
        if isinstance(model, DIFFormer):
            graph = self._all.graph if model.config.use_graph else None
            return predict_in_chunks(model, self._all.x, graph, chunk=self._chunk)
        return predict(model, self.observed()).output

    def to(self, device: torch.device) -> Partitions:
        """The same source, handing out its batches on a device; the data stays where it is."""
        if device == self._device:
            return self
        moved = object.__new__(Partitions)
        moved.__dict__.update(self.__dict__)
        moved._device, moved._worker, moved._next = device, None, None
        return moved

    def _pending(self) -> int | None:
        return None if self._next is None else self._next[0]

    def _plan(self, number: int) -> Epoch:
        n = self._all.x.shape[0]
        return Epoch.draw(n, self._size, [self._seed, number], self._all.graph)

    def _batch(self, plan: Epoch, index: int) -> Batch:
        rows = plan.rows[index]
        whole = self._all
        graph = None if whole.graph is None else plan.subgraph(whole.graph, index)
        trains = self._trains[rows].nonzero().squeeze(1)
        x = whole.x[rows] if self._sparse is None else self._sparse.rows(rows).csr
        return Batch(x, whole.y[rows], graph, trains).to(self._device)


@dataclass(frozen=True)
class Epoch:
    """One epoch's partition: the rows of each batch, and the edges inside each."""

    rows: list[Tensor]  # the ids in each batch, sorted
    part: Tensor  # (n,) int16 or int32: the batch of each row
    place: Tensor  # (n,) int32: where in its batch each row is
    edges: list[Tensor]  # the edges inside each batch, in the order of the edge list

    @classmethod
    def draw(cls, n: int, size: int, seed: list[int], graph: Graph | None) -> Epoch:
        """Draw a partition into batches of `size` rows, in one pass over the edges. O(n + e)."""
        state = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(state))
        rows = [part.sort().values for part in drawn.split(size)]
        part = torch.empty(n, dtype=torch.int16 if len(rows) < 2**15 else torch.int32)
        place = torch.empty(n, dtype=torch.int32)
        for index, ids in enumerate(rows):
            part[ids] = index
            place[ids] = torch.arange(ids.numel(), dtype=torch.int32)
        edges: list[Tensor] = []
        if graph is not None:
            edges = bucket(part, graph.ends, graph.num_edges, len(rows))
        return cls(rows, part, place, edges)

    def subgraph(self, graph: Graph, index: int) -> Graph:
        """The graph of one batch, normalised within it. O(its edges)."""
        chosen = self.edges[index]
        source, target = (self.place.index_select(0, end).long() for end in graph.chosen(chosen))
        weight = None if graph.edge_weight is None else graph.edge_weight[chosen]
        n = self.rows[index].numel()
        return Graph.from_sorted(
            source, target, n, weight, symmetric=graph.symmetric, norm=graph.norm
        )


def bucket(
    part: Tensor, ends: Callable[[int, int], tuple[Tensor, Tensor]], number: int, batches: int
) -> list[Tensor]:
    """The positions of the edges whose two ends lie in one batch, for each batch. One pass, O(e).

    `ends(start, stop)` gives sources and targets of a range of the `number` edges.
    """
    found: list[Tensor] = []
    where: list[Tensor] = []
    for start in range(0, number, EDGE_CHUNK):
        source, target = ends(start, min(start + EDGE_CHUNK, number))
        of_target = part.index_select(0, target)
        inside = (part.index_select(0, source) == of_target).nonzero().squeeze(1)
        found.append(inside + start)
        where.append(of_target[inside])
    if not found:
        return [torch.zeros(0, dtype=torch.int64)] * batches
    positions, of_batch = torch.cat(found), torch.cat(where)
    # numpy sorts 16-bit numbers by radix, in O(e); the order within a batch stays.
    order: Any = np.argsort(of_batch.numpy(), kind="stable")
    counts = torch.bincount(of_batch, minlength=batches).tolist()
    return list(positions[torch.from_numpy(order)].split(counts))

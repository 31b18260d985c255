"""Mini-batches of a graph: a random partition of its rows each epoch (appendix I.4 of the paper).

Each batch holds the edges inside it. All batches of an epoch get theirs in one pass over the
edge list, not one per batch, in a separate thread, while the model trains on earlier batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import Batch
from difformer.nn.model import DIFFormer
from difformer.train.batches import (
    Background,
    check_batch_size,
    labels_of,
    outputs_of,
    training_labels,
)
from difformer.train.chunks import CHUNK_ROWS

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

# Edges processed at a time: their ends stay in the outer cache.
EDGE_CHUNK = 2**19


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
        check_batch_size(batch_size, n)
        if graph is not None and graph.num_nodes != n:
            raise ValueError(f"graph must have the dataset's {n} rows, it has {graph.num_nodes}")
        self.y = labels_of(dataset)
        seen = training_labels(self.y, split)
        self._all = Batch(dataset.x, seen, graph, split.train)
        sparse = dataset.x.layout != torch.strided
        self._sparse = SparseMatrix.from_csr(dataset.x) if sparse else None
        self._trains = torch.zeros(n, dtype=torch.bool)
        self._trains[split.train] = True
        self._size, self._seed, self._chunk = batch_size, seed, chunk
        self._device = torch.device("cpu")
        self._background = Background[Epoch]()

    def observed(self) -> Batch:
        return self._all.to(self._device)

    def epoch(self, number: int) -> Iterator[Batch]:
        plan = self._background.start(self._plan, number).result()
        following = partial(self._background.start, self._plan, number + 1)
        make = partial(self._batch, plan)
        for batch in self._background.each(make, len(plan.rows), then=following):
            if batch.rows.numel():  # a batch without training rows is skipped
                yield batch

    def evaluate(self, model: nn.Module) -> Tensor:
        whole = self._all if isinstance(model, DIFFormer) else self.observed()
        return outputs_of(model, whole, self._chunk)

    def to(self, device: torch.device) -> Partitions:
        """The same source, handing out its batches on a device; the data stays where it is."""
        moved = copy(self)
        moved._device = device
        return moved

    def _plan(self, number: int) -> Epoch:
        n = self._all.x.shape[0]
        return Epoch.draw(n, self._size, [self._seed, number], self._all.graph)

    def _batch(self, plan: Epoch, index: int) -> Batch:
        rows = plan.rows[index]
        whole = self._all
        graph = None if whole.graph is None else plan.subgraph(whole.graph, index)
        trains = self._trains[rows].nonzero().squeeze(1)
        x = whole.x[rows] if self._sparse is None else self._sparse[rows].csr
        return Batch(x, whole.y[rows], graph, trains).to(self._device)


@dataclass(frozen=True)
class Epoch:
    """One epoch's partition: the rows of each batch, and the edges inside each."""

    rows: list[Tensor]  # the ids in each batch, sorted
    part: Tensor  # (n,) int16 or int32: the batch of each row
    place: Tensor  # (n,) int32: where in its batch each row is
    edges: list[Tensor]  # the edges inside each batch, in the order of the edge list

    @classmethod
    def draw(
        cls,
        n: int,
        size: int,
        seed: list[int],
        graph: Graph | None = None,
        ids: Tensor | None = None,
    ) -> Epoch:
        """Draw a partition into batches of `size` rows, in one pass over the edges. O(n + e).

        Args:
            graph: where given, the result has the edges inside each batch.
            ids: (n,) the id of each row in the result, where rows are renumbered.
        """
        state = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
        drawn = torch.randperm(n, generator=torch.Generator().manual_seed(state))
        drawn = drawn if ids is None else ids[drawn]
        rows = [part.sort().values for part in drawn.split(size)]
        part = torch.empty(n, dtype=torch.int16 if len(rows) < 2**15 else torch.int32)
        place = torch.empty(n, dtype=torch.int32)
        for index, members in enumerate(rows):
            part[members] = index
            place[members] = torch.arange(members.numel(), dtype=torch.int32)
        return cls(rows, part, place, [] if graph is None else _inside(part, graph, len(rows)))

    def subgraph(self, graph: Graph, index: int) -> Graph:
        """The graph of one batch, normalised within it. O(its edges)."""
        chosen = self.edges[index]
        source, target = (self.place.index_select(0, ends).long() for ends in graph.chosen(chosen))
        weight = None if graph.edge_weight is None else graph.edge_weight[chosen]
        n = self.rows[index].numel()
        return Graph.from_sorted(
            source, target, n, weight, symmetric=graph.symmetric, norm=graph.norm
        )


def _inside(part: Tensor, graph: Graph, batches: int) -> list[Tensor]:
    """The positions of the edges with both ends in one batch, for each batch. One pass, O(e)."""
    found: list[Tensor] = []
    where: list[Tensor] = []
    for start in range(0, graph.num_edges, EDGE_CHUNK):
        source, target = graph.ends(start, min(start + EDGE_CHUNK, graph.num_edges))
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

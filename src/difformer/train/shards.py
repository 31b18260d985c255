"""The rows that one process holds of a dataset in memory, and the batches made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.core.randomness import generator
from difformer.core.sparse import SparseMatrix
from difformer.data.batch import Batch
from difformer.data.split import PARTS, HeldSplit
from difformer.train.background import Background
from difformer.train.batches import check_batch_size, hide_labels, labels_of, predict
from difformer.train.comm import Comm
from difformer.train.partition import Epoch
from difformer.train.sharding import Layout, LocalEdges, ShardedGraph

if TYPE_CHECKING:
    from difformer.data import Dataset, Split


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

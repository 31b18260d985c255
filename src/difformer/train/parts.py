"""The rows that each process trains on, of a dataset in memory or in parts on disk.

All rows at once, or mini-batches that are prepared while the model trains: an epoch draws runs of
neighbouring rows, so that a batch is read from disk in runs. Of a dataset on disk a process opens
only the parts it holds; besides its batches it holds its labels and a few bytes per run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.draws import generator
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import Batch
from difformer.data.split import PARTS, HeldSplit
from difformer.nn.model import DIFFormer
from difformer.shards.folder import Held, ShardFolder
from difformer.train.batches import (
    Background,
    check_batch_size,
    hide_labels,
    labels_of,
    outputs_of,
    predict,
)
from difformer.train.partition import Epoch
from difformer.train.processes import Comm
from difformer.train.sharding import Layout, ShardedGraph, edges_into

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

MOST_RUNS = 2**20  # runs of rows in an epoch; with no more rows on disk than this, each is a run


class Parts:
    """The rows that this process holds, in memory or on disk. Source of batches.

    A mini-batch is the same random set of rows for any number of processes; each contributes those
    it holds. Dropout is seeded for each epoch and process, so that a restarted run draws the same.

    Args:
        held: the rows of this process and the edges that enter them.
        split: of these rows.
        starts: the first row that each process holds, and the number of rows.
        model: decides which of the data is read, and in which precision.
        comm: the processes.
        batch_size: rows in a batch of all processes together; None for all rows.
        seed: with the epoch's number it decides the batches and, with the rank, dropout.
        streamed: rows are evaluated in batches too, drawn like those of epoch 0, because all at
            once may not fit into memory.
        symmetric: the whole graph is.
        chunk: rows that the model processes at a time when one process evaluates all.
        runs: the most runs of rows that are drawn.
        ids: (n,) the row that each drawn number stands for; None for the same.
    """

    def __init__(
        self,
        held: Held,
        split: HeldSplit,
        starts: Sequence[int],
        model: DIFFormer,
        comm: Comm,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        streamed: bool = False,
        symmetric: bool = True,
        chunk: int | None = None,
        runs: int = MOST_RUNS,
        ids: Tensor | None = None,
    ) -> None:
        self._rows = n = starts[-1]
        check_batch_size(batch_size, n)
        self.held, self.split, self.comm, self.y = held, split, comm, held.y
        self._starts, self._size, self._seed, self._chunk = list(starts), batch_size, seed, chunk
        self._ids, self._symmetric = ids, symmetric
        self._joined = held.joined and model.config.use_graph
        # One process passes the graph unchanged; the model prepares it.
        self._mean = model.config.graph_norm == "row" and comm.size > 1
        self._dtype = model.input.weight.dtype
        self._seen = hide_labels(self.y, split.train)
        self._device = torch.device("cpu")
        self._run = 1 if batch_size is None else min(-(-n // runs), batch_size)
        self._background = Background[Epoch]()
        self._all = None if streamed and batch_size is not None else self._everything()
        self.outputs: Tensor | None = None  # of the rows held, when they were last evaluated

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        split: Split,
        graph: Graph | None,
        model: DIFFormer,
        comm: Comm,
        *,
        partition: str = "range",
        **options: Any,
    ) -> Parts:
        """From the whole data, the same on every process, which keeps its own rows and edges.

        Features may be memory-mapped: only the own rows are read. `partition` is that of `Layout`.
        """
        n = dataset.num_rows
        check_batch_size(options.get("batch_size"), n)
        layout = Layout.make(graph, n, comm, partition)
        own = layout.own(comm.rank)
        rows = layout.order[own]
        mark = torch.full((n,), -1, dtype=torch.int8)
        for index, part in enumerate(PARTS):
            mark[getattr(split.check(n), part)] = index
        arrays = {"y": labels_of(dataset)[rows], "split": mark[rows], "row": rows}
        if graph is not None:
            source, target, weight = edges_into(graph, layout, comm.rank)
            counts = torch.bincount(target - own.start, minlength=len(rows))
            arrays |= {"col": source, "crow": torch.cat([counts.new_zeros(1), counts.cumsum(0)])}
            arrays |= {} if weight is None else {"weight": weight}
        known = {name: tensor.numpy() for name, tensor in arrays.items()}
        if dataset.x.layout == torch.strided:
            held = Held(own.start, ({**known, "x": dataset.x[rows].numpy()},))
        else:
            held = _SparseHeld(own.start, (known,), SparseMatrix.from_csr(dataset.x)[rows])
        sizes = {part: split.size(part) for part in PARTS}
        return cls(
            held,
            held_split(held.split, split.name, sizes, split.to_json()),
            layout.starts,
            model,
            comm,
            symmetric=graph is None or graph.symmetric,
            runs=n,
            ids=layout.new_ids(),
            **options,
        )

    @classmethod
    def on_disk(cls, shards: ShardFolder, model: DIFFormer, comm: Comm, **options: Any) -> Parts:
        """From a sharded dataset; the parts of this process are verified and mapped."""
        manifest, starts = shards.manifest, shards.starts(comm.size)
        check_batch_size(options.get("batch_size"), manifest.rows)
        held = shards.hold(*shards.share(comm.rank, comm.size))
        sizes = {part: manifest.size(part) for part in PARTS}
        split = held_split(held.split, manifest.split, sizes, None)
        return cls(held, split, starts, model, comm, streamed=True, **options)

    def observed(self) -> Batch:
        if self._all is None:
            raise ValueError("batch_size must be None for a model that looks at all rows first")
        return self._all

    def epoch(self, number: int) -> Iterator[Batch]:
        seed_epoch(self._seed, number, self.comm)
        if self._size is None:
            yield self.observed()
            return
        for read in self._batches(number):
            if read.batch.size:
                yield read.batch

    def evaluate(self, model: nn.Module) -> Tensor:
        """Outputs of the rows held here."""
        if self._all is not None:
            self.outputs = outputs_of(model, self._all, self._chunk)
            return self.outputs
        out: Tensor | None = None
        for read in self._batches(0):
            found = predict(model, read.batch).output
            out = found.new_empty(self.held.rows, found.shape[1]) if out is None else out
            out[read.mine.to(out.device)] = found
        assert out is not None
        self.outputs = out
        return out

    def to(self, device: torch.device) -> Parts:
        """The same source, handing out its batches on a device; what is held stays where it is."""
        if device != self._device:
            self._device, self.y = device, self.y.to(device)
            self._all = None if self._all is None else self._all.to(device)
        return self

    def _everything(self) -> Batch:
        held, graph = self.held, None
        if self._joined:
            counts = held.crow.diff()
            target = torch.repeat_interleave(torch.arange(held.rows), counts) + held.start
            graph = self._graph((held.col, target, held.weight), self._starts)
        counted = None if self.comm.size == 1 else self.split.size("train")
        x = held.x.to(self._dtype)
        return Batch(x, self._seen, graph, self.split.train, counted=counted)

    def _batches(self, number: int) -> Iterator[_Read]:
        """The batches of an epoch, read ahead in a separate thread."""
        assert self._size is not None
        runs, per_batch = -(-self._rows // self._run), max(1, self._size // self._run)
        plan = Epoch.draw(runs, per_batch, [self._seed, number], ids=self._ids)
        reads = self._background.each(partial(self._read, plan), len(plan.rows))
        for read, counted in zip(reads, self._counted(plan), strict=True):
            # Processes agree on the boundary here, all in the same order.
            graph = None if read.edges is None else self._graph(read.edges, read.starts)
            batch = replace(read.batch, graph=graph, counted=counted)
            yield replace(read, batch=batch.to(self._device))

    def _counted(self, plan: Epoch) -> list[int]:
        """How many training rows each batch has in all processes: one short message."""
        of = plan.part[(self.split.train.cpu() + self.held.start) // self._run].long()
        counts = torch.bincount(of, minlength=len(plan.rows))
        return self.comm.sum_in_place(counts, "plan").tolist()

    def _read(self, plan: Epoch, index: int) -> _Read:
        """One process's share of a batch; needs no other process."""
        held, run = self.held, self._run
        rows = (plan.rows[index][:, None] * run + torch.arange(run)).flatten()
        rows = rows[rows < self._rows]  # the last run may be a shorter one
        starts = torch.searchsorted(rows, torch.tensor(self._starts)).tolist()
        first = starts[self.comm.rank]
        mine = rows[first : starts[self.comm.rank + 1]] - held.start
        edges = None
        if self._joined:
            source, target, weight = held.entering(mine)
            inside = plan.part[source // run] == index
            source, target = source[inside], target[inside]
            weight = None if weight is None else weight[inside]
            place = plan.place[source // run].long() * run + source % run
            edges = place, target + first, weight
        trains = (held.splits(mine) == 0).nonzero().squeeze(1)
        x = held.features(mine).to(self._dtype)
        batch = Batch(x, self._seen[mine], None, trains)
        return _Read(batch, mine, starts, edges)

    def _graph(self, edges: _Edges, starts: list[int]) -> Any:
        source, target, weight = edges
        made: dict[str, Any] = {"symmetric": self._symmetric, "dtype": self._dtype}
        if self.comm.size == 1:
            return Graph.from_sorted(source, target, starts[-1], weight, **made)
        if weight is not None:  # normalised in the model's precision, or their own if that is more
            weight = weight.to(torch.promote_types(weight.dtype, self._dtype))
        if self._mean:
            keep, made["symmetric"], made["norm"] = source != target, False, "row"
            source, target = source[keep], target[keep]
            weight = None if weight is None else weight[keep]
        return ShardedGraph.build(source, target, weight, starts, self.comm, **made)


_Edges = tuple[Tensor, Tensor, Tensor | None]
"""Sources, targets and weights, sorted by target, then source."""


@dataclass(frozen=True, eq=False)
class _SparseHeld(Held):
    """Rows in memory whose features are sparse."""

    matrix: SparseMatrix

    @property
    def x(self) -> Tensor:
        return self.matrix.csr

    def features(self, rows: Tensor) -> Tensor:
        return self.matrix[rows].csr


@dataclass(frozen=True)
class _Read:
    """The part of a batch that one process can build alone."""

    batch: Batch
    mine: Tensor  # the positions of its rows among those held
    starts: list[int]  # where each process's rows begin in the batch
    edges: _Edges | None


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

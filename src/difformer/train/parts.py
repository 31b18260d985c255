"""Training from a sharded dataset: each process opens only the parts it holds.

All rows at once, or mini-batches that are read from disk while the model trains: an epoch draws
runs of neighbouring rows, so that a batch is read in runs. Besides its batches a process holds its
labels and a few bytes per run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.data.dataset import Batch
from difformer.data.split import PARTS
from difformer.nn.model import DIFFormer
from difformer.shards.folder import ShardFolder
from difformer.train.batches import (
    Background,
    check_batch_size,
    hide_labels,
    outputs_of,
    predict,
)
from difformer.train.callbacks import Callback
from difformer.train.distributed import agree_on_run, fit_held
from difformer.train.folder import FitResult
from difformer.train.partition import Epoch
from difformer.train.processes import Comm
from difformer.train.settings import TrainSettings
from difformer.train.sharding import (
    LocalEdges,
    ShardedGraph,
    held_split,
    seed_epoch,
)

# The most runs of rows in an epoch; with no more rows than this, each row is a run.
MOST_RUNS = 2**20


class FromParts:
    """The rows of a sharded dataset that this process holds. Source of batches.

    With a batch size, rows are evaluated in batches too, drawn like those of epoch 0, because all
    rows at once may not fit into memory.

    Args:
        shards: the dataset; the parts of this process are verified and mapped.
        model: decides which of the data is read, and in which precision.
        comm: the processes.
        batch_size: rows in a batch of all processes together; None for all rows.
        seed: with the epoch's number it decides the batches and, with the rank, dropout.
        chunk: rows that the model processes at a time when one process evaluates all.
        runs: the most runs of rows that are drawn.
    """

    def __init__(
        self,
        shards: ShardFolder,
        model: DIFFormer,
        comm: Comm,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        chunk: int | None = None,
        runs: int = MOST_RUNS,
    ) -> None:
        manifest = shards.manifest
        n = manifest.rows
        check_batch_size(batch_size, n)
        self.comm, self._size, self._seed, self._chunk = comm, batch_size, seed, chunk
        self.held = shards.hold(*shards.share(comm.rank, comm.size))
        self._starts = list(shards.starts(comm.size))
        self._joined = manifest.graph and model.config.use_graph
        # One process passes the graph unchanged; the model prepares it.
        self._mean = model.config.graph_norm == "row" and comm.size > 1
        self._dtype = model.input.weight.dtype
        self.y = self.held.y
        sizes = {part: manifest.size(part) for part in PARTS}
        self.split = held_split(self.held.split, manifest.split, sizes, None)
        self._seen = hide_labels(self.y, self.split.train)
        self._device = torch.device("cpu")
        self._rows = n
        self._run = 1 if batch_size is None else min(-(-n // runs), batch_size)
        self._background = Background[Epoch]()
        self._all = None if batch_size is not None else self._everything()
        self.outputs: Tensor | None = None  # of the rows held, when they were last evaluated

    def observed(self) -> Batch:
        if self._all is None:
            raise ValueError("batch_size must be None for a model that looks at all rows first")
        return self._all

    def epoch(self, number: int) -> Iterator[Batch]:
        seed_epoch(self._seed, number, self.comm)
        if self._all is not None:
            yield self._all
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

    def to(self, device: torch.device) -> FromParts:
        """The same source, handing out its batches on a device; the parts stay on disk."""
        if device != self._device:
            self._device, self.y = device, self.y.to(device)
            self._all = None if self._all is None else self._all.to(device)
        return self

    def _everything(self) -> Batch:
        held, n = self.held, self.held.rows
        graph = None
        if self._joined:
            target = torch.repeat_interleave(torch.arange(n), held.crow.diff()) + held.start
            graph = self._graph(self._edges(held.col, target, held.weight), self._starts)
        counted = None if self.comm.size == 1 else self.split.size("train")
        x = held.x.to(self._dtype)
        return Batch(x, self._seen, graph, self.split.train, counted=counted)

    def _batches(self, number: int) -> Iterator[_Read]:
        """The batches of an epoch, read ahead in a separate thread."""
        assert self._size is not None
        runs, per_batch = -(-self._rows // self._run), max(1, self._size // self._run)
        plan = Epoch.draw(runs, per_batch, [self._seed, number])
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
            edges = self._edges(place, target + first, weight)
        trains = (held.splits(mine) == 0).nonzero().squeeze(1)
        x = held.features(mine).to(self._dtype)
        batch = Batch(x, self._seen[mine], None, trains)
        return _Read(batch, mine, starts, edges)

    def _edges(self, source: Tensor, target: Tensor, weight: Tensor | None) -> LocalEdges:
        if self._mean:
            keep = source != target
            source, target = source[keep], target[keep]
            weight = None if weight is None else weight[keep]
        norm = "row" if self._mean else "symmetric"
        return LocalEdges(torch.stack([source, target]), weight, not self._mean, norm)

    def _graph(self, edges: LocalEdges, starts: list[int]) -> Any:
        if self.comm.size > 1:
            return ShardedGraph.build(edges, starts, self.comm)
        source, target = edges.edge_index
        return Graph.from_sorted(source, target, starts[-1], edges.weight, symmetric=True)


@dataclass(frozen=True)
class _Read:
    """The part of a batch that one process can build alone."""

    batch: Batch
    mine: Tensor  # the positions of its rows among those held
    starts: list[int]  # where each process's rows begin in the batch
    edges: LocalEdges | None


def fit_from_parts(
    model: DIFFormer,
    shards: ShardFolder,
    settings: TrainSettings,
    comm: Comm,
    *,
    chunk: int | None = None,
    folder: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[FitResult, FromParts, nn.Module]:
    """`fit` on a sharded dataset, spread over the processes of `comm`; each gets the same result.

    Also returns the source, whose `outputs` are those of the best weights for the rows held here,
    and the trained model.
    """
    sharded = comm.size > 1
    agree_on_run(comm, settings, model, shards.manifest.checksum, sharded=sharded)
    if settings.partition is not None:
        raise ValueError("partition must be left out with shards: their parts say what goes where")
    source = FromParts(
        shards, model, comm, batch_size=settings.batch_size, seed=settings.seed, chunk=chunk
    )
    written: dict[str, Any] = {"folder": folder, "config": config, "callbacks": callbacks}
    task = shards.manifest.task
    result, trained = fit_held(model, source, task, settings, comm, sharded=sharded, **written)
    return result, source, trained

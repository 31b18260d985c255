"""Batches over time: snapshots go through a model together, as separate graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.data.batch import Batch
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.train.batches import predict, training_labels

# Rows and edges that a model processes at a time in evaluation.
CHUNK = 2**21


class Snapshots:
    """All training snapshots in one call and one step, or a few per step; graphs are prepared once.

    The snapshots of a call are separate graphs: their edges lie in the blocks of one
    block-diagonal Graph, and `segments` keeps the all-pair diffusion within each. The loss is the
    mean over the rows of all of them, so its gradient is that of a loop over snapshots which
    accumulates gradients and steps once, to rounding.

    Args:
        dataset: the snapshots.
        split: rows that train; usually whole snapshots, see `time_split`.
        per_step: snapshots per step, in time order; None for all of them, one step per epoch. The
            authors' code takes all snapshots of Chickenpox and Covid, and one per step of WikiMath.
        use_graph: False leaves the graphs out, for models that take none.
    """

    def __init__(
        self,
        dataset: TemporalDataset,
        split: Split,
        *,
        per_step: int | None = None,
        use_graph: bool = True,
    ) -> None:
        if per_step is not None and per_step < 1:
            raise ValueError(f"per_step must be None or at least 1, got {per_step}")
        self._dataset = dataset if use_graph else dataset.with_edges(())
        self._prepared: dict[tuple[int, ...], tuple[Graph | None, Tensor]] = {}
        self.y = dataset.y
        self._seen, self._train = training_labels(dataset.y, split), split.train
        training = torch.unique(split.train // dataset.num_nodes).tolist()
        step = per_step or len(training)
        self._steps = [self._batch(part) for part in _parts(training, step)]
        edges = max((index.shape[1] for index, _ in self._dataset.edges), default=0)
        self._size = max(1, CHUNK // max(dataset.num_nodes, edges))  # snapshots per chunk
        everything = range(dataset.num_snapshots)
        self._chunks = [self._batch(part) for part in _parts(everything, self._size)]
        self._some: dict[tuple[int, ...], list[Batch]] = {}  # batches made for `evaluate_rows`

    def observed(self) -> Batch:
        if len(self._chunks) == 1:
            return self._chunks[0]
        return self._batch(range(self._dataset.num_snapshots))

    def epoch(self, number: int) -> Iterator[Batch]:
        yield from self._steps

    def evaluate(self, model: nn.Module) -> Tensor:
        return torch.cat([predict(model, chunk).output for chunk in self._chunks])

    def evaluate_rows(self, model: nn.Module, rows: Tensor) -> Tensor:
        """As `evaluate`, but only the snapshots of these rows are run; the others are nan."""
        n = self._dataset.num_nodes
        wanted = tuple(torch.unique(rows // n).tolist())
        if len(wanted) == self._dataset.num_snapshots:
            return self.evaluate(model)
        if wanted not in self._some:
            parts = _parts(wanted, self._size)
            self._some[wanted] = [self._batch(p).to(self.y.device) for p in parts]
        done = torch.cat([predict(model, batch).output for batch in self._some[wanted]])
        output = done.new_full((self.y.shape[0], done.shape[1]), float("nan"))
        output.view(-1, n, done.shape[1])[list(wanted)] = done.view(-1, n, done.shape[1])
        return output

    def to(self, device: torch.device) -> Snapshots:
        if device == self.y.device:
            return self
        moved = copy(self)
        moved.y, moved._some = self.y.to(device), {}
        moved._steps = [batch.to(device) for batch in self._steps]
        moved._chunks = [batch.to(device) for batch in self._chunks]
        return moved

    def _batch(self, snapshots: Sequence[int]) -> Batch:
        data, n = self._dataset, self._dataset.num_nodes
        first, last = snapshots[0], snapshots[-1]
        if len(snapshots) == last - first + 1:
            take: Any = slice(first * n, (last + 1) * n)  # a view
        else:
            take = (torch.tensor(snapshots).unsqueeze(1) * n + torch.arange(n)).flatten()
        graph, segments = self._prepare(snapshots)
        counted = torch.zeros(data.num_rows, dtype=torch.bool)
        counted[self._train] = True
        rows = counted[take].nonzero().squeeze(1)
        return Batch(data.x[take], self._seen[take], graph, rows, segments)

    def _prepare(self, snapshots: Sequence[int]) -> tuple[Graph | None, Tensor]:
        """The graph and segments of some snapshots; shared where the graph does not change."""
        n, static = self._dataset.num_nodes, len(self._dataset.edges) < 2
        key = (len(snapshots),) if static else (-1, *snapshots)
        if key not in self._prepared:
            edges = self._dataset.stacked_edges(snapshots)
            rows = n * len(snapshots)
            graph = None if edges is None else Graph.from_edges(edges[0], rows, edges[1])
            segments = torch.arange(len(snapshots)).repeat_interleave(n)
            self._prepared[key] = graph, segments
        return self._prepared[key]


def _parts(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[i : i + size] for i in range(0, len(items), size)]

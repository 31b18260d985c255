"""Sources of batches, in memory and over time; labels that training must not see are hidden."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Prediction

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.snapshots import TemporalDataset
    from difformer.data.split import Split


SourceT = TypeVar("SourceT", bound="Source")


class Source(Protocol):
    """What the loop needs from the data, whether it comes whole, in pieces or over time."""

    @property
    def y(self) -> Tensor:
        """The labels of all rows, for metrics only."""
        ...

    def observed(self) -> Batch:
        """What a model may see before training: all rows, and the training labels only."""
        ...

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch, with the training labels only.

        They depend on ``number`` alone (shuffle with a generator seeded by it), so that an
        interrupted run gets the same batches again.
        """
        ...

    def evaluate(self, model: nn.Module, rows: Tensor | None = None) -> Tensor:
        """The model's output for all rows, in the order of ``y``; the loop sets eval mode.

        Given ``rows``, only their outputs need to be correct.
        """
        ...

    def to(self: SourceT, device: torch.device) -> SourceT:
        """The same source, handing out its batches on a device."""
        ...


def predict(model: nn.Module, batch: Batch) -> Prediction:
    """Call a model on a batch; a bare tensor becomes a prediction without a penalty."""
    result: Tensor | Prediction = model(batch.x, batch.graph, None, batch.segments)
    return Prediction(result) if isinstance(result, Tensor) else result


def hide_labels(y: Tensor, rows: Tensor) -> Tensor:
    """A copy of y in which only ``rows`` keep their labels; the others are -1 or nan. O(n)."""
    hidden = torch.full_like(y, float("nan") if y.is_floating_point() else -1)
    hidden[rows] = y[rows]
    return hidden


def labels_of(dataset: Dataset) -> Tensor:
    """The labels as objectives take them: (n,) classes, else (n, t), also for one target."""
    return dataset.y if dataset.task == "multiclass" else dataset.y.reshape(dataset.num_rows, -1)


def training_labels(y: Tensor, split: Split) -> Tensor:
    """`hide_labels` for all but the training rows, some of which must have a known label."""
    seen = hide_labels(y, split.check(y.shape[0]).train)
    known = ~seen.isnan() if seen.is_floating_point() else seen >= 0
    if not bool(known.any()):
        raise ValueError(f"split {split.name!r} must have labelled training rows, it has none")
    return seen


def outputs_of(model: nn.Module, batch: Batch, chunk: int | None) -> Tensor:
    """The outputs of all rows; a DIFFormer processes `chunk` rows at a time, if it is given."""
    if chunk is not None:
        from difformer.nn.model import DIFFormer
        from difformer.train.chunks import predict_in_chunks

        if isinstance(model, DIFFormer):
            return predict_in_chunks(model, batch.x, batch.graph, chunk=chunk)
    return predict(model, batch).output


class FullBatch:
    """All rows in one batch, one step per epoch; only the labels are copied.

    Args:
        dataset: features and labels.
        split: its training rows are counted in the loss, and their labels are visible to the model.
        graph: a prepared ``difformer.core.Graph`` over the rows, or None.
        weight: (n,) weight of each row in the loss, or None for one each.
        chunk: rows that a DIFFormer processes at a time in evaluation, to limit memory; None for
            all.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        graph: Any | None = None,
        *,
        weight: Tensor | None = None,
        chunk: int | None = None,
    ) -> None:
        n = dataset.num_rows
        if weight is not None and weight.shape != (n,):
            raise ValueError(f"weight must be ({n},), one per row, got {tuple(weight.shape)}")
        self.y, self._chunk = labels_of(dataset), chunk
        seen = training_labels(self.y, split)
        self._batch = Batch(dataset.x, seen, graph, split.train, weight=weight)

    def observed(self) -> Batch:
        return self._batch

    def epoch(self, number: int) -> Iterator[Batch]:
        yield self._batch

    def evaluate(self, model: nn.Module, rows: Tensor | None = None) -> Tensor:
        return outputs_of(model, self._batch, self._chunk)

    def to(self, device: torch.device) -> FullBatch:
        if device == self.y.device:
            return self
        moved = copy(self)
        moved.y, moved._batch = self.y.to(device), self._batch.to(device)
        return moved


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
    """

    def __init__(
        self, dataset: TemporalDataset, split: Split, *, per_step: int | None = None
    ) -> None:
        if per_step is not None and per_step < 1:
            raise ValueError(f"per_step must be None or at least 1, got {per_step}")
        self._dataset, self.y = dataset, dataset.y
        self._seen = training_labels(dataset.y, split)
        self._trains = torch.zeros(dataset.num_rows, dtype=torch.bool)
        self._trains[split.train] = True
        self._prepared: dict[tuple[int, ...], tuple[Graph | None, Tensor]] = {}
        training = torch.unique(split.train // dataset.num_nodes).tolist()
        self._steps = self._batches(training, per_step or len(training))
        edges = max((index.shape[1] for index, _ in dataset.edges), default=0)
        self._size = max(1, CHUNK // max(dataset.num_nodes, edges))  # snapshots per chunk
        self._run: dict[tuple[int, ...], list[Batch]] = {}  # what evaluation calls the model on

    def observed(self) -> Batch:
        every = range(self._dataset.num_snapshots)
        return self._batches(every, len(every))[0].to(self.y.device)

    def epoch(self, number: int) -> Iterator[Batch]:
        yield from self._steps

    def evaluate(self, model: nn.Module, rows: Tensor | None = None) -> Tensor:
        """Only the snapshots of these rows are run; the outputs of the others are nan."""
        n, every = self._dataset.num_nodes, range(self._dataset.num_snapshots)
        wanted = tuple(every if rows is None else torch.unique(rows // n).tolist())
        if wanted not in self._run:
            batches = self._batches(wanted, self._size)
            self._run[wanted] = [batch.to(self.y.device) for batch in batches]
        done = torch.cat([predict(model, batch).output for batch in self._run[wanted]])
        if len(wanted) == len(every):
            return done
        output = done.new_full((len(every), n, done.shape[1]), float("nan"))
        output[list(wanted)] = done.view(-1, n, done.shape[1])
        return output.flatten(0, 1)

    def to(self, device: torch.device) -> Snapshots:
        if device == self.y.device:
            return self
        moved = copy(self)
        moved.y, moved._run = self.y.to(device), {}
        moved._steps = [batch.to(device) for batch in self._steps]
        return moved

    def _batches(self, snapshots: Sequence[int], size: int) -> list[Batch]:
        starts = range(0, len(snapshots), size)
        return [self._batch(snapshots[start : start + size]) for start in starts]

    def _batch(self, snapshots: Sequence[int]) -> Batch:
        data, first, last = self._dataset, snapshots[0], snapshots[-1]
        near = len(snapshots) == last - first + 1
        chosen: Any = slice(first, last + 1) if near else list(snapshots)  # a slice is a view
        x, y, trains = (
            rows.reshape(-1, data.num_nodes, *rows.shape[1:])[chosen].flatten(0, 1)
            for rows in (data.x, self._seen, self._trains)
        )
        graph, segments = self._prepare(snapshots)
        return Batch(x, y, graph, trains.nonzero().squeeze(1), segments)

    def _prepare(self, snapshots: Sequence[int]) -> tuple[Graph | None, Tensor]:
        """The graph and segments of some snapshots; shared where the graph does not change."""
        n, static = self._dataset.num_nodes, len(self._dataset.edges) < 2
        key = (len(snapshots),) if static else (-1, *snapshots)
        if key not in self._prepared:
            edges = self._dataset.stacked_edges(snapshots)
            graph = edges and Graph.from_edges(edges[0], n * len(snapshots), edges[1])
            segments = torch.arange(len(snapshots)).repeat_interleave(n)
            self._prepared[key] = graph, segments
        return self._prepared[key]

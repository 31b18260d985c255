"""Sources of batches. A source hides every label that training must not see."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from difformer.data.batch import Batch, Prediction
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from difformer.data import Dataset, Split

SourceT = TypeVar("SourceT", bound="Source")


class Source(Protocol):
    """What the loop needs from the data, whether it comes whole, in pieces or over time.

    A source whose rows do not all interact may also have ``evaluate_rows(model, rows)``: an output
    for all rows, of which only these need to be correct.
    """

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

    def evaluate(self, model: nn.Module) -> Tensor:
        """The model's output for all rows, in the order of ``y``; the loop sets eval mode."""
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


def check_batch_size(batch_size: int | None, n: int) -> None:
    """Raise a ValueError unless it is None, for all rows at once, or at most their number."""
    if batch_size is not None and not 1 <= batch_size <= n:
        raise ValueError(
            f"batch_size must lie in 1 to {n}, the number of rows, got {batch_size}; "
            "leave it out to train on all rows at once"
        )


def outputs_of(model: nn.Module, batch: Batch, chunk: int | None) -> Tensor:
    """The outputs of all rows; a DIFFormer processes `chunk` rows at a time, if it is given."""
    if chunk is not None and isinstance(model, DIFFormer):
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

    def evaluate(self, model: nn.Module) -> Tensor:
        return outputs_of(model, self._batch, self._chunk)

    def to(self, device: torch.device) -> FullBatch:
        if device == self.y.device:
            return self
        moved = copy(self)
        moved.y, moved._batch = self.y.to(device), self._batch.to(device)
        return moved

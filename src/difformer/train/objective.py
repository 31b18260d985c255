"""Losses and metrics, one class per task; shapes are never broadcast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from difformer.data.dataset import Batch, Prediction
from difformer.metrics import METRICS, TEMPERED, Metric
from difformer.train.formulas import (
    HERE,
    Together,
    broadcast_mse,
    calibration,
    macro_f1,
    mean_roc_auc,
    means,
    roc_auc,
)


class Objective(Protocol):
    """A loss to minimise and metrics to report.

    ``loss`` counts ``batch.rows`` only and is what the gradient comes from. ``metrics`` counts
    ``rows`` of all rows, without weights, and always holds ``"loss"`` and ``monitor``, the metric
    that picks the epoch. Rows whose label is unknown (-1 or nan) count in neither.
    """

    @property
    def monitor(self) -> Metric: ...

    def loss(self, output: Tensor, batch: Batch) -> Tensor: ...

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]: ...


_TEMPERATURES = tuple(math.exp(step / 4) for step in range(-4, 9))


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy; reports it, accuracy, macro-F1, calibration error. O(n c + n log n).

    The reported loss is the log loss; with two classes there is also the area under the ROC curve.

    loss = Σ_i w_i CE(output_i, y_i) / Σ_i w_i,   w_i = class_weight[y_i] · batch.weight_i

    Shapes: output (n, c) logits, y (n,) int64 in [0, c) or -1 for unknown.
    """

    class_weight: Tensor | None = None
    monitor: Metric = METRICS["accuracy"]

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        rows = batch.rows[batch.y[batch.rows] >= 0]
        logits, y = _logits_and_classes(output, batch.y, rows)
        weight = self._weights(batch, rows, output)
        if weight is None:
            return functional.cross_entropy(logits, y)
        return _weighted_mean(functional.cross_entropy(logits, y, reduction="none"), weight)

    def mass(self, output: Tensor, batch: Batch) -> Tensor:
        """The sum of the weights that `loss` divides by, so that losses of parts can be joined."""
        rows = batch.rows[batch.y[batch.rows] >= 0]
        weight = self._weights(batch, rows, output)
        return output.new_tensor(rows.numel()) if weight is None else weight.sum().to(output)

    def _weights(self, batch: Batch, rows: Tensor, like: Tensor) -> Tensor | None:
        weight = None if batch.weight is None else batch.weight[rows]
        if self.class_weight is None:
            return weight
        own = self.class_weight.to(like)[batch.y[rows]]
        return own if weight is None else weight * own

    def metrics(
        self, output: Tensor, y: Tensor, rows: Tensor, together: Together = HERE
    ) -> dict[str, float]:
        logits, y = _logits_and_classes(output.detach(), y, rows[y[rows] >= 0])
        confidence, guess = logits.softmax(1).max(1)
        right = (guess == y).double()
        classes = logits.shape[1]
        each = functional.cross_entropy(logits, y, reduction="none").double()
        loss, accuracy = means(together, each, right)
        found = {
            "loss": loss,
            "accuracy": accuracy,
            "macro_f1": macro_f1(y, guess, classes, together),
            "ece": calibration(confidence, right, together=together)[1],
        }
        if classes == 2:
            found["roc_auc"] = roc_auc(y, logits[:, 1] - logits[:, 0], together)
        if self.monitor.name == TEMPERED:
            losses = (
                functional.cross_entropy(logits / t, y, reduction="none").double()
                for t in _TEMPERATURES
            )
            found[TEMPERED] = min(means(together, *losses))
        return found


class _KnownEntries:
    """Objectives over the known entries of y (n, t), where nan is unknown."""

    def mass(self, output: Tensor, batch: Batch) -> Tensor:
        """The sum of the weights that `loss` divides by, so that losses of parts can be joined."""
        return _mask_weights(~batch.y[batch.rows].isnan(), output, batch).sum()


@dataclass(frozen=True)
class BinaryCrossEntropy(_KnownEntries):
    """Sigmoid cross-entropy of many yes-or-no labels; reports it, ROC-AUC, calibration error.

    O(n t log n).

    loss = mean over the known (i, k) of BCE(output_ik, y_ik), weighted by batch.weight_i

    Shapes: output (n, t) logits, y (n, t) of 0, 1 and nan for unknown.
    """

    class_weight: Tensor | None = None  # (t,): how much more a positive counts, per label
    monitor: Metric = METRICS["roc_auc"]

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        scores, y = _same_shape(output, batch.y, batch.rows)
        known = ~y.isnan()
        positive = None if self.class_weight is None else self.class_weight.to(output)
        each = functional.binary_cross_entropy_with_logits(
            scores, y.nan_to_num(0.0), reduction="none", pos_weight=positive
        )
        return _masked_mean(each, known, batch)

    def metrics(
        self, output: Tensor, y: Tensor, rows: Tensor, together: Together = HERE
    ) -> dict[str, float]:
        scores, y = _same_shape(output.detach(), y, rows)
        known = ~y.isnan()
        each = functional.binary_cross_entropy_with_logits(
            scores[known], y[known], reduction="none"
        )
        return {
            "loss": means(together, each.double())[0],
            "roc_auc": mean_roc_auc(y, scores, together),
            "ece": calibration(scores[known].sigmoid(), y[known], together=together)[1],
        }


@dataclass(frozen=True)
class SquaredError(_KnownEntries):
    """Mean squared error; reports it, the mean absolute error and R². O(n t).

    loss = mean over the known (i, k) of (output_ik − y_ik)², weighted by batch.weight_i

    Shapes: output and y (n, t), or both (n,); nan in y for unknown. (n, 1) against (n,) is an
    error: broadcast to n × n, it would average over pairs of rows.
    """

    monitor: Metric = METRICS["mse"]

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        output, y = _same_shape(output, batch.y, batch.rows)
        known = ~y.isnan()
        # A nan label is replaced before it meets the output: 0 · nan would spoil the gradient.
        return _masked_mean((output - torch.where(known, y, output.detach())) ** 2, known, batch)

    def metrics(
        self, output: Tensor, y: Tensor, rows: Tensor, together: Together = HERE
    ) -> dict[str, float]:
        output, y = _same_shape(output.detach(), y, rows)
        known = ~y.isnan()
        error, y = (output[known] - y[known]).double(), y[known].double()
        mse, mae, middle = means(together, error.square(), error.abs(), y)
        spread = means(together, (y - middle).square())[0]
        r2 = 1.0 - mse / spread if spread > 0 else float("nan")
        return {"loss": mse, "mse": mse, "mae": mae, "r2": r2}


@dataclass(frozen=True)
class SnapshotError(SquaredError):
    """SquaredError over snapshots of n rows each; also reports the cost of the released code.

        broadcast_mse = mean over snapshots of mean_ij (output_i − y_j)²

    The released loss subtracts (n,) from (n, 1), so it averages over all *pairs* of nodes of a
    snapshot. It is here for comparison with published figures; nothing is trained on it.

    Args:
        scatter: also report the standard error of the mean squared error over snapshots.
    """

    num_nodes: int = 1
    scatter: bool = False

    def metrics(
        self, output: Tensor, y: Tensor, rows: Tensor, together: Together = HERE
    ) -> dict[str, float]:
        found = {
            **SquaredError.metrics(self, output, y, rows, together),
            "broadcast_mse": broadcast_mse(output, y, rows, self.num_nodes),
        }
        if self.scatter:
            miss = (output.detach() - y)[rows].double()
            each = miss.square().reshape(-1, self.num_nodes).mean(1)
            found["standard_error"] = float(each.std() / len(each) ** 0.5)
        return found


def supervised_loss(objective: Objective, prediction: Prediction, batch: Batch) -> Tensor:
    """The objective's loss, plus the model's own penalty where the prediction has one."""
    loss = objective.loss(prediction.output, batch)
    return loss if prediction.penalty is None else loss + prediction.penalty


def objective_for(task: str, *, class_weight: Tensor | None = None) -> Objective:
    """The objective of a dataset's task; per-row weights travel in the batch."""
    if task == "multiclass":
        return CrossEntropy(class_weight)
    if task == "multilabel":
        return BinaryCrossEntropy(class_weight)
    if task != "regression":
        raise ValueError(f"task must be one of multiclass, multilabel, regression, got {task!r}")
    if class_weight is not None:
        raise ValueError("class_weight must be None for regression: it has no classes")
    return SquaredError()


def _logits_and_classes(output: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    if output.ndim != 2 or y.ndim != 1 or output.shape[0] != y.shape[0]:
        raise ValueError(
            "output must be (n, classes) and y (n,) with the same n, "
            f"got {tuple(output.shape)} and {tuple(y.shape)}"
        )
    return output[rows], y[rows]


def _same_shape(output: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    if output.shape != y.shape:
        raise ValueError(
            "output and y must have the same shape (nothing is broadcast), "
            f"got {tuple(output.shape)} and {tuple(y.shape)}"
        )
    return output[rows], y[rows].to(output.dtype)


def _masked_mean(each: Tensor, known: Tensor, batch: Batch) -> Tensor:
    return _weighted_mean(each, _mask_weights(known, each, batch))


def _mask_weights(known: Tensor, like: Tensor, batch: Batch) -> Tensor:
    weight = known.to(like.dtype)
    if batch.weight is None:
        return weight
    row = batch.weight[batch.rows].to(like.dtype)
    return weight * row.reshape(-1, *[1] * (known.ndim - 1))


def _weighted_mean(each: Tensor, weight: Tensor) -> Tensor:
    return (each * weight).sum() / weight.sum()

"""Losses and metrics, one class per task; shapes are never broadcast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from torch import Tensor
from torch.nn import functional

from difformer.data.batch import Batch


@dataclass(frozen=True)
class Monitor:
    """The validation metric that picks the epoch, and whether more or less is better."""

    name: str
    direction: Literal["max", "min"]


class Together:
    """Sums over the rows of a metric where one process holds all of them."""

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        return value

    def before(self, count: int) -> int:
        """The sum over the processes before this one."""
        return 0

    def by_value(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and labels by range of scores: each process's lie above the previous one's."""
        return score, y


HERE = Together()


class Objective(Protocol):
    """A loss to minimise and metrics to report.

    ``loss`` counts ``batch.rows`` only and is what the gradient comes from. ``metrics`` counts
    ``rows`` of all rows, without weights, and always holds ``"loss"`` and the metric that
    ``monitor`` names. Rows whose label is unknown (-1 or nan) count in neither.
    """

    @property
    def monitor(self) -> Monitor: ...

    def loss(self, output: Tensor, batch: Batch) -> Tensor: ...

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]: ...


TEMPERED = "tempered_loss"
"""The log loss at the best temperature, which is the log loss after calibration."""
_TEMPERATURES = tuple(math.exp(step / 4) for step in range(-4, 9))


@dataclass(frozen=True)
class CrossEntropy:
    """Softmax cross-entropy; reports it, accuracy, macro-F1, calibration error. O(n c + n log n).

    The reported loss is the log loss; with two classes there is also the area under the ROC curve.

    loss = Σ_i w_i CE(output_i, y_i) / Σ_i w_i,   w_i = class_weight[y_i] · batch.weight_i

    Shapes: output (n, c) logits, y (n,) int64 in [0, c) or -1 for unknown.
    """

    class_weight: Tensor | None = None
    monitor: Monitor = Monitor("accuracy", "max")

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
        loss, accuracy = _means(together, each, right)
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
            found[TEMPERED] = min(_means(together, *losses))
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
    monitor: Monitor = Monitor("roc_auc", "max")

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
            "loss": _means(together, each.double())[0],
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

    monitor: Monitor = Monitor("mse", "min")

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
        mse, mae, middle = _means(together, error.square(), error.abs(), y)
        spread = _means(together, (y - middle).square())[0]
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


def broadcast_mse(output: Tensor, y: Tensor, rows: Tensor, num_nodes: int) -> float:
    """The released cost of `rows`, whole snapshots of `num_nodes` each, in O(rows).

    mean_ij (a_i − b_j)² = mean a² − 2 mean a · mean b + mean b²; nan where a target is unknown.
    """
    a = output.detach()[rows].double().reshape(-1, num_nodes)
    b = y[rows].double().reshape(-1, num_nodes)
    each = a.square().mean(1) - 2 * a.mean(1) * b.mean(1) + b.square().mean(1)
    return float(each.mean())


def roc_auc(y: Tensor, score: Tensor, together: Together = HERE) -> float:
    """Area under the ROC curve in O(n log n); equal scores count half; nan with one class only.

    AUC = (Σ ranks of the positives − P(P + 1)/2) / (P · N), ties sharing their mean rank.

    Shapes: y (n,) of 0 and 1, score (n,).
    """
    score, y = together.by_value(score, y)
    below = together.before(score.numel())
    score, order = score.sort()
    _, group, count = cast(
        "tuple[Tensor, Tensor, Tensor]",
        torch.unique_consecutive(  # pyright: ignore[reportUnknownMemberType]
            score, return_inverse=True, return_counts=True
        ),
    )
    rank = below + count.cumsum(0).double() - (count - 1).double() / 2
    positive = y[order] > 0.5
    figures = [rank[group][positive].sum(), positive.double().sum(), (~positive).double().sum()]
    ranks, p, n = together.sum(torch.stack(figures)).tolist()
    if p == 0 or n == 0:
        return float("nan")
    return (ranks - p * (p + 1) / 2) / (p * n)


def mean_roc_auc(y: Tensor, score: Tensor, together: Together = HERE) -> float:
    """Mean ROC-AUC over the labels that have both classes among their known rows.

    Shapes: y (n, t) with nan for unknown, score (n, t).
    """
    each: list[float] = []
    for k in range(y.shape[1]):
        known = ~y[:, k].isnan()
        area = roc_auc(y[known, k], score[known, k], together)
        if area == area:
            each.append(area)
    return sum(each) / len(each) if each else float("nan")


def calibration(
    confidence: Tensor, right: Tensor, bins: int = 10, together: Together = HERE
) -> tuple[Tensor, float]:
    """Accuracy by confidence, and the expected calibration error. O(n).

    ECE = Σ_bins (rows of the bin / rows) · |share right − mean confidence|

    Shapes: confidence and right (n,) in [0, 1] -> (filled bins, 3): mean confidence, share right,
    rows.
    """
    confidence, right = confidence.double().nan_to_num(), right.double()
    index = (confidence * bins).long().clamp(0, bins - 1)
    weights = (torch.ones_like(confidence), confidence, right)
    sums = torch.stack([torch.bincount(index, weight, minlength=bins) for weight in weights])
    count, sure, hits = together.sum(sums.double())  # without rows bincount gives integers
    mean, share = sure / count, hits / count
    error = ((mean - share).abs() * count).nan_to_num().sum() / count.sum().clamp_min(1)
    return torch.stack([mean, share, count], 1)[count > 0], float(error)


def macro_f1(y: Tensor, guess: Tensor, classes: int, together: Together = HERE) -> float:
    """F1 averaged over the classes seen in y or guess, as scikit-learn does it. O(n + c)."""
    counts = [torch.bincount(each, minlength=classes) for each in (y[guess == y], y, guess)]
    hit, truly, guessed = together.sum(torch.stack(counts).double())
    seen = (truly + guessed) / 2
    present = seen > 0
    return float((hit[present] / seen[present]).mean())


def _means(together: Together, *values: Tensor) -> list[float]:
    """The mean of each of some (n,) doubles over all rows; nan without rows."""
    count = values[0].new_tensor(values[0].numel(), dtype=torch.float64)
    sums = together.sum(torch.stack([count, *(value.sum() for value in values)]))
    return (sums[1:] / sums[0]).tolist()


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

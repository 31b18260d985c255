"""Losses and metrics, one class per task; shapes are never broadcast."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from difformer.data.dataset import Batch, Prediction
from difformer.metrics import METRICS, TEMPERED, Metric
from difformer.train.processes import ALONE, Comm


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


@dataclass(frozen=True)
class _Labelled:
    """An objective whose loss is a weighted mean over known labels, of all processes' rows."""

    comm: Comm = field(default=ALONE, kw_only=True)

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        """The mean over the labels of all processes; the gradient is this process's share of it."""
        if self.comm.size == 1:
            return self._mean(output, batch)[0]
        mean, mass = self._mean(output, batch)
        mass = output.detach().new_tensor(float(mass))
        share = mass / self.comm.sum(mass, "loss")
        # Without a labelled row here the others' losses still depend on these rows.
        mine = mean * share if float(mass) else output.sum() * 0
        return mine + (self.comm.sum(mine.detach(), "loss") - mine.detach())

    def _mean(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor | int]:
        """The weighted mean over the known labels held here, and the sum of their weights."""
        raise NotImplementedError


_TEMPERATURES = tuple(math.exp(step / 4) for step in range(-4, 9))


@dataclass(frozen=True)
class CrossEntropy(_Labelled):
    """Softmax cross-entropy; reports it, accuracy, macro-F1, calibration error. O(n c + n log n).

    The reported loss is the log loss; with two classes there is also the area under the ROC curve.

    loss = Σ_i w_i CE(output_i, y_i) / Σ_i w_i,   w_i = class_weight[y_i] · batch.weight_i

    Shapes: output (n, c) logits, y (n,) int64 in [0, c) or -1 for unknown.
    """

    class_weight: Tensor | None = None
    monitor: Metric = METRICS["accuracy"]

    def _mean(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor | int]:
        rows = batch.rows[batch.y[batch.rows] >= 0]
        logits, y = _logits_and_classes(output, batch.y, rows)
        weight = None if batch.weight is None else batch.weight[rows]
        if self.class_weight is not None:
            own = self.class_weight.to(output)[y]
            weight = own if weight is None else weight * own
        if weight is None:
            return functional.cross_entropy(logits, y), len(y)
        return _weighted_mean(functional.cross_entropy(logits, y, reduction="none"), weight)

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        logits, y = _logits_and_classes(output.detach(), y, rows[y[rows] >= 0])
        confidence, guess = logits.softmax(1).max(1)
        right = (guess == y).double()
        loss, accuracy = means(self.comm, _log_losses(logits, y), right)
        found = {
            "loss": loss,
            "accuracy": accuracy,
            "macro_f1": macro_f1(y, guess, logits.shape[1], self.comm),
            "ece": calibration(confidence, right, comm=self.comm)[1],
        }
        if logits.shape[1] == 2:
            found["roc_auc"] = roc_auc(y, logits[:, 1] - logits[:, 0], self.comm)
        if self.monitor.name == TEMPERED:
            losses = (_log_losses(logits / t, y) for t in _TEMPERATURES)
            found[TEMPERED] = min(means(self.comm, *losses))
        return found


@dataclass(frozen=True)
class BinaryCrossEntropy(_Labelled):
    """Sigmoid cross-entropy of many yes-or-no labels; reports it, ROC-AUC, calibration error.

    O(n t log n).

    loss = mean over the known (i, k) of BCE(output_ik, y_ik), weighted by batch.weight_i

    Shapes: output (n, t) logits, y (n, t) of 0, 1 and nan for unknown.
    """

    class_weight: Tensor | None = None  # (t,): how much more a positive counts, per label
    monitor: Metric = METRICS["roc_auc"]

    def _mean(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        scores, y = _same_shape(output, batch.y, batch.rows)
        positive = None if self.class_weight is None else self.class_weight.to(output)
        each = functional.binary_cross_entropy_with_logits(
            scores, y.nan_to_num(0.0), reduction="none", pos_weight=positive
        )
        return _weighted_mean(each, _weights(~y.isnan(), each, batch))

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        scores, y = _same_shape(output.detach(), y, rows)
        known = ~y.isnan()
        each = functional.binary_cross_entropy_with_logits(
            scores[known], y[known], reduction="none"
        )
        return {
            "loss": means(self.comm, each.double())[0],
            "roc_auc": mean_roc_auc(y, scores, self.comm),
            "ece": calibration(scores[known].sigmoid(), y[known], comm=self.comm)[1],
        }


@dataclass(frozen=True)
class SquaredError(_Labelled):
    """Mean squared error; reports it, the mean absolute error and R². O(n t).

    loss = mean over the known (i, k) of (output_ik − y_ik)², weighted by batch.weight_i

    Shapes: output and y (n, t), or both (n,); nan in y for unknown. (n, 1) against (n,) is an
    error: broadcast to n × n, it would average over pairs of rows.
    """

    monitor: Metric = METRICS["mse"]

    def _mean(self, output: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        output, y = _same_shape(output, batch.y, batch.rows)
        known = ~y.isnan()
        # A nan label is replaced before it meets the output: 0 · nan would spoil the gradient.
        each = (output - torch.where(known, y, output.detach())) ** 2
        return _weighted_mean(each, _weights(known, each, batch))

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        output, y = _same_shape(output.detach(), y, rows)
        known = ~y.isnan()
        error, y = (output[known] - y[known]).double(), y[known].double()
        mse, mae, middle = means(self.comm, error.square(), error.abs(), y)
        spread = means(self.comm, (y - middle).square())[0]
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

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        found = SquaredError.metrics(self, output, y, rows)
        found["broadcast_mse"] = broadcast_mse(output, y, rows, self.num_nodes)
        if self.scatter:
            miss = (output.detach() - y)[rows].double()
            each = miss.square().reshape(-1, self.num_nodes).mean(1)
            found["standard_error"] = float(each.std() / len(each) ** 0.5)
        return found


def objective_for(
    task: str, *, class_weight: Tensor | None = None, comm: Comm = ALONE
) -> Objective:
    """The objective of a dataset's task; per-row weights travel in the batch.

    With `comm` each process gives the outputs of its own rows, and all get the loss and the metrics
    of all rows.
    """
    if task == "multiclass":
        return CrossEntropy(class_weight, comm=comm)
    if task == "multilabel":
        return BinaryCrossEntropy(class_weight, comm=comm)
    if task != "regression":
        raise ValueError(f"task must be one of multiclass, multilabel, regression, got {task!r}")
    if class_weight is not None:
        raise ValueError("class_weight must be None for regression: it has no classes")
    return SquaredError(comm=comm)


def supervised_loss(objective: Objective, prediction: Prediction, batch: Batch) -> Tensor:
    """The objective's loss, plus the model's own penalty where the prediction has one."""
    loss = objective.loss(prediction.output, batch)
    return loss if prediction.penalty is None else loss + prediction.penalty


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


def _log_losses(logits: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(logits, y, reduction="none").double()


def _weights(known: Tensor, like: Tensor, batch: Batch) -> Tensor:
    weight = known.to(like.dtype)
    if batch.weight is None:
        return weight
    row = batch.weight[batch.rows].to(like.dtype)
    return weight * row.reshape(-1, *[1] * (known.ndim - 1))


def _weighted_mean(each: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = weight.sum()
    return (each * weight).sum() / total, total


def means(comm: Comm, *values: Tensor) -> list[float]:
    """The mean of each of some (n,) doubles over all rows; nan without rows."""
    count = values[0].new_tensor(values[0].numel(), dtype=torch.float64)
    sums = comm.sum(torch.stack([count, *(value.sum() for value in values)]), "metrics")
    return (sums[1:] / sums[0]).tolist()


def broadcast_mse(output: Tensor, y: Tensor, rows: Tensor, num_nodes: int) -> float:
    """The released cost of `rows`, whole snapshots of `num_nodes` each, in O(rows).

    mean_ij (a_i − b_j)² = mean a² − 2 mean a · mean b + mean b²; nan where a target is unknown.
    """
    a = output.detach()[rows].double().reshape(-1, num_nodes)
    b = y[rows].double().reshape(-1, num_nodes)
    each = a.square().mean(1) - 2 * a.mean(1) * b.mean(1) + b.square().mean(1)
    return float(each.mean())


def macro_f1(y: Tensor, guess: Tensor, classes: int, comm: Comm = ALONE) -> float:
    """F1 averaged over the classes seen in y or guess, as scikit-learn does it. O(n + c)."""
    counts = [torch.bincount(each, minlength=classes) for each in (y[guess == y], y, guess)]
    hit, truly, guessed = comm.sum(torch.stack(counts).double(), "metrics")
    seen = (truly + guessed) / 2
    present = seen > 0
    return float((hit[present] / seen[present]).mean())


def calibration(
    confidence: Tensor, right: Tensor, bins: int = 10, comm: Comm = ALONE
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
    # Without rows bincount gives integers.
    count, sure, hits = comm.sum(sums.double(), "metrics")
    mean, share = sure / count, hits / count
    error = ((mean - share).abs() * count).nan_to_num().sum() / count.sum().clamp_min(1)
    return torch.stack([mean, share, count], 1)[count > 0], float(error)


def mean_roc_auc(y: Tensor, score: Tensor, comm: Comm = ALONE) -> float:
    """Mean ROC-AUC over the labels that have both classes among their known rows.

    Shapes: y (n, t) with nan for unknown, score (n, t).
    """
    known = ~y.isnan()
    every = (roc_auc(y[k, t], score[k, t], comm) for t, k in enumerate(known.T))
    found = [area for area in every if area == area]
    return sum(found) / len(found) if found else float("nan")


def roc_auc(y: Tensor, score: Tensor, comm: Comm = ALONE) -> float:
    """Area under the ROC curve in O(n log n); equal scores count half; nan with one class only.

    AUC = (Σ ranks of the positives − P(P + 1)/2) / (P · N), ties sharing their mean rank.

    Shapes: y (n,) of 0 and 1, score (n,).
    """
    score, y = _by_value(score, y, comm)
    below = comm.span(score.numel())[0].start
    score, order = score.sort()
    unique: Any = torch.unique_consecutive
    _, group, count = unique(score, return_inverse=True, return_counts=True)
    rank = below + count.cumsum(0).double() - (count - 1).double() / 2
    positive = y[order] > 0.5
    figures = [rank[group][positive].sum(), positive.double().sum(), (~positive).double().sum()]
    ranks, p, n = comm.sum(torch.stack(figures), "metrics").tolist()
    return (ranks - p * (p + 1) / 2) / (p * n) if p and n else float("nan")


SAMPLE = 256  # scores sampled per process to divide the range of scores


def _by_value(score: Tensor, y: Tensor, comm: Comm) -> tuple[Tensor, Tensor]:
    """Scores and labels, each process's above those before: O(n / P) numbers are sent and held.

    Bounds are quantiles of a sample, and equal scores go to the same process.
    """
    if comm.size == 1:
        return score, y
    rows = torch.stack([score.double(), y.double()], 1).cpu()
    rows = rows[rows[:, 0].argsort()]
    some = torch.linspace(0, max(rows.shape[0] - 1, 0), min(rows.shape[0], SAMPLE)).long()
    pooled = comm.gather_rows(rows[some, 0]).sort().values
    if not pooled.numel():
        return score, y
    cuts = pooled[[pooled.numel() * rank // comm.size for rank in range(1, comm.size)]]
    ends = torch.searchsorted(rows[:, 0].contiguous(), cuts, right=True)
    bounds = torch.cat([ends.new_zeros(1), ends, ends.new_tensor([rows.shape[0]])])
    send = bounds.diff().tolist()
    found = comm.exchange(rows, send, comm.deal(send))
    return found[:, 0], found[:, 1]

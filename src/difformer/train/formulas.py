"""Metrics of outputs against labels, over the rows of one process or of many."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor


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


def means(together: Together, *values: Tensor) -> list[float]:
    """The mean of each of some (n,) doubles over all rows; nan without rows."""
    count = values[0].new_tensor(values[0].numel(), dtype=torch.float64)
    sums = together.sum(torch.stack([count, *(value.sum() for value in values)]))
    return (sums[1:] / sums[0]).tolist()

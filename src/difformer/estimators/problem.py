"""What is learned: the targets, the loss, and how the outputs of several models become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from difformer.data.dataset import Batch
from difformer.metrics import METRICS, Metric
from difformer.train.objective import Objective

# Probabilities stay this far from 0 and 1, so that their logarithms are finite.
LEAST = 1e-12


@dataclass(frozen=True)
class Outcome:
    """What outputs mean: how several become one, and the loss of a row.

    Args:
        task: "multiclass", "multilabel" or "regression".
        widths: the sizes of the blocks of outputs that are each a choice between classes; empty
            for other tasks.
    """

    task: str
    widths: tuple[int, ...] = ()

    def combine(
        self, outputs: Sequence[Tensor], weights: Sequence[float], temperatures: Sequence[float]
    ) -> Tensor:
        """One output from several: the weighted mean of probabilities, or of predicted numbers."""
        parts = zip(outputs, weights, temperatures, strict=True)
        return self.output(sum(self.averaged(o / t) * w for o, w, t in parts))  # type: ignore[arg-type]

    def averaged(self, output: Tensor) -> Tensor:
        """What can be averaged: probabilities, or the numbers themselves."""
        if self.widths:
            return torch.cat([block.softmax(-1) for block in output.split(self.widths, -1)], -1)
        return output.sigmoid() if self.task == "multilabel" else output

    def output(self, mean: Tensor) -> Tensor:
        """The inverse of `averaged`."""
        if self.widths:
            return mean.clamp_min(LEAST).log()
        return mean.logit(LEAST) if self.task == "multilabel" else mean

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of each row (m,): log loss, or squared error."""
        if self.task == "multiclass":
            return F.cross_entropy(output, y, reduction="none")
        known = ~y.isnan()
        if self.widths:
            blocks = zip(output.split(self.widths, -1), y.nan_to_num(0).long().T, strict=True)
            each = [F.cross_entropy(block, codes, reduction="none") for block, codes in blocks]
            losses = torch.stack(each, 1)
        elif self.task == "multilabel":
            losses = F.binary_cross_entropy_with_logits(output, y.nan_to_num(0), reduction="none")
        else:
            losses = (output - y.nan_to_num(0)).square()
        return (losses * known).sum(1) / known.sum(1).clamp_min(1)


@dataclass(frozen=True)
class MultiCrossEntropy:
    """Softmax cross-entropy of several outputs, each with its own classes. O(n Σ c).

    loss = mean over the known (i, k) of CE(output_i[block k], y_ik), weighted by batch.weight_i

    Shapes: output (n, Σ c_k) logits, y (n, t) class numbers as floats, nan for unknown.
    """

    widths: tuple[int, ...]
    monitor: Metric = METRICS["accuracy"]

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        total, mass = output.new_zeros(()), output.new_zeros(())
        for logits, column in zip(output.split(self.widths, 1), batch.y.T, strict=True):
            rows = batch.rows[~column[batch.rows].isnan()]
            each = F.cross_entropy(logits[rows], column[rows].long(), reduction="none")
            weight = torch.ones_like(each) if batch.weight is None else batch.weight[rows].to(each)
            total, mass = total + (each * weight).sum(), mass + weight.sum()
        return total / mass

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        losses: list[Tensor] = []
        hits: list[Tensor] = []
        for logits, column in zip(output.detach().split(self.widths, 1), y.T, strict=True):
            known = rows[~column[rows].isnan()]
            target = column[known].long()
            losses.append(F.cross_entropy(logits[known], target, reduction="none"))
            hits.append((logits[known].argmax(1) == target).double())
        return {"loss": float(torch.cat(losses).mean()), "accuracy": float(torch.cat(hits).mean())}


@dataclass(frozen=True)
class Problem:
    """What is learned, in the form that the training loop takes.

    Args:
        strata: (n,) one class per row to keep held-out parts balanced, -1 where unlabelled.
        weight: (n,) weight of each row by its class, or None.
    """

    y: Tensor  # (n,) int64 with -1, or (n, t) float with nan
    outcome: Outcome
    objective: Objective
    outputs: int
    strata: NDArray[Any]
    weight: NDArray[Any] | None = None

    @property
    def task(self) -> str:
        return self.outcome.task

    def hold_out(self, fraction: float, seed: int) -> NDArray[Any]:
        """Draw a share of the labelled rows of each class, leaving at least one to train on."""
        generator = np.random.default_rng(seed)
        drawn: list[NDArray[Any]] = []
        for label in np.unique(self.strata[self.strata >= 0]):
            rows = generator.permutation(np.flatnonzero(self.strata == label))
            drawn.append(rows[: min(len(rows) - 1, max(1, round(len(rows) * fraction)))])
        return np.sort(np.concatenate(drawn))

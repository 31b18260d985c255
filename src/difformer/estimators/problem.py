"""What is learned: targets and objective, and how outputs of several models become one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from difformer.train.objective import Objective

__all__ = ["Outcome", "Problem"]

# Log-temperatures that are tried. A normal prior on them keeps few labels from saying too much.
LOG_TEMPERATURES = tuple(step / 10 for step in range(-15, 26))
# Probabilities are kept from 0 and 1, so that their logarithms are finite.
LEAST = 1e-12


@dataclass(frozen=True)
class Outcome:
    """What outputs mean: how several become one, and what a wrong one costs.

    Args:
        task: "multiclass", "multilabel" or "regression".
        widths: of the blocks of outputs that are each a choice between classes; none elsewhere.
    """

    task: str
    widths: tuple[int, ...] = ()

    def combine(
        self, outputs: Sequence[Tensor], weights: Sequence[float], temperatures: Sequence[float]
    ) -> Tensor:
        """One output of several: the weighted mean of probabilities, or of predicted numbers."""
        parts = zip(outputs, weights, temperatures, strict=True)
        return self.output(sum(self.averaged(o / t) * w for o, w, t in parts))  # type: ignore[arg-type]

    def averaged(self, output: Tensor) -> Tensor:
        """What may be averaged: probabilities, or the numbers themselves."""
        if self.widths:
            return torch.cat([block.softmax(-1) for block in output.split(self.widths, -1)], -1)
        return output.sigmoid() if self.task == "multilabel" else output

    def output(self, mean: Tensor) -> Tensor:
        """The output whose `averaged` this is."""
        if self.widths:
            return mean.clamp_min(LEAST).log()
        return mean.logit(LEAST) if self.task == "multilabel" else mean

    def row_losses(self, output: Tensor, y: Tensor) -> Tensor:
        """The loss of each row (m,): log loss, or squared error."""
        if self.task == "multiclass":
            return F.cross_entropy(output, y, reduction="none")
        known = ~y.isnan()
        if self.widths:
            blocks = zip(output.split(self.widths, -1), y.T, strict=True)
            each = torch.stack(
                [
                    F.cross_entropy(block, column.nan_to_num(0).long(), reduction="none")
                    for block, column in blocks
                ],
                1,
            )
        elif self.task == "multilabel":
            each = F.binary_cross_entropy_with_logits(output, y.nan_to_num(0), reduction="none")
        else:
            each = (output - y.nan_to_num(0)).square()
        return (each * known).sum(1) / known.sum(1).clamp_min(1)


@dataclass(frozen=True)
class Problem:
    """What is learned, as the loop wants it.

    Args:
        strata: (n,) one class per row to keep held-out parts balanced, -1 where unlabelled.
    """

    y: Tensor  # (n,) int64 with -1, or (n, t) float with nan
    outcome: Outcome
    objective: Objective
    outputs: int
    strata: NDArray[Any]

    @property
    def task(self) -> str:
        return self.outcome.task

    def temper(
        self, judged: Sequence[tuple[Tensor, Tensor]], rows: Tensor
    ) -> tuple[Tensor, Tensor, float]:
        """Outputs and losses of held-out rows, and the temperature they are best divided by.

        Args:
            judged: (row numbers, their outputs), of parts that may hold a row several times.
            rows: all rows that are judged by, sorted.

        Returns:
            outputs (rows, outputs) and losses (rows,), nan where a row was in no part, and T.
        """
        where = torch.cat([rows[:0], *(own for own, _ in judged)])
        output = torch.cat([torch.empty(0, self.outputs), *(out for _, out in judged)])
        place = torch.searchsorted(rows, where)
        count = torch.zeros(len(rows)).index_add_(0, place, torch.ones(len(where)))
        best, temperature = float("inf"), 1.0
        if self.task != "regression" and len(where):
            for log in LOG_TEMPERATURES:
                loss = float(
                    self.outcome.row_losses(output / torch.tensor(log).exp(), self.y[where]).mean()
                )
                score = loss + log**2 / 2 / max(1, int((count > 0).sum()))
                if score < best:
                    best, temperature = score, float(torch.tensor(log).exp())
        mean = torch.zeros(len(rows), output.shape[1])
        mean.index_add_(0, place, self.outcome.averaged(output / temperature))
        losses = torch.zeros(len(rows)).index_add_(
            0, place, self.outcome.row_losses(output / temperature, self.y[where])
        )
        missing = torch.where(count > 0, 0.0, float("nan"))
        outputs = self.outcome.output(mean / count.clamp_min(1).unsqueeze(1)) + missing.unsqueeze(1)
        return outputs, losses / count.clamp_min(1) + missing, temperature

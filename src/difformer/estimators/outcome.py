"""What outputs mean: how several become one, their loss, and how far they are from the truth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from difformer.data.dataset import Batch
from difformer.metrics import METRICS, Metric
from difformer.train.objective import Objective, objective_for

if TYPE_CHECKING:
    from difformer.estimators.forms import Form

# Probabilities stay this far from 0 and 1, so that their logarithms are finite.
LEAST = 1e-12
# A form whose weight is below this share of the largest is left out.
LEAST_WEIGHT = 0.1
# Log-temperatures that are tried. A normal prior on them limits the influence of few labels.
LOG_TEMPERATURES = tuple(step / 10 for step in range(-15, 26))
UNKNOWN = -1.0  # the conformal score of a target that is not known; scores are 0 or more


@dataclass(frozen=True)
class Outcome:
    """What outputs mean.

    Args:
        task: "multiclass", "multilabel" or "regression".
        widths: the sizes of the blocks of outputs that are each a choice between classes; empty
            for other tasks.
    """

    task: str
    widths: tuple[int, ...] = ()

    @property
    def objective(self) -> Objective:
        """What is minimised and reported."""
        if self.task == "multilabel" and self.widths:
            return MultiCrossEntropy(self.widths)
        return objective_for(self.task)

    def outputs(self, y: Tensor) -> int:
        """How many numbers a model predicts for each row of these targets."""
        return sum(self.widths) or y.shape[1]

    def combine(self, parts: Sequence[tuple[Tensor, float, float]]) -> Tensor:
        """One output from several, each with its weight and temperature, by `averaged`."""
        mean: Any = sum(self.averaged(output / t) * weight for output, weight, t in parts)
        return self.output(mean)

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
        each, rows, _ = self._known(output, batch.y, batch.rows)
        weight = torch.ones_like(each) if batch.weight is None else batch.weight[rows].to(each)
        return (each * weight).sum() / weight.sum()

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        each, _, hits = self._known(output.detach(), y, rows)
        return {"loss": float(each.mean()), "accuracy": float(hits.double().mean())}

    def _known(self, output: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """Losses, rows, and whether the guess is right, of all known labels of some rows."""
        found: list[tuple[Tensor, ...]] = []
        for logits, column in zip(output.split(self.widths, 1), y.T, strict=True):
            known = rows[~column[rows].isnan()]
            logits, target = logits[known], column[known].long()
            each = F.cross_entropy(logits, target, reduction="none")
            found.append((each, known, logits.argmax(1) == target))
        return tuple(map(torch.cat, zip(*found, strict=True)))


def conformal_quantile(scores: NDArray[Any], level: float) -> float:
    """The ⌈(m + 1) level⌉-th smallest of m scores; infinite where m is too small. O(m log m).

    Split conformal prediction: a score says how far a prediction is from the truth, here of a row
    whose label the model had not seen. What is within the quantile of the prediction for a new row
    contains its truth with probability `level` or more, if the row is drawn like the held-out ones.

    >>> conformal_quantile(np.arange(1.0, 20.0), 0.9)
    18.0
    >>> conformal_quantile(np.arange(1.0, 5.0), 0.9)
    inf
    """
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


# --- forms judged by held-out labels -----------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """A form and how it did on the held-out rows."""

    form: Form
    outputs: Tensor  # (held-out rows, outputs) at its temperature; nan where it was not judged
    losses: Tensor  # (held-out rows,)
    temperature: float
    weight: float = 0.0

    @property
    def loss(self) -> float:
        """The mean over the rows it was judged by; nan without any."""
        return float(self.losses.nanmean())


def judge(
    form: Form, outcome: Outcome, y: Tensor, parts: Sequence[tuple[Tensor, Tensor]], rows: Tensor
) -> Judged:
    """Outputs and losses of held-out rows, divided by the temperature that calibrates them best.

    Args:
        parts: (row numbers, their outputs); several parts may contain the same row.
        rows: all held-out rows, sorted; those in no part get nan.
    """
    empty = torch.empty(0, outcome.outputs(y))
    where = torch.cat([rows[:0], *(own for own, _ in parts)])
    output = torch.cat([empty, *(out for _, out in parts)])
    y, place = y[where], torch.searchsorted(rows, where)
    count = torch.zeros(len(rows)).index_add_(0, place, torch.ones(len(where)))
    temperature = 1.0
    if outcome.task != "regression" and len(where):
        temperature = _temperature(outcome, output, y, int((count > 0).sum()))
    output = output / temperature
    mean = torch.zeros(len(rows), output.shape[1]).index_add_(0, place, outcome.averaged(output))
    losses = torch.zeros(len(rows)).index_add_(0, place, outcome.row_losses(output, y))
    missing = torch.where(count > 0, 0.0, float("nan"))
    count = count.clamp_min(1)
    outputs = outcome.output(mean / count.unsqueeze(1)) + missing.unsqueeze(1)
    return Judged(form, outputs, losses / count + missing, temperature)


def _temperature(outcome: Outcome, output: Tensor, y: Tensor, labels: int) -> float:
    """The temperature of the least loss, with the prior."""

    def score(log: float) -> float:
        divided = outcome.row_losses(output / torch.tensor(log).exp(), y)
        return float(divided.mean()) + log**2 / 2 / labels

    return float(torch.tensor(min(LOG_TEMPERATURES, key=score)).exp())


def weighed(judged: Sequence[Judged], doubt: float = 1.0) -> list[Judged]:
    """The forms with their weights, which sum to one: the surer a form is worse, the less.

    `doubt` multiplies the standard errors of the differences.
    """
    best = min(judged, key=lambda one: one.loss if one.loss == one.loss else 0.0)
    weights: list[float] = []
    for one in judged:
        gap = one.losses - best.losses
        gap = gap[~gap.isnan()]
        error = doubt * float(gap.std()) / math.sqrt(gap.numel()) if gap.numel() > 1 else 0.0
        z = max(0.0, float(gap.mean()) / (error + 1e-3)) if gap.numel() else 0.0
        weights.append(math.exp(-(z**2) / 2))
    largest = max(weights)
    kept = [w if w >= LEAST_WEIGHT * largest else 0.0 for w in weights]
    return [replace(one, weight=w / sum(kept)) for one, w in zip(judged, kept, strict=True)]


def summarise(judged: Sequence[Judged]) -> str:
    """How many forms were tried, which were taken, and by what margin, in one line."""
    best, *others = sorted(judged, key=lambda one: one.loss)
    if best.loss != best.loss:
        return f"tried {len(judged)} forms, no label could be held out: all have equal weight"
    taken = sorted((one for one in judged if one.weight > 0), key=lambda one: -one.weight)
    named = ", ".join(f"{one.form.key} ({one.weight:.0%})" for one in taken[:3])
    named += f" and {len(taken) - 3} more" if len(taken) > 3 else ""
    text = f"tried {len(judged)} forms; took {named}; best {best.form.key}, loss {best.loss:.3f}"
    if others:
        gap = others[0].loss - best.loss
        text += f", ahead of {others[0].form.key} by {gap:.3f} per held-out row"
    return text

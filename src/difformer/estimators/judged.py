"""How held-out labels judge the forms of a model, and the weight that each form gets.

A form's weight in the average falls with the evidence that it is worse than the best,

    w ∝ exp(−z²/2),   z = mean(ℓ_form − ℓ_best) / standard error,   ℓ the loss of a held-out row,

so forms that cannot be told apart get equal weights, and a clearly worse form gets none. Folds
share most of the rows that they are trained on, so the losses of cross-validation vary more from
one set of labels to another than they do within one: their standard error is multiplied by √2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from difformer.estimators.choice import Form
from difformer.estimators.problem import Outcome, Problem

# A form whose weight is below this share of the largest is left out.
LEAST_WEIGHT = 0.1
# The factor of the standard error of a cross-validated loss: see above.
SHARED_ROWS = math.sqrt(2)
# Log-temperatures that are tried. A normal prior on them limits the influence of few labels.
LOG_TEMPERATURES = tuple(step / 10 for step in range(-15, 26))


@dataclass(frozen=True)
class Judged:
    """A form and how it did on the held-out rows."""

    form: Form
    outputs: Tensor  # (held-out rows, outputs) at its temperature; nan where it was not judged
    losses: Tensor  # (held-out rows,)
    temperature: float
    weight: float = 0.0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """The mean over the rows it was judged by; nan without any."""
        return float(self.losses.nanmean())


def judge(
    form: Form, problem: Problem, parts: Sequence[tuple[Tensor, Tensor]], rows: Tensor
) -> Judged:
    """Outputs and losses of held-out rows, divided by the temperature that calibrates them best.

    Args:
        parts: (row numbers, their outputs); several parts may contain the same row.
        rows: all held-out rows, sorted; those in no part get nan.
    """
    outcome = problem.outcome
    where = torch.cat([rows[:0], *(own for own, _ in parts)])
    output = torch.cat([torch.empty(0, problem.outputs), *(out for _, out in parts)])
    y, place = problem.y[where], torch.searchsorted(rows, where)
    count = torch.zeros(len(rows)).index_add_(0, place, torch.ones(len(where)))
    temperature = 1.0
    if problem.task != "regression" and len(where):
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
    best, temperature = float("inf"), 1.0
    for log in LOG_TEMPERATURES:
        divisor = torch.tensor(log).exp()
        loss = float(outcome.row_losses(output / divisor, y).mean())
        score = loss + log**2 / 2 / labels
        if score < best:
            best, temperature = score, float(divisor)
    return temperature


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

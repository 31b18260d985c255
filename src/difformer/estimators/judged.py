"""What held-out labels say of the forms of a model, and what each form then counts.

A form's weight in the average falls with the evidence that it is worse than the best,

    w ∝ exp(−z²/2),   z = mean(ℓ_form − ℓ_best) / standard error,   ℓ the loss of a held-out row,

so forms that cannot be told apart count alike, and a clearly worse one does not count at all. Folds
share most of the rows that they are trained on, so the losses of cross-validation vary more from
one set of labels to another than they do within one: their standard error counts √2 times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from difformer.estimators.choice import Form

__all__ = ["SHARED_ROWS", "Judged", "told", "weighed"]

# A form whose weight is below this share of the largest is left out.
LEAST_WEIGHT = 0.1
# What the standard error of a cross-validated loss is multiplied by: see above.
SHARED_ROWS = math.sqrt(2)


@dataclass(frozen=True)
class Judged:
    """What held-out labels say of one form."""

    form: Form
    outputs: Tensor  # (rows judged, outputs) at its temperature; nan where it was not judged
    losses: Tensor  # (rows judged,)
    temperature: float
    weight: float = 0.0
    seconds: float = 0.0

    @property
    def loss(self) -> float:
        """The mean over the rows it was judged by; nan without any."""
        return float(self.losses.nanmean())


def weighed(judged: Sequence[Judged], doubt: float = 1.0) -> list[Judged]:
    """Weights by how sure it is that a form is worse than the best; they sum to one.

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


def told(judged: Sequence[Judged]) -> str:
    """What was tried, what was taken, and by what margin."""
    best, *others = sorted(judged, key=lambda one: one.loss)
    taken = sorted((one for one in judged if one.weight > 0), key=lambda one: -one.weight)
    named = ", ".join(f"{one.form.key} ({one.weight:.0%})" for one in taken[:3])
    named += f" and {len(taken) - 3} more" if len(taken) > 3 else ""
    if best.loss != best.loss:
        return f"tried {len(judged)} forms, no label could be held out: all count alike"
    text = f"tried {len(judged)} forms; took {named}; best {best.form.key}, loss {best.loss:.3f}"
    if others:
        gap = others[0].loss - best.loss
        text += f", ahead of {others[0].form.key} by {gap:.3f} per held-out row"
    return text

"""Split conformal prediction: intervals and sets that contain the truth as often as they say.

A score says how far a prediction is from the truth. Of m labelled rows whose labels the model had
not seen, the ⌈(m + 1) level⌉-th smallest score q is kept; what is within q of the prediction for a
new row then contains its truth with probability `level` or more, if the new row is drawn like the
held-out ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNKNOWN = -1.0  # the score of a target that is not known; scores are 0 or more


def conformal_quantile(scores: Array, level: float) -> float:
    """The ⌈(m + 1) level⌉-th smallest of m scores; infinite where m is too small. O(m log m).

    >>> conformal_quantile(np.arange(1.0, 20.0), 0.9)
    18.0
    >>> conformal_quantile(np.arange(1.0, 5.0), 0.9)
    inf
    """
    rank = math.ceil((len(scores) + 1) * check_level(level) - 1e-9)
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else math.inf


def check_level(level: Any) -> float:
    """The share of new rows that must be covered, in (0, 1)."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    return float(level)


def held_out(estimator: Any) -> tuple[Array, Array] | None:
    """Labelled rows and their outputs (m, c) by models that had not seen these labels, or None.

    Those that recipe="auto" held out in turn, or else the validation rows.
    """
    if hasattr(estimator, "held_out_rows_"):
        rows, outputs = estimator.held_out_rows_, estimator.held_out_outputs_
    else:
        rows = estimator.split_.val.numpy()
        outputs = estimator._outputs[rows]
    return (rows, outputs) if len(rows) else None


def conformal_set(estimator: Any, probability: Array, level: float) -> Array:
    """The sets (m, c) of a fitted classifier for known probabilities; see its `predict_set`."""
    quantiles, kind = estimator._quantiles(level), estimator._classes.kind
    if kind != "multiclass":
        raise ValueError(f"prediction sets need one class per row, y was {kind}")
    return set_of(probability, float(quantiles[0]))


def set_of(probability: Array, quantile: float) -> Array:
    """The classes within the quantile, (m, c) bool, and always the most probable one."""
    found = 1 - probability <= quantile
    found[np.arange(len(found)), probability.argmax(1)] = True
    return found

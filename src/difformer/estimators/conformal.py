"""Split conformal prediction: intervals and sets that hold the truth as often as they say.

A score says how far an answer is from the truth. Of m labelled rows whose labels the model had not
seen, the ⌈(m + 1) level⌉-th smallest score q is kept; what is within q of the answer for a new row
then holds its truth with probability `level` or more, if the new row is like the held-out ones.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

__all__ = [
    "IntervalMixin",
    "SetMixin",
    "check_level",
    "conformal_quantile",
    "conformal_set",
    "held_out",
]

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


def held_out(estimator: Any, outputs: Any = None) -> tuple[Array, Array] | None:
    """Labelled rows whose labels the answers had not seen: (row numbers, outputs (m, c)), or None.

    Those that a search held out in turn, or else the validation rows; `outputs` of all rows are
    given while there are none yet on the estimator.
    """
    rows = getattr(estimator, "held_out_rows_", None)
    if rows is not None:
        return np.asarray(rows, np.int64), np.asarray(estimator.held_out_outputs_, np.float64)
    rows = estimator.split_.val.numpy()
    outputs = estimator._outputs if outputs is None else outputs
    return (rows, outputs[rows]) if len(rows) else None


class _Scored:
    """Keeps, at the end of `fit`, the score of every held-out row, (m, targets) or (m, 1)."""

    held_out_scores_: Array | None

    def _fit(self, rows: Any, problem: Any, graph: Any, weight: Any, validation: Any) -> Any:
        output = cast("Any", super())._fit(rows, problem, graph, weight, validation)
        found = held_out(self, output.numpy())
        self.held_out_scores_ = None
        if found is not None and len(found[0]):
            self.held_out_scores_ = self._scores(found[1], problem.y.numpy()[found[0]])
        return output

    def _scores(self, outputs: Array, y: Array) -> Array:
        raise NotImplementedError

    def _quantiles(self, level: float) -> Array:
        """One quantile per column of scores."""
        check_is_fitted(cast("Any", self), "frozen_")
        check_level(level)
        scores = getattr(self, "held_out_scores_", None)
        if scores is None:
            raise ValueError(
                "no labelled rows were held out in fit: set early_stopping=True, give validation "
                'rows, or use recipe="auto"'
            )
        return np.array([conformal_quantile(c[c != UNKNOWN], level) for c in scores.T])


class IntervalMixin(_Scored):
    """Prediction intervals for a regressor, from the absolute errors of held-out rows."""

    @property
    def target_scale_(self) -> Array:
        """What one standardised unit of each target is in its own, (t,)."""
        return cast("Any", self)._scale

    def predict_interval(
        self, X: Any, graph: Any = None, *, ids: Any = None, level: float = 0.9
    ) -> Array:
        """Intervals (m, 2), or (m, t, 2): the lowest and the highest value; `level` are right.

        Each is the prediction ± the conformal quantile of the held-out errors, infinite where too
        few rows were held out: `level` needs level / (1 − level) of them.
        """
        me: Any = self
        check_is_fitted(me, "frozen_")
        return self.interval_around(me.predict(X, graph, ids=ids), level)

    def interval_around(self, predicted: Array, level: float = 0.9) -> Array:
        """The intervals of predictions (m,) or (m, t) that are at hand already."""
        half = self._quantiles(level) * self.target_scale_
        half = half[0] if predicted.ndim == 1 else half
        return np.stack([predicted - half, predicted + half], axis=-1)

    def _scores(self, outputs: Array, y: Array) -> Array:
        errors = np.abs(outputs - y.reshape(outputs.shape))
        return np.where(np.isnan(errors), UNKNOWN, errors)


class SetMixin(_Scored):
    """Prediction sets for a classifier, from the probabilities of held-out rows' true classes."""

    def predict_set(
        self, X: Any, graph: Any = None, *, ids: Any = None, level: float = 0.9
    ) -> Array:
        """Which classes of `classes_` may be the true one, (m, classes) bool: `level` are right.

        A class is in the set if one minus its probability is at most the conformal quantile; the
        most probable one always is. All classes are where too few rows were held out.
        """
        me: Any = self
        check_is_fitted(me, "frozen_")
        self._quantiles(level)  # before the work
        return conformal_set(me, me.predict_proba(X, graph, ids=ids), level)

    def _scores(self, outputs: Array, y: Array) -> Array:
        me: Any = self
        if me._classes.kind != "multiclass":
            return np.empty((0, 1))
        chance = me._probabilities(outputs)
        return 1 - chance[np.arange(len(y)), y][:, None]


def conformal_set(estimator: Any, probability: Array, level: float) -> Array:
    """The sets (m, c) of a fitted classifier for probabilities that are at hand already."""
    quantile = estimator._quantiles(level)
    if estimator._classes.kind != "multiclass":
        kind = estimator._classes.kind
        raise ValueError(f"prediction sets need one class per row, y was {kind}")
    return set_of(probability, float(quantile[0]))


def set_of(probability: Array, quantile: float) -> Array:
    """The classes within the quantile, (m, c) bool, and the most probable one."""
    found = 1 - probability <= quantile
    found[np.arange(len(found)), probability.argmax(1)] = True
    return found

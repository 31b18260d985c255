"""How good a run is: metrics in the table's own units, of labelled rows that were held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from difformer.data.dataset import Dataset
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.conformal import held_out
from difformer.experiments.own.run import Estimator
from difformer.train.metrics import roc_auc

__all__ = ["HeldOut", "labelled", "score"]

Array = NDArray[Any]
Metrics = dict[str, float]

DRAWS = 400  # bootstrap samples of the held-out rows
LEAST = 1e-12  # the least probability that a logarithm is taken of


@dataclass(frozen=True)
class HeldOut:
    """Held-out rows with their truth and what was predicted without it.

    Args:
        rows: (m,) numbers of rows of the table.
        truth: (m,) classes, or (m, t) of 0 and 1 or of numbers, nan where unknown.
        found: (m, c) probabilities, or (m, t) numbers in the table's units.
        names: the classes or targets.
    """

    task: str
    rows: Array
    truth: Array
    found: Array
    names: tuple[str, ...]

    @classmethod
    def of(cls, estimator: Estimator, data: Dataset, names: Sequence[str]) -> HeldOut | None:
        """What a fit held out; None where it held nothing out."""
        kept = held_out(estimator)
        if kept is None or not len(kept[0]):
            return None
        rows, outputs = kept
        model: Any = estimator
        if isinstance(estimator, DIFFormerClassifier):
            found = model._probabilities(outputs)
        else:
            found = model._scaled_back(outputs).reshape(len(rows), -1)
        return cls(data.task, rows, data.y.numpy()[rows], found, tuple(names))

    def metrics(self, where: Array | None = None) -> Metrics:
        """Metrics of all held-out rows, or of some."""
        truth, found = (
            (self.truth, self.found) if where is None else (self.truth[where], self.found[where])
        )
        if self.task == "multiclass":
            return _of_classes(truth, found)
        each = [_of_numbers if self.task == "regression" else _of_labels] * found.shape[1]
        return _by_column(each, truth.reshape(len(truth), -1), found, self.names)

    def baseline(self) -> Metrics:
        """The same of an answer that knows no columns: the usual class, or the mean."""
        truth = self.truth.reshape(len(self.truth), -1)
        if self.task == "multiclass":
            counts = np.bincount(self.truth, minlength=self.found.shape[1])
            constant = counts / counts.sum()
        else:
            constant = np.nanmean(truth, axis=0)
        found = np.broadcast_to(constant, self.found.shape)
        return HeldOut(self.task, self.rows, self.truth, found, self.names).metrics()

    def intervals(self) -> dict[str, list[float]]:
        """95 % intervals of the metrics, by drawing the held-out rows again (seed 0).

        A share has Wilson's interval: where all of a few rows are right, every drawing is, too.
        """
        draw = np.random.default_rng(0)
        m = len(self.rows)
        samples = [self.metrics(draw.integers(m, size=m)) for _ in range(DRAWS)]
        metrics, found = self.metrics(), dict[str, list[float]]()
        for name in metrics:
            drawn = [s[name] for s in samples if name in s]  # a label may be unknown in all rows
            found[name] = [float(v) for v in np.nanquantile(drawn, (0.025, 0.975))]
        known = (~np.isnan(self.truth.reshape(m, -1).astype(float))).sum(0)
        several = len(known) > 1
        for j, rows in enumerate(known.tolist()):
            name = f"accuracy_{self.names[j]}" if several else "accuracy"
            if name in metrics:
                found[name] = _wilson(metrics[name], rows)
        return found


def _wilson(share: float, rows: int) -> list[float]:
    from scipy.stats import binomtest

    found = binomtest(round(share * rows), rows).proportion_ci(method="wilson")
    return [float(found.low), float(found.high)]


def score(kept: HeldOut | None) -> dict[str, Any]:
    """What result.json says of the held-out rows: how many, metrics, intervals, the baseline."""
    if kept is None:
        return {}
    return {
        "rows": len(kept.rows),
        "metrics": _finite(kept.metrics()),
        "intervals": kept.intervals(),
        "baseline": _finite(kept.baseline()),
    }


def labelled(data: Dataset) -> Array:
    """(n,) whether a row has any label."""
    y = data.y.reshape(data.num_rows, -1)
    return (~y.isnan() if y.is_floating_point() else y >= 0).any(1).numpy()


def _finite(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _of_classes(truth: Array, chance: Array) -> Metrics:
    guess = chance.argmax(1)
    found = {"accuracy": float((guess == truth).mean())}
    if chance.shape[1] == 2:
        found["roc_auc"] = roc_auc(torch.from_numpy(truth), torch.from_numpy(chance[:, 1].copy()))
    recall = [float((guess[truth == c] == c).mean()) for c in np.unique(truth)]
    found["balanced_accuracy"] = float(np.mean(recall))
    found["log_loss"] = float(-np.log(chance[np.arange(len(truth)), truth].clip(LEAST)).mean())
    return found


def _of_labels(truth: Array, chance: Array) -> Metrics:
    area = roc_auc(torch.from_numpy(truth), torch.from_numpy(chance.copy()))
    return {"roc_auc": area, "accuracy": float(((chance > 0.5) == (truth > 0.5)).mean())}


def _of_numbers(truth: Array, found: Array) -> Metrics:
    error = found - truth
    spread = float(np.square(truth - truth.mean()).sum())
    return {
        # A ratio within rounding of one is one: a constant answer explains nothing.
        "r2": 1 - round(float(np.square(error).sum()) / spread, 12) if spread > 0 else np.nan,
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(np.square(error).mean())),
    }


def _by_column(
    each: Sequence[Callable[[Array, Array], Metrics]],
    truth: Array,
    found: Array,
    names: Sequence[str],
) -> Metrics:
    """Metrics of each column over its known values; where there are several, named by it."""
    parts: list[Mapping[str, float]] = []
    for j, metrics in enumerate(each):
        known = ~np.isnan(truth[:, j])
        parts.append(
            metrics(truth[known, j].astype(np.float64), found[known, j]) if known.any() else {}
        )
    if len(parts) == 1:
        return dict(parts[0])
    return {
        f"{k}_{name}": v for name, own in zip(names, parts, strict=True) for k, v in own.items()
    }

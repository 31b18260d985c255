"""How good a run is: metrics in the table's own units, of labelled rows that were held out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.dataset import Dataset, scipy_csr
from difformer.estimators.rows import Rows
from difformer.jobs.own import OwnRun
from difformer.metrics import METRICS
from difformer.train.objective import roc_auc

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
    def of(cls, run: OwnRun, data: Dataset) -> HeldOut | None:
        """The rows that a fit held out; None if there are none."""
        model: Any = run.estimator
        kept = model.held_out
        if kept is None or not len(kept[0]):
            return None
        rows, outputs = kept
        if run.classes:
            found = model._probabilities(outputs)
        else:
            found = model._scaled_back(outputs).reshape(len(rows), -1)
        return cls(data.task, rows, data.y.numpy()[rows], found, run.classes or run.labels)

    def metrics(self, where: Array | None = None) -> Metrics:
        """Metrics of all held-out rows, or of some."""
        where = np.arange(len(self.rows)) if where is None else where
        truth, found = self.truth[where], self.found[where]
        if self.task == "multiclass":
            return _of_classes(truth, found)
        truth, together = truth.reshape(len(truth), -1), Metrics()
        of_column = _of_numbers if self.task == "regression" else _of_labels
        for j, column in enumerate(self.names):
            known = ~np.isnan(truth[:, j])
            if known.any():  # of several, each is named by its column
                own = of_column(truth[known, j].astype(np.float64), found[known, j])
                end = f"_{column}" if len(self.names) > 1 else ""
                together |= {f"{name}{end}": value for name, value in own.items()}
        return together

    def baseline(self) -> Metrics:
        """The metrics of a constant answer: the shares of the classes, or the mean."""
        truth = self.truth.reshape(len(self.truth), -1)
        if self.task == "multiclass":
            counts = np.bincount(self.truth, minlength=self.found.shape[1])
            constant = counts / counts.sum()
        else:
            constant = np.nanmean(truth, axis=0)
        return replace(self, found=np.broadcast_to(constant, self.found.shape)).metrics()

    def intervals(self) -> dict[str, list[float]]:
        """95 % intervals of the metrics, by bootstrap over the held-out rows (seed 0).

        An accuracy has Wilson's interval: if all of a few rows are right, so are all of a sample.
        """
        from scipy.stats import binomtest

        draw, m = np.random.default_rng(0), len(self.rows)
        samples = [self.metrics(draw.integers(m, size=m)) for _ in range(DRAWS)]
        metrics, found = self.metrics(), dict[str, list[float]]()
        for name in metrics:
            drawn = [s[name] for s in samples if name in s]  # a label may be unknown in all rows
            found[name] = [float(v) for v in np.nanquantile(drawn, (0.025, 0.975))]
        known = (~np.isnan(self.truth.reshape(m, -1).astype(float))).sum(0).tolist()
        for column, rows in zip(self.names, known, strict=False):
            name = f"accuracy_{column}" if len(known) > 1 else "accuracy"
            if name in metrics:
                share = binomtest(round(metrics[name] * rows), rows).proportion_ci(method="wilson")
                found[name] = [float(share.low), float(share.high)]
        return found


def score(kept: HeldOut | None) -> dict[str, Any]:
    """What result.json holds of the held-out rows: how many, metrics, intervals, the baseline."""
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


MOST_ROWS = 400  # held-out rows that are answered again
MOST_COLUMNS = 60
REPEATS = 3
JUDGED_BY = {"multiclass": "log_loss", "multilabel": "roc_auc", "regression": "rmse"}


def column_importance(
    run: OwnRun, data: Dataset, kept: HeldOut, *, seed: int = 0
) -> tuple[str, list[tuple[str, float]]]:
    """(metric, [(column, how much worse the metric gets)]), the most important column first.

    Permutation importance: the cells of one column are exchanged between held-out labelled rows,
    which are then answered as new ones. O(columns × rows), of at most `MOST_ROWS` rows.
    """
    draw = np.random.default_rng(seed)
    pick = np.sort(draw.permutation(len(kept.rows))[:MOST_ROWS])
    some = replace(kept, rows=kept.rows[pick], truth=kept.truth[pick], found=kept.found[pick])
    x: Any = data.x.numpy() if data.x.layout == torch.strided else scipy_csr(data.x)
    features, graph = x[some.rows], _edges(run, some.rows)
    metric = JUDGED_BY[kept.task]

    def loss(rows: Any) -> float:
        told = replace(some, found=run.outputs(Rows(rows, None), graph)).metrics()
        values = [v for k, v in told.items() if k.startswith(metric) and np.isfinite(v)]
        return -METRICS[metric].better * float(np.mean(values))

    usual, found, place = loss(features), list[tuple[str, float]](), 0
    for column in run.encoder.columns:
        block = slice(place, place + column.width)
        place += column.width
        if not column.width or len(found) >= MOST_COLUMNS:
            continue
        worse = [
            loss(_shuffled(features, block, draw.permutation(len(pick)))) for _ in range(REPEATS)
        ]
        found.append((column.name, float(np.mean(worse)) - usual))
    return metric, sorted(found, key=lambda pair: -pair[1])


def _shuffled(features: Any, block: slice, order: Any) -> Any:
    if not sparse.issparse(features):
        changed = features.copy()
        changed[:, block] = features[order, block]
        return changed
    left, right = features[:, : block.start], features[:, block.stop :]
    return sparse.hstack([left, features[order][:, block], right], format="csr")


def _edges(run: OwnRun, rows: Any) -> Any:
    """The edges of some rows of fit, as a new row would bring them; None if it finds its own."""
    model: Any = run.estimator
    graph = model.graph_
    if graph is None or model._neighbours is not None:
        return None
    index = graph.edge_index.numpy()
    place = np.full(len(run.ids), -1)
    place[rows] = np.arange(len(rows))
    mine = (place[index[1]] >= 0) & (index[0] != index[1])
    values = np.ones(index.shape[1]) if graph.edge_weight is None else graph.edge_weight.numpy()
    shape = (len(rows), len(run.ids))
    return sparse.csr_matrix((values[mine], (place[index[1][mine]], index[0][mine])), shape)

"""Train on a user's own table beside simple peers, score held-out rows, and leave a run folder.

The scores are in the table's own units, of labelled rows that the model had not seen.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.stats import binomtest

from difformer.data.dataset import Dataset, scipy_csr
from difformer.data.fetch import sha256_of
from difformer.data.split import Split
from difformer.errors import RunError
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.estimators.rows import Rows
from difformer.files import csv_lines, write_atomic
from difformer.jobs.job import Experiment
from difformer.jobs.own import CLASSES, Estimator, OwnRun, edges_into
from difformer.jobs.rows import CannotRunError, run_experiment
from difformer.metrics import METRICS
from difformer.systems.registry import get_system
from difformer.train.folder import (
    RESULT,
    Metrics,
    agree_config,
    csv_text,
    read_record,
    write_result,
)
from difformer.train.objective import objective_for, roc_auc

Array = NDArray[Any]

PEERS = ("logistic", "forest", "boosting", "knn", "label-spreading", "self-training")
PEERS_UP_TO = 5_000_000  # numbers of a table; above, the peers may take longer than DIFFormer
FOLDS = 5


def simple_peers(data: Dataset, split: Split, *, seed: int = 0) -> list[dict[str, Any]]:
    """The scores of the simple systems that can learn the task, best first.

    They train on `split.train` and are scored on `split.val`; without validation rows, by five
    folds of the training rows. Empty if a class has a single label, or the table is large.

    Returns:
        One dict per system: "system", "title", "metric" and "value".
    """
    if data.num_rows * data.num_features > PEERS_UP_TO:
        return []
    parts = [split] if len(split.val) else _folds(data, split.train.numpy(), seed)
    monitor, found = objective_for(data.task).monitor, list[dict[str, Any]]()
    for name in PEERS if parts else ():
        experiment = Experiment.make(data.name, system=name, train={"seed": seed})
        try:
            fits = [run_experiment(experiment, dataset=data, split=part) for part in parts]
        except CannotRunError:
            continue
        metric, value = monitor.name, mean(fit.mean("val", monitor.name) for fit in fits)
        if metric == "mse":  # in the units of the labels, as the table's other figures are
            metric, value = "rmse", value**0.5
        title = get_system(name).title_for(data.task)
        found.append({"system": name, "title": title, "metric": metric, "value": value})
    return sorted(found, key=lambda one: one["value"], reverse=monitor.better > 0)


def _folds(data: Dataset, rows: Array, seed: int) -> list[Split]:
    from sklearn.model_selection import KFold, StratifiedKFold

    kind: Any = KFold
    strata, number = rows, min(FOLDS, len(rows))
    if data.task == "multiclass":
        kind, strata = StratifiedKFold, data.y.numpy()[rows]
        number = int(min(FOLDS, np.unique(strata, return_counts=True)[1].min()))
    if number < 2:
        return []
    none = torch.empty(0, dtype=torch.int64)
    return [
        Split("fold", torch.from_numpy(rows[train]), torch.from_numpy(rows[val]), none)
        for train, val in kind(number, shuffle=True, random_state=seed).split(rows, strata)
    ]


NAMED_UP_TO = 5000  # rows; naming the influential ones costs rows × rows


def train_own(
    data: Dataset,
    folder: str | Path,
    params: Mapping[str, Any] | None = None,
    *,
    table: Mapping[str, Any] | None = None,
    influential: int | None = None,
    resume: bool = False,
    quiet: bool = True,
) -> tuple[dict[str, Any], OwnRun | None]:
    """Fit an estimator to a table and leave a run folder.

    Returns what result.json holds, and the run, ready to answer. A run that was killed is resumed
    with `resume`, to the same bits. Ctrl-C leaves it ready for that: the result then says
    `interrupted`, there is no run, and nothing else is written.

    Args:
        params: parameters of `DIFFormerClassifier` or `DIFFormerRegressor`; `random_state` is 0
            by default, so that the run can be resumed.
        table: the arguments of `read_table` that gave the data, to read it again later.
        influential: rows of fit named for each prediction; by default 3, and none above
            `NAMED_UP_TO` rows.
    """
    folder = Path(folder)
    if influential is not None and influential < 0:
        raise ValueError(f"influential must be 0 or more, got {influential!r}")
    if (folder / "config.toml").exists() and not resume:
        raise RunError(f"{folder} holds a run already: resume it, or give another folder")
    asked: dict[str, Any] = {"random_state": 0, **(params or {})}
    estimator = CLASSES[data.task](**asked)
    given, unused = estimator.get_params(deep=False), estimator.unused
    config: dict[str, Any] = {
        "system": "difformer",
        "dataset": Path(table["nodes"]).name if table else data.name,
        "data": {**(table or {}), "fingerprint": data.fingerprint},
        "own": {name: value for name, value in given.items() if name not in unused},
    }
    agree_config(folder, config, unused=[f"own.{name}" for name in unused])
    if (folder / RESULT).exists():
        # It may have been killed right before this.
        shutil.rmtree(folder / "fits", ignore_errors=True)
        return read_record(folder / RESULT), OwnRun.load(folder)
    estimator.set_params(checkpoint=folder / "fits", verbose=int(not quiet))
    try:
        interrupted = estimator.fit(data).result_.interrupted
    except KeyboardInterrupt:  # while forms were compared: a resumed run compares them again
        interrupted = True
    if interrupted:
        return {"interrupted": True}, None
    if influential is None:
        influential = 3 if data.num_rows <= NAMED_UP_TO else 0
    run = OwnRun(estimator, influential)
    _write(folder, run, data)
    return read_record(folder / RESULT), run


def _write(folder: Path, run: OwnRun, data: Dataset) -> None:
    """Fill the folder of a fitted run; result.json comes last: with it the run is finished."""
    estimator, kept = run.estimator, HeldOut.of(run, data)
    empty = (~labelled(data)).nonzero()[0].tolist()
    write_atomic(folder / "metrics.csv", csv_text(_history(estimator)))
    estimator.split_.save(folder / "split.json")
    estimator.set_params(checkpoint=None).save(folder / "estimator.safetensors")
    if kept is not None:
        write_atomic(folder / "held_out.csv", csv_lines(_held_out(run, kept)))
    if empty:
        lines = run.lines([run.ids[row] for row in empty], run.fitted(empty))
        write_atomic(folder / "predictions.csv", csv_lines([run.header, *lines]))
    result = _result(run, data, score(kept), len(empty))
    digest = sha256_of(folder / "estimator.safetensors")
    write_result(folder, {**result, "files": {"estimator.safetensors": digest}})
    shutil.rmtree(folder / "fits", ignore_errors=True)


def _result(run: OwnRun, data: Dataset, told: Mapping[str, Any], empty: int) -> dict[str, Any]:
    """What result.json holds, apart from the checksums; `told` is the `score` of held-out rows."""
    estimator = run.estimator
    seed = estimator.random_state if isinstance(estimator.random_state, int) else 0
    trained = estimator.result_.to_json()
    if told:  # in the table's units, where the loop's are standardised
        trained["metrics"] = {"val": told["metrics"]}
    members, graph = estimator.members_, "none"
    if estimator.graph_ is not None:
        graph = "knn" if data.edge_index is None else "edges"
    return {
        "task": data.task,
        "rows": data.num_rows,
        "labelled": data.num_rows - empty,
        "features": data.num_features,
        "graph": graph,
        "kernel": str(estimator.kernel_),
        "validation": told.get("metrics", {}),
        "held_out": told,
        "peers": simple_peers(data, estimator.split_, seed=seed),
        "tried": estimator.candidates_,
        "members": {m.name: m.weight for m in members} if len(members) > 1 else {},
        "choice": estimator.choice_,
        **trained,
        "influential": run.influential,
    }


def _history(estimator: Estimator) -> list[dict[str, Any]]:
    """The epochs; of one number per row with the rmse in its units, in place of the standardised.

    The loss is left out then: it is the same curve again.
    """
    if not isinstance(estimator, DIFFormerRegressor) or len(estimator.target_scale_) > 1:
        return estimator.history_
    scale = float(estimator.target_scale_[0])

    def in_units(name: str, value: float) -> tuple[str, float]:
        return (f"{name[:-3]}rmse", value**0.5 * scale) if name.endswith("_mse") else (name, value)

    epochs = estimator.history_
    return [dict(in_units(k, v) for k, v in e.items() if not k.endswith("_loss")) for e in epochs]


def _held_out(run: OwnRun, kept: HeldOut) -> list[list[Any]]:
    """The held-out rows as lines of a CSV file: id, true labels, and what was predicted."""
    bare = OwnRun(run.estimator)
    lines = bare.lines([run.ids[row] for row in kept.rows], bare.describe(kept.found))
    truths = [[f"true {name}" for name in run.labels], *map(run.truth, kept.truth)]
    told = zip([bare.header, *lines], truths, strict=True)
    return [[line[0], *truth, *line[1:]] for line, truth in told]


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
        if model.held_out is None:
            return None
        rows, outputs = model.held_out
        found = model._probabilities(outputs) if run.classes else model._scaled_back(outputs)
        names, truth = run.classes or run.labels, data.y.numpy()[rows]
        return cls(data.task, rows, truth, found.reshape(len(rows), -1), names)

    def take(self, where: Array) -> HeldOut:
        """Some of the rows, by their positions; one may come several times."""
        rows, truth, found = (each[where] for each in (self.rows, self.truth, self.found))
        return replace(self, rows=rows, truth=truth, found=found)

    def metrics(self) -> Metrics:
        """Metrics of all these rows; of several columns, each is named by its column."""
        if self.task == "multiclass":
            return _of_classes(self.truth, self.found)
        of_column = _of_numbers if self.task == "regression" else _of_labels
        columns = zip(self.names, self.truth.reshape(self.found.shape).T, self.found.T, strict=True)
        together = Metrics()
        for column, truth, found in columns:
            known, end = ~np.isnan(truth), f"_{column}" if len(self.names) > 1 else ""
            if known.any():
                own = of_column(truth[known].astype(np.float64), found[known])
                together |= {f"{name}{end}": value for name, value in own.items()}
        return together

    def baseline(self) -> Metrics:
        """The metrics of a constant answer: the shares of the classes, or the mean."""
        if self.task == "multiclass":
            counts = np.bincount(self.truth, minlength=self.found.shape[1])
            constant = counts / counts.sum()
        else:
            constant = np.nanmean(self.truth.reshape(len(self.truth), -1), axis=0)
        return replace(self, found=np.broadcast_to(constant, self.found.shape)).metrics()

    def intervals(self) -> dict[str, list[float]]:
        """95 % intervals of the metrics, by bootstrap over the held-out rows (seed 0).

        An accuracy has Wilson's interval: if all of a few rows are right, so are all of a sample.
        """
        draw, m = np.random.default_rng(0), len(self.rows)
        samples = [self.take(draw.integers(m, size=m)).metrics() for _ in range(DRAWS)]
        metrics, found = self.metrics(), dict[str, list[float]]()
        known = (~np.isnan(self.truth.reshape(m, -1).astype(float))).sum(0).tolist()
        ends = [f"_{column}" for column in self.names] if len(known) > 1 else [""]
        rows_of = {f"accuracy{end}": rows for end, rows in zip(ends, known, strict=True)}
        for name, value in metrics.items():
            if name in rows_of:
                share = binomtest(round(value * rows_of[name]), rows_of[name])
                interval = share.proportion_ci(method="wilson")
                found[name] = [float(interval.low), float(interval.high)]
            else:  # a label may be unknown in all rows of a sample
                drawn = [sample[name] for sample in samples if name in sample]
                found[name] = np.nanquantile(drawn, (0.025, 0.975)).tolist()
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


def _area(truth: Array, chance: Array) -> float:
    return roc_auc(torch.from_numpy(truth), torch.from_numpy(chance.copy()))


def _of_classes(truth: Array, chance: Array) -> Metrics:
    guess = chance.argmax(1)
    found = {"accuracy": float((guess == truth).mean())}
    if chance.shape[1] == 2:
        found["roc_auc"] = _area(truth, chance[:, 1])
    recall = [float((guess[truth == c] == c).mean()) for c in np.unique(truth)]
    found["balanced_accuracy"] = float(np.mean(recall))
    found["log_loss"] = float(-np.log(chance[np.arange(len(truth)), truth].clip(LEAST)).mean())
    return found


def _of_labels(truth: Array, chance: Array) -> Metrics:
    right = (chance > 0.5) == (truth > 0.5)
    return {"roc_auc": _area(truth, chance), "accuracy": float(right.mean())}


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
    model: Any = run.estimator
    draw = np.random.default_rng(seed)
    some = kept.take(np.sort(draw.permutation(len(kept.rows))[:MOST_ROWS]))
    x: Any = data.x.numpy() if data.x.layout == torch.strided else scipy_csr(data.x)
    features, metric, graph = x[some.rows], JUDGED_BY[kept.task], None
    if model.graph_ is not None and model._neighbours is None:
        graph = edges_into(model.graph_, some.rows)  # as a new row would bring them

    def loss(rows: Any) -> float:
        told = replace(some, found=run.outputs(Rows(rows, None), graph)).metrics()
        values = [v for k, v in told.items() if k.startswith(metric) and np.isfinite(v)]
        return -METRICS[metric].better * float(np.mean(values))

    def shuffled(start: int, stop: int) -> Any:
        mixed = features[draw.permutation(len(some.rows))][:, start:stop]
        parts = [features[:, :start], mixed, features[:, stop:]]
        return sparse.hstack(parts, format="csr") if sparse.issparse(x) else np.hstack(parts)

    usual, found, place = loss(features), list[tuple[str, float]](), 0
    for column in run.encoder.columns:
        start, place = place, place + column.width
        if column.width and len(found) < MOST_COLUMNS:
            worse = [loss(shuffled(start, place)) for _ in range(REPEATS)]
            found.append((column.name, float(np.mean(worse)) - usual))
    return metric, sorted(found, key=lambda pair: -pair[1])

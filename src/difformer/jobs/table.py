"""Train on a user's own table beside simple peers, and leave a run folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from difformer.data.dataset import Dataset
from difformer.data.fetch import sha256_of
from difformer.data.split import Split
from difformer.errors import RunError
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.files import csv_lines, write_atomic, write_json
from difformer.jobs.job import Experiment, OwnTable
from difformer.jobs.own import CLASSES, Estimator, OwnRun, read_result
from difformer.jobs.rows import CannotRunError, run_experiment
from difformer.jobs.scores import HeldOut, labelled, score
from difformer.machine import commit
from difformer.systems.registry import get_system
from difformer.train.folder import agree_config, csv_text
from difformer.train.objective import objective_for

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
    if not parts:
        return []
    monitor, found = objective_for(data.task).monitor, list[dict[str, Any]]()
    for name in PEERS:
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


def _folds(data: Dataset, rows: Any, seed: int) -> Sequence[Split]:
    from sklearn.model_selection import KFold, StratifiedKFold

    if data.task == "multiclass":
        strata = data.y.numpy()[rows]
        number = int(min(FOLDS, np.unique(strata, return_counts=True)[1].min()))
        kind: Any = StratifiedKFold
    else:
        strata, number, kind = rows, min(FOLDS, len(rows)), KFold
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
    table: OwnTable | None = None,
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
        table: the files the data was read from, to read it again later.
        influential: rows of fit named for each prediction; by default 3, and none above
            `NAMED_UP_TO` rows.
    """
    folder = Path(folder)
    if influential is not None and influential < 0:
        raise ValueError(f"influential must be 0 or more, got {influential!r}")
    if (folder / "config.toml").exists() and not resume:
        raise RunError(f"{folder} holds a run already: resume it, or give another folder")
    given: dict[str, Any] = {"random_state": 0, **(params or {})}
    estimator = CLASSES[data.task](**given)
    unused = [f"own.{name}" for name in estimator.unused]
    agree_config(folder, _config(data, table, estimator), unused=unused)
    if (folder / "result.json").exists():
        # It may have been killed right before this.
        shutil.rmtree(folder / "fits", ignore_errors=True)
        return read_result(folder), OwnRun.load(folder)
    estimator.set_params(checkpoint=folder / "fits", verbose=int(not quiet))
    try:
        estimator.fit(data)
    except KeyboardInterrupt:  # while forms were compared: a resumed run compares them again
        return {"interrupted": True}, None
    if estimator.result_.interrupted:
        return {"interrupted": True}, None
    if influential is None:
        influential = 3 if data.num_rows <= NAMED_UP_TO else 0
    run = OwnRun(estimator, influential)
    _write(folder, run, data)
    return read_result(folder), run


def _write(folder: Path, run: OwnRun, data: Dataset) -> None:
    """Fill the folder of a fitted run; result.json comes last: with it the run is finished."""
    estimator = run.estimator
    empty = (~labelled(data)).nonzero()[0].tolist()
    kept = HeldOut.of(run, data)
    write_atomic(folder / "metrics.csv", csv_text(_history(estimator)))
    write_atomic(folder / "split.json", estimator.split_.to_json() + "\n")
    estimator.set_params(checkpoint=None).save(folder / "estimator.safetensors")
    if kept is not None:
        write_atomic(folder / "held_out.csv", csv_lines(_held_out(run, kept)))
    if empty:
        lines = run.lines([run.ids[row] for row in empty], run.fitted(empty))
        write_atomic(folder / "predictions.csv", csv_lines([run.header, *lines]))
    result = _result(run, data, score(kept), len(empty))
    result["commit"] = commit()
    result["files"] = {"estimator.safetensors": sha256_of(folder / "estimator.safetensors")}
    write_json(folder / "result.json", result, indent=2)
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
    header = bare.header
    found = [[header[0], *(f"true {name}" for name in run.labels), *header[1:]]]
    lines = bare.lines([run.ids[row] for row in kept.rows], bare.describe(kept.found))
    for line, truth in zip(lines, kept.truth, strict=True):
        found.append([line[0], *run.truth(truth), *line[1:]])
    return found


def _config(data: Dataset, table: OwnTable | None, estimator: Estimator) -> dict[str, Any]:
    """What was asked for, and of which rows."""
    given = estimator.get_params(deep=False)
    params = {k: v for k, v in given.items() if v is not None and k not in estimator.unused}
    files = {} if table is None else {k: v for k, v in asdict(table).items() if v is not None}
    return {
        "system": "difformer",
        "dataset": data.name if table is None else table.name,
        "data": {**files, "fingerprint": data.fingerprint},
        "own": params,
    }

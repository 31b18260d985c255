"""Train on a user's own table, and leave a run folder."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from difformer.data.dataset import Dataset
from difformer.data.download import sha256_of
from difformer.errors import RunError
from difformer.experiments.own.peers import simple_peers
from difformer.experiments.own.run import CLASSES, Estimator, OwnRun, read_result
from difformer.experiments.own.table import OwnTable
from difformer.files import write_atomic
from difformer.train.run import agree_config, csv_text

__all__ = ["NAMED_UP_TO", "train_own"]

NAMED_UP_TO = 5000  # rows; naming the influential ones costs rows × rows

DOOR: Mapping[str, Any] = {"graph": "auto", "early_stopping": True, "random_state": 0}
"""Where a run on a table differs from the estimators' defaults: it reports a validation score."""


def train_own(
    data: Dataset,
    folder: str | Path,
    params: Mapping[str, Any] | None = None,
    *,
    table: OwnTable | None = None,
    influential: int | None = None,
    resume: bool = False,
    quiet: bool = True,
) -> dict[str, Any]:
    """Fit an estimator to a table and leave a run folder; returns what result.json holds.

    A run that was killed is resumed with `resume`, to the same bits. Ctrl-C leaves it ready for
    that: the result then says `interrupted`, and nothing else is written.

    Args:
        params: parameters of `DIFFormerClassifier` or `DIFFormerRegressor`; see `DOOR` for what is
            different here.
        table: the files the data was read from, for a later look inside.
        influential: rows of fit named for each prediction; by default 3, and none above
            `NAMED_UP_TO` rows.
    """
    folder = Path(folder)
    if influential is not None and influential < 0:
        raise ValueError(f"influential must be 0 or more, got {influential!r}")
    if (folder / "config.toml").exists() and not resume:
        raise RunError(f"{folder} holds a run already: resume it, or give another folder")
    estimator = CLASSES[data.task](**{**DOOR, **(params or {})})
    agree_config(folder, _config(data, table, estimator))
    if (folder / "result.json").exists():
        return read_result(folder)
    estimator.set_params(checkpoint=folder / "fits", verbose=int(not quiet)).fit(data)
    if estimator.result_.interrupted:
        return {"interrupted": True}
    if influential is None:
        influential = 3 if data.num_rows <= NAMED_UP_TO else 0
    empty = _unlabelled(data)
    result = {
        "task": data.task,
        "rows": data.num_rows,
        "labelled": data.num_rows - len(empty),
        "features": data.num_features,
        "graph": _graph_name(data, estimator),
        "kernel": str(estimator.kernel_),
        "validation": estimator.validation_,
        "peers": simple_peers(data, estimator.split_, seed=_seed(estimator)),
        "tried": estimator.candidates_,
        **estimator.result_.to_json(),
        "influential": influential,
    }
    _write(folder, estimator, result, empty)
    return read_result(folder)


def _unlabelled(data: Dataset) -> list[int]:
    y = data.y.reshape(data.num_rows, -1)
    known = (~y.isnan() if y.is_floating_point() else y >= 0).any(1)
    return (~known).nonzero().squeeze(1).tolist()


def _seed(estimator: Estimator) -> int:
    return estimator.random_state if isinstance(estimator.random_state, int) else 0


def _graph_name(data: Dataset, estimator: Estimator) -> str:
    if estimator.graph_ is None:
        return "none"
    return "knn" if data.edge_index is None else "edges"


def _config(data: Dataset, table: OwnTable | None, estimator: Estimator) -> dict[str, Any]:
    """What was asked for, and of which rows."""
    params = {k: v for k, v in estimator.get_params(deep=False).items() if v is not None}
    files = {} if table is None else {k: v for k, v in asdict(table).items() if v is not None}
    return {
        "system": "difformer",
        "dataset": data.name if table is None else table.name,
        "data": {**files, "fingerprint": data.fingerprint},
        "own": params,
    }


def _write(folder: Path, estimator: Estimator, result: Mapping[str, Any], empty: list[int]) -> None:
    write_atomic(folder / "metrics.csv", csv_text(estimator.history_).encode())
    write_atomic(folder / "split.json", (estimator.split_.to_json() + "\n").encode())
    estimator.set_params(checkpoint=None).save(folder / "estimator.safetensors")
    if empty:
        run = OwnRun(estimator, result["influential"])
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(run.header)
        writer.writerows(run.lines([run.ids[row] for row in empty], run.fitted(empty)))
        write_atomic(folder / "predictions.csv", text.getvalue().encode())
    files = {"estimator.safetensors": sha256_of(folder / "estimator.safetensors")}
    text = json.dumps({**result, "files": files}, indent=2) + "\n"
    write_atomic(folder / "result.json", text.encode())
    shutil.rmtree(folder / "fits", ignore_errors=True)

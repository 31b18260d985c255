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
from difformer.estimators.regressor import DIFFormerRegressor
from difformer.experiments.own.peers import simple_peers
from difformer.experiments.own.run import CLASSES, Estimator, OwnRun, read_result
from difformer.experiments.own.scores import HeldOut, labelled, score
from difformer.experiments.own.table import OwnTable
from difformer.files import write_atomic
from difformer.train.run import agree_config, csv_text

__all__ = ["NAMED_UP_TO", "train_own"]

NAMED_UP_TO = 5000  # rows; naming the influential ones costs rows × rows

DOOR: Mapping[str, Any] = {"random_state": 0}
"""Where a run on a table differs from the estimators' defaults: it can be resumed."""


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
        _forget_fits(folder)  # it may have been killed right before this
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
    empty = (~labelled(data)).nonzero()[0].tolist()
    run = OwnRun(estimator, influential)
    kept = HeldOut.of(estimator, data, run.classes or run.labels)
    told = score(kept)
    peers = simple_peers(data, estimator.split_, seed=_seed(estimator))
    trained = estimator.result_.to_json()
    if told:  # in the table's units, where the loop's are standardised
        trained["metrics"] = {"val": told["metrics"]}
    result = {
        "task": data.task,
        "rows": data.num_rows,
        "labelled": data.num_rows - len(empty),
        "features": data.num_features,
        "graph": _graph_name(data, estimator),
        "kernel": str(estimator.kernel_),
        "validation": told.get("metrics", {}),
        "held_out": told,
        "peers": peers,
        "tried": estimator.candidates_,
        "members": _members(estimator),
        "choice": estimator.choice_,
        **trained,
        "influential": influential,
    }
    write_atomic(folder / "metrics.csv", csv_text(_history(estimator)).encode())
    if kept is not None:
        write_atomic(folder / "held_out.csv", _held_out_csv(run, data, kept))
    _write(folder, run, result, empty)
    return read_result(folder), run


def _members(estimator: Estimator) -> dict[str, float]:
    """The members of the average by name, with their weights; none where one model answers."""
    members: Any = getattr(estimator, "members_", [])
    return {m.name: m.weight for m in members} if len(members) > 1 else {}


def _history(estimator: Estimator) -> list[dict[str, Any]]:
    """The epochs, with errors in the target's units: its standardised mse becomes an rmse."""
    if not isinstance(estimator, DIFFormerRegressor):
        return estimator.history_
    scale: Any = estimator._scale  # pyright: ignore[reportPrivateUsage]
    if len(scale) > 1:
        return estimator.history_
    # The loss is the same curve again.
    return [
        {
            (k[:-3] + "rmse" if k.endswith("_mse") else k): (
                v**0.5 * float(scale[0]) if k.endswith("_mse") else v
            )
            for k, v in row.items()
            if not k.endswith("_loss")
        }
        for row in estimator.history_
    ]


def _held_out_csv(run: OwnRun, data: Dataset, kept: HeldOut) -> bytes:
    """The held-out rows: id, true labels, and what was predicted without them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    bare = OwnRun(run.estimator)
    header = bare.header
    writer.writerow([header[0], *(f"true {name}" for name in run.labels), *header[1:]])
    lines = bare.lines([run.ids[row] for row in kept.rows], bare.describe(kept.found))
    for line, truth in zip(lines, kept.truth.reshape(len(kept.rows), -1).tolist(), strict=True):
        known = [kept.names[truth[0]]] if data.task == "multiclass" else map(_true, truth)
        writer.writerow([line[0], *known, *line[1:]])
    return text.getvalue().encode()


def _true(value: float) -> str:
    return "" if value != value else f"{value:.9g}"


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


def _write(folder: Path, run: OwnRun, result: Mapping[str, Any], empty: list[int]) -> None:
    estimator = run.estimator
    write_atomic(folder / "split.json", (estimator.split_.to_json() + "\n").encode())
    estimator.set_params(checkpoint=None).save(folder / "estimator.safetensors")
    if empty:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(run.header)
        writer.writerows(run.lines([run.ids[row] for row in empty], run.fitted(empty)))
        write_atomic(folder / "predictions.csv", text.getvalue().encode())
    files = {"estimator.safetensors": sha256_of(folder / "estimator.safetensors")}
    text = json.dumps({**result, "files": files}, indent=2) + "\n"
    write_atomic(folder / "result.json", text.encode())
    _forget_fits(folder)


def _forget_fits(folder: Path) -> None:
    shutil.rmtree(folder / "fits", ignore_errors=True)

"""Predict with a finished run of any kind: new rows of a table, rows of features, or a series."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from difformer.data.rawtable import read_chunks
from difformer.data.snapshots import TemporalDataset
from difformer.errors import DataError, DifformerError, RunError
from difformer.experiments.forecast import forecast_csv, intervals_csv, open_series
from difformer.experiments.kinds import need_kind
from difformer.experiments.loaded import LoadedRun, load_run
from difformer.files import answer_file
from difformer.nn.model import DIFFormer

__all__ = ["predict_run"]

ID = "id"  # the one column of a file of features that is none


def predict_run(
    folder: str | Path,
    source: str | Path,
    out: str | Path,
    *,
    edges: str | Path | None = None,
    known: str | Path | None = None,
    level: float | None = None,
    overwrite: bool = False,
    data_dir: str | Path | None = None,
    tell: Callable[[str], None] = warnings.warn,
) -> int:
    """Predict a file with a finished run into a CSV file; returns how many rows were written.

    For a run on a table the file has the columns of training; for a run on a dataset it has one
    column per feature, in order, and maybe a column `id`; for a run on a series it is a series of
    the same nodes, whose next steps are forecast.

    Args:
        out: where the answers go: "-" is standard output, a file that is there is replaced only
            with `overwrite`.
        edges: for a run on a table: known id, new id (and weight).
        known: for a run on a series that was trained with such a file: one for the new series.
        level: of intervals of numbers, or of sets of classes, beside the answers; None for none.
        data_dir: where datasets are.
        tell: takes a note about what was passed over.
    """
    folder = Path(folder)
    kind = need_kind(folder, ("dataset", "table", "series"), "predict")
    if known is not None and kind != "series":
        raise ValueError("known must be left out: it is for runs on a series")
    if kind == "table":
        from difformer.experiments.own.predict import predict_own

        return predict_own(
            folder, source, out, edges=edges, level=level, overwrite=overwrite, tell=tell
        )
    if edges is not None:
        raise ValueError("edges must be left out: they join the rows of a run on a table")
    with answer_file(out, overwrite=overwrite) as file:
        if kind == "series":
            return _forecast(folder, source, known, file, level, tell)
        if level is not None:
            raise ValueError("level must be left out: it is for runs on a table or a series")
        return _predict_rows(load_run(folder, data_dir=data_dir), source, file)


def _forecast(
    folder: Path,
    source: str | Path,
    known: str | Path | None,
    file: TextIO,
    level: float | None,
    tell: Callable[[str], None],
) -> int:
    from difformer.data.series_files import read_known_file, read_series_file

    model, record = open_series(folder)
    steps = record["settings"]["steps"]
    try:
        data = read_series_file(source)
        for note in data.notes:
            tell(f"{source}: {note}")
        data = data if known is None else read_known_file(known, data)
        if level is None:
            text = forecast_csv(model, data, steps)
        else:
            text = intervals_csv(model, data, record, level)
    except ValueError as error:
        raise DataError(f"{source}: {error}") from error
    file.write(text)
    return steps


def _predict_rows(run: LoadedRun, source: str | Path, file: TextIO) -> int:
    model, data = run.model, run.dataset
    if not isinstance(model, DIFFormer):
        raise DifformerError(f"{run.folder} holds a {run.system}: only DIFFormer predicts new rows")
    if isinstance(data, TemporalDataset):
        raise RunError(
            f"{run.folder} is a run on snapshots: train a series of your own to forecast"
        )
    graph = None if run.graph is None else run.graph.to(torch.zeros(0, dtype=torch.float64))
    frozen = model.double().freeze(data.x.to(torch.float64), graph)
    classes = data.task == "multiclass"
    writer = csv.writer(file, lineterminator="\n")
    targets = [f"target {i}" for i in range(data.num_outputs)]
    writer.writerow(["id", *(["label", "probability"] if classes else targets)])
    count = 0
    for names, x in _features(source, data.num_features):
        with torch.no_grad():
            output = frozen(x)
        lines = _labels(output, data.class_names) if classes else _numbers(output, data.task)
        for offset, line in enumerate(lines):
            writer.writerow([str(count + offset) if names is None else names[offset], *line])
        count += len(x)
    return count


def _labels(output: Tensor, names: tuple[str, ...]) -> list[list[str]]:
    best = output.softmax(-1).max(1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[names[label] if names else str(label), f"{chance:.6g}"] for label, chance in pairs]


def _numbers(output: Tensor, task: str) -> list[list[str]]:
    values = output.sigmoid() if task == "multilabel" else output
    return [[f"{value:.6g}" for value in row] for row in values.tolist()]


def _features(source: str | Path, width: int) -> Iterator[tuple[list[str] | None, Tensor]]:
    """Chunks of rows as the model takes them, with their ids where the file has them."""
    start = 1
    for chunk in read_chunks(source):
        columns: dict[str, Any] = dict(chunk)
        names = columns.pop(ID, None)
        if len(columns) != width:
            raise DataError(
                f"{source} must have {width} columns of features, it has {len(columns)}"
            )
        rows: list[list[float]] = []
        for name, cells in columns.items():
            rows.append([_number(source, name, start + i, cell) for i, cell in enumerate(cells)])
        x = torch.tensor(rows, dtype=torch.float64).T
        yield None if names is None else [str(name) for name in names], x
        start += len(x)


def _number(source: str | Path, column: str, row: int, cell: Any) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = float("nan")
    if value - value != 0:  # nan or infinite
        raise DataError(f"{source}: row {row}, column {column!r} must be a number, got {cell!r}")
    return value

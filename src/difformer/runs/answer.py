"""Predict with a finished run of any kind: new rows of a table, rows of features, or a series."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterable
from math import isfinite, nan
from pathlib import Path
from typing import Any

import torch

from difformer.data.table.encoder import Drift
from difformer.data.table.files import Source, numbered_chunks, rows_of, without_header
from difformer.errors import DataError
from difformer.files import answer_file, number_text
from difformer.jobs.own import OwnRun, table_lines
from difformer.runs.open import LoadedRun, load_run
from difformer.runs.run import need_kind

ID = "id"  # the one column of a file of features that is not a feature

Lines = Iterable[list[list[Any]]]
"""The lines of a CSV file, some at a time; the first one is the header."""


def predict_run(
    folder: str | Path,
    source: Source,
    out: str | Path,
    *,
    edges: Source | None = None,
    known: str | Path | None = None,
    level: float | None = None,
    overwrite: bool = False,
    header: bool = True,
    data_dir: str | Path | None = None,
    tell: Callable[[str], None] = warnings.warn,
    drift: Drift | None = None,
) -> int:
    """Predict a file with a finished run into a CSV file; returns how many lines have answers.

    For a run on a table the file has the columns of training; for a run on a dataset it has one
    column per feature, in order, and maybe a column `id`; for a run on a series it is a series of
    the same nodes, whose next steps are forecast.

    Args:
        out: where the answers go: "-" is standard output; an existing file is replaced only with
            `overwrite`.
        edges: for a run on a table: id, id (and weight), the edges of new rows to known ones and
            to one another. With edges among new rows the table is read at once.
        known: for a run on a series that was trained with such a file: one for the new series.
        level: of intervals of numbers, or of sets of classes, beside the answers; None for none.
        header: False if the first line of CSV files is a row: columns are column1, column2, ...
        data_dir: where datasets are.
        tell: called with a note about columns, cells and edges that are ignored, and about cells
            unlike all of training.
        drift: filled with those cells; for a run on a table.
    """
    folder = Path(folder)
    kind = need_kind(folder, ("dataset", "table", "series"), "predict")
    if known is not None and kind != "series":
        raise ValueError("known must be left out: it is for runs on a series")
    if edges is not None and kind != "table":
        raise ValueError("edges must be left out: they are for runs on a table")
    if level is not None and kind == "dataset":
        raise ValueError("level must be left out: it is for runs on a table or a series")
    if not header and kind == "series":
        raise ValueError("header must be left out: the header of a series names its nodes")
    if not header:
        source, edges = without_header(source), without_header(edges)
    with answer_file(out, overwrite=overwrite) as file:
        if kind == "table":
            run = OwnRun.load(folder, level=level)
            lines = table_lines(run, source, edges, tell, Drift() if drift is None else drift)
        elif kind == "series":
            lines = [_next_steps(folder, source, known, level, tell)]
        else:
            lines = _feature_lines(load_run(folder, data_dir=data_dir), source)
        writer = csv.writer(file, lineterminator="\n")
        count = -1  # the header is not an answer
        for some in lines:
            writer.writerows(some)
            count += len(some)
    return count


def _next_steps(
    folder: Path,
    source: Source,
    known: str | Path | None,
    level: float | None,
    tell: Callable[[str], None],
) -> list[list[Any]]:
    from difformer.data.series import read_known_file, read_series_file
    from difformer.jobs.series import CUT, forecast_lines, interval_lines, lower_end, open_series

    model, record = open_series(folder)
    try:
        data = read_series_file(source)
        for note in data.notes:
            tell(f"{source}: {note}")
        data = data if known is None else read_known_file(known, data)
        if level is None:
            return forecast_lines(model, data, record["settings"]["steps"])
        if lower_end(data.values) == 0:
            tell(f"intervals {CUT.removesuffix('.')}")
        return interval_lines(model, data, record, level)
    except ValueError as error:
        raise DataError(f"{source}: {error}") from error


def _feature_lines(run: LoadedRun, source: Source) -> Lines:
    """The answers for rows of features, with their ids: numbers if the file has none."""
    data, width = run.dataset, run.dataset.num_features
    model = run.model if run.estimator is not None else run.freeze()
    outputs, classes = range(data.num_outputs), data.task == "multiclass"
    names = data.class_names or tuple(map(str, outputs))
    header = ["label", "probability"] if classes else [f"target {i}" for i in outputs]
    yield [["id", *header]]
    for start, chunk in numbered_chunks(source):
        columns: dict[str, Any] = dict(chunk)
        ids = columns.pop(ID, range(start - 1, start - 1 + rows_of(chunk)))
        if len(columns) != width:
            raise DataError(
                f"{source} must have {width} columns of features, it has {len(columns)}"
            )
        read = (_numbers(source, name, start, cells) for name, cells in columns.items())
        x = torch.tensor(list(read), dtype=torch.float64).T
        with torch.no_grad():
            found = run.outcome.averaged(model(x)).cpu().numpy()
        answers = [list(map(number_text, row)) for row in found]
        if classes:
            best = zip(found.argmax(1).tolist(), answers, strict=True)
            answers = [[names[place], cells[place]] for place, cells in best]
        yield [[str(name), *cells] for name, cells in zip(ids, answers, strict=True)]


def _numbers(source: Source, column: str, start: int, cells: Any) -> list[float]:
    values: list[float] = []
    for row, cell in enumerate(cells, start):
        try:
            values.append(float(cell))
        except (TypeError, ValueError):
            values.append(nan)
        if not isfinite(values[-1]):
            where = f"{source}: row {row}, column {column!r}"
            raise DataError(f"{where} must be a number, got {cell!r}")
    return values

"""A series from an array, columns, a data frame or a file, and what is known ahead."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from difformer.data.table.cells import (
    Array,
    bad_cells,
    cell_text,
    few_bad,
    format_of,
    place,
    read_numbers,
    repeated,
)
from difformer.data.table.files import Chunk, naming, read_rows
from difformer.data.times import check_times, following, read_times, whole_times
from difformer.errors import DataError
from difformer.files import counted
from difformer.settings import check_count


@dataclass(frozen=True, eq=False)
class Series:
    """Values (T, n) float64, nan where missing; names of the nodes and times of the steps.

    `known` (T + ahead, c) holds what is known in advance, such as holidays: a row for each step and
    for steps ahead, nan where missing. `notes` say what reading corrected.
    """

    values: Array
    names: tuple[str, ...] = ()
    stamps: tuple[Any, ...] = ()
    known: Array | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = self.values
        if values.ndim != 2 or not values.size:
            raise ValueError(f"series must be (steps, nodes), got shape {values.shape}")
        if np.isinf(values).any():
            step, node = np.argwhere(np.isinf(values))[0]
            raise ValueError(f"series must be finite, {self.node(node)} is infinite at step {step}")
        if (name := repeated(self.names)) is not None:
            raise ValueError(f"series must name each node once, {name!r} comes twice")
        check_times(self.stamps)
        known = self.known
        if known is not None and (known.ndim != 2 or len(known) < len(values)):
            raise ValueError(
                f"known must have a row for each of the {len(values)} steps, got {known.shape}"
            )
        if known is not None and np.isinf(known).any():
            raise ValueError("known must be finite")

    def before(self, step: int, ahead: int = 0) -> Series:
        """The steps before one, with what is known of `ahead` further ones."""
        known = None if self.known is None else self.known[: step + ahead]
        return Series(self.values[:step], self.names, self.stamps[:step], known)

    def node(self, index: int) -> str:
        """A node as an error names it."""
        return f"node {self.names[index]!r}" if self.names else f"node {index}"

    def check_fit(self, lags: int) -> Series:
        """Return it if it can be fitted: enough steps for the lags, and a value that is known."""
        if len(self.values) <= check_count("lags", lags) + 1:
            raise ValueError(
                f"lags must be at least two fewer than the {len(self.values)} steps of the "
                f"series, got {lags}"
            )
        if np.isnan(self.values).all():
            raise ValueError("series must have known values, all are missing")
        return self


def with_known(series: Series, known: Any) -> Series:
    """The series with what is known ahead: an array (T + ahead, c), or a data frame.

    A data frame whose index holds times is put in the order of the series by them.
    """
    if known is None:
        return series
    values, _, stamps = _of_frame(known) if hasattr(known, "columns") else (_floats(known), (), ())
    values = values[:, None] if values.ndim == 1 else values
    index = type(getattr(known, "index", None)).__name__
    if not series.stamps or not stamps or (index == "RangeIndex" and isinstance(stamps[0], int)):
        return replace(series, known=values)
    return replace(series, known=align_known(series, stamps, values))


def align_known(series: Series, stamps: Sequence[Any], values: Array) -> Array:
    """Rows by the times of the series, then those of the times after its last one, in order."""
    place = {stamp: i for i, stamp in enumerate(stamps)}
    for stamp, own in zip(series.stamps, series.values, strict=True):
        if stamp not in place and np.isnan(own).all():  # the series has no values there either
            place[stamp] = len(values)
            values = np.vstack([values, np.full((1, values.shape[1]), np.nan)])
        if stamp not in place:
            raise ValueError(f"known must have a row for every step, {stamp} has none")
    later = sorted(stamp for stamp in place if stamp > series.stamps[-1])
    expected = following(series.stamps, len(later))
    for stamp, next_one in zip(later, expected or later, strict=True):
        if stamp != next_one:
            raise ValueError(f"known must go on with {next_one} after the series, got {stamp}")
    return values[[place[stamp] for stamp in (*series.stamps, *later)]]


def read_series(series: Any) -> Series:
    """A `Series` from an array (T, n), nested lists, a mapping name -> values or a data frame."""
    if isinstance(series, Series):
        return series
    if isinstance(series, Mapping):
        columns = {str(k): np.asarray(v) for k, v in cast("Mapping[Any, Any]", series).items()}
        lengths = {name: np.size(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"series must be of equal length, got {_unequal(lengths)}")
        if not columns or any(column.ndim != 1 for column in columns.values()):
            raise ValueError("series must map names to lists of values, one list per node")
        return Series(_floats(np.stack(list(columns.values()), axis=1)), tuple(columns))
    if hasattr(series, "columns") and hasattr(series, "to_numpy"):
        found = Series(*_of_frame(series))
        times = whole_times(found.stamps)
        if times is not None:
            left = next(time for time in times if time not in found.stamps)
            warnings.warn(
                f"series has no row for {len(times) - len(found.stamps)} of its times (first "
                f"{left}): its steps are taken as equally far apart; reindex it to have them "
                "missing",
                UserWarning,
                stacklevel=3,
            )
        return found
    if isinstance(series, Sequence) and not isinstance(series, str):
        sizes = {f"step {i}": np.size(row) for i, row in enumerate(cast("Sequence[Any]", series))}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"series must have as many nodes at every step, got {_unequal(sizes)}")
    if isinstance(series, torch.Tensor):
        series = series.detach().cpu().numpy()
    return Series(_floats(series))


def _of_frame(frame: Any) -> tuple[Array, tuple[str, ...], tuple[Any, ...]]:
    """Values, names and times of a data frame: its index, or a column of dates, holds the times."""
    kinds = {str(name): str(frame[name].dtype).lower() for name in frame.columns}
    dates = [name for name in frame.columns if kinds[str(name)].startswith(("date", "period"))]
    index = getattr(frame, "index", None)
    numbered = index is None or type(index).__name__ == "RangeIndex"
    stamps: Any = () if index is None else index
    if dates and numbered:
        stamps = frame[dates[0]]
        stamps = getattr(stamps, "array", stamps)  # of pandas: an array that knows its type
        frame = frame[[name for name in frame.columns if name != dates[0]]]
    if hasattr(stamps, "to_timestamp"):  # periods
        stamps = stamps.to_timestamp()
    times: tuple[Any, ...] = tuple(stamps)
    if times and all(isinstance(stamp, str) for stamp in times):
        times = read_times(times)
    pandas = type(frame).__module__.startswith("pandas")
    missing = {"dtype": np.float64, "na_value": np.nan} if pandas else {}
    try:
        values = _floats(frame.to_numpy(**missing))
    except (TypeError, ValueError) as error:
        raise ValueError(f"series must hold numbers, and dates in one column: {error}") from error
    return values, tuple(str(name) for name in frame.columns), times


def fill(values: Array, mean: Array) -> Array:
    """Missing values as the node's last known one; before its first, its `mean` (n,). Causal.

    >>> fill(np.array([[np.nan, 1.0], [2.0, np.nan]]), np.array([5.0, 5.0])).tolist()
    [[5.0, 1.0], [2.0, 1.0]]
    """
    filled = np.vstack([mean[None], values])
    known = np.where(np.isnan(filled), 0, np.arange(len(filled))[:, None])
    return np.take_along_axis(filled, np.maximum.accumulate(known, axis=0), axis=0)[1:]


def _floats(values: Any) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"series must hold numbers: {error}") from error


def _unequal(lengths: Mapping[str, int]) -> str:
    items = list(lengths.items())
    other = next(item for item in items if item[1] != items[0][1])
    return f"{items[0][1]} ({items[0][0]}) and {other[1]} ({other[0]})"


PLACES = (("x", "lon", "lng", "longitude"), ("y", "lat", "latitude"))


def read_series_file(path: Path | str) -> Series:
    """A table of times, in its first column, and one further column per node.

    Numbers and dates are written as in any table. An empty cell, `na` or `nan` is a missing value,
    and so is a cell that is not a number, up to one in twenty. Rows may be in any order; a step
    without a row is missing. DataError names the row of a mistake.
    """
    times, names, values, bad = _timed(path, "one per node")
    if not few_bad(len(bad), values.size):
        raise DataError(f"{path}: {bad[0]} is not a number")
    notes = [bad_cells(len(bad), "number", bad[:3])] if bad else []
    with naming(path):
        return _in_time(values, names, times, notes)


def read_known_file(path: Path | str, series: Series) -> Series:
    """The series with what is known ahead: times, and one column per thing known."""
    times, _, values, bad = _timed(path, "others")
    if bad:
        raise DataError(f"{path}: {bad[0]} is not a number")
    with naming(path):
        return replace(series, known=align_known(series, times, values))


def read_places(path: Path | str, names: Sequence[str]) -> Array:
    """The coordinates of the nodes, (n, 2), from a table: node, x and y (longitude and latitude).

    Columns with these names may be in any order. A node without a row has NaN.
    """
    columns, rows = read_rows(path)
    header = list(columns)
    if len(header) < 3:
        raise DataError(f"{path}: must have columns node, x and y, it has {', '.join(header)}")
    ends = [
        next((name for name in header if name.lower() in known), header[fallback])
        for fallback, known in enumerate(PLACES, 1)
    ]
    nodes = [cell_text(cell) for cell in columns[next(n for n in header if n not in ends)]]
    where = {name: j for j, name in enumerate(names)}
    for row, node in zip(rows, nodes, strict=True):
        if node not in where:
            raise DataError(f"{path}: row {row}: {node!r} is not a node of the series")
    values, bad = _numbers({name: columns[name] for name in ends}, rows)
    if bad:
        raise DataError(f"{path}: {bad[0]} is not a number")
    found = np.full((len(names), 2), np.nan)
    found[[where[node] for node in nodes]] = values
    return found


def _timed(path: Path | str, others: str) -> tuple[tuple[Any, ...], list[str], Array, list[str]]:
    """Times, names, (T, c) numbers of a table, NaN where missing or bad, and its bad cells."""
    columns, rows = read_rows(path)
    time, *names = columns
    if not names:
        raise DataError(f"{path}: must have a column of times and {others}, it has 1")
    values, bad = _numbers({name: columns[name] for name in names}, rows)
    with naming(path):
        return read_times(columns[time]), names, values, bad


def _numbers(columns: Chunk, rows: Sequence[int]) -> tuple[Array, list[str]]:
    """(n, c) numbers of columns in one notation, and the places of cells that are not numbers."""
    written = format_of(list(chain.from_iterable(zip(*columns.values(), strict=True))), "number")
    values = np.empty((len(rows), len(columns)))
    bad: list[tuple[int, str]] = []
    for j, (name, cells) in enumerate(columns.items()):
        values[:, j], wrong = read_numbers(cells, written)
        bad += [(rows[i], place(rows[i], name, cells[i])) for i in wrong]
    return values, [where for _, where in sorted(bad)]


def _in_time(
    values: Array, names: Sequence[str], stamps: tuple[Any, ...], notes: list[str]
) -> Series:
    """The series in the order of its times, with a row for each time that was left out."""
    if not isinstance(stamps[0], str):
        order = sorted(range(len(stamps)), key=stamps.__getitem__)
        if order != list(range(len(stamps))):
            notes.append("rows were put in the order of their times")
        stamps, values = tuple(stamps[i] for i in order), values[order]
    check_times(stamps)
    times = whole_times(stamps)
    if times is not None:
        place = {stamp: i for i, stamp in enumerate(times)}
        whole = np.full((len(times), values.shape[1]), np.nan)
        whole[[place[stamp] for stamp in stamps]] = values
        left = next(time for time in times if time not in set(stamps))
        gone = counted(len(times) - len(stamps), "step")
        notes.append(f"{gone} without a row, left empty, first {left}")
        values, stamps = whole, tuple(times)
    return Series(values, tuple(names), stamps, notes=tuple(notes))

"""Files about a series: its values, what is known ahead, and where its nodes are.

They are tables, in any format of `read_chunks`; `edges.read_step_edges` reads their edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.cells import BAD_SHARE, cell_text, format_of, read_numbers
from difformer.data.rawtable import Chunk, read_rows
from difformer.data.series import Series, align_known
from difformer.data.times import check_times, read_times, whole_times
from difformer.errors import DataError

__all__ = ["read_known_file", "read_places", "read_series_file"]

Array = NDArray[Any]

PLACES = (("x", "lon", "lng", "longitude"), ("y", "lat", "latitude"))


def read_series_file(path: Path | str) -> Series:
    """A table of times, in its first column, and one further column per node.

    Numbers and dates are written as in any table. An empty cell, `na` or `nan` is a missing value,
    and so is a cell that is not a number, up to one in twenty. Rows may be in any order; a step for
    which there is no row is missing. DataError names the row of what is wrong.
    """
    found = _Timed.read(path, "one per node")
    if len(found.bad) > BAD_SHARE * found.values.size:
        raise DataError(f"{path}: {found.bad[0]} is not a number")
    first = ", ".join(found.bad[:3])
    notes = [f"{len(found.bad)} not numbers, taken as missing ({first})"] if found.bad else []
    try:
        return _in_time(found.values, found.names, found.times, notes)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def read_known_file(path: Path | str, series: Series) -> Series:
    """The series with what is known ahead: times, and one column per thing known."""
    found = _Timed.read(path, "others")
    if found.bad:
        raise DataError(f"{path}: {found.bad[0]} is not a number")
    try:
        return replace(series, known=align_known(series, found.times, found.values))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def read_places(path: Path | str, names: Sequence[str]) -> Array:
    """Where the nodes are, (n, 2), from a table: node, then x and y (longitude and latitude).

    Columns named so, or latitude first, may come in any order; nan for a node that is not there.
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


@dataclass(frozen=True, eq=False)
class _Timed:
    """A table of times and numbers: (T, c) values, NaN where missing or `bad`."""

    times: tuple[Any, ...]
    names: list[str]
    values: Array
    bad: list[str]

    @classmethod
    def read(cls, path: Path | str, others: str) -> _Timed:
        columns, rows = read_rows(path)
        time, *names = columns
        if not names:
            raise DataError(f"{path}: must have a column of times and {others}, it has 1")
        values, bad = _numbers({name: columns[name] for name in names}, rows)
        try:
            return cls(read_times(columns[time]), names, values, bad)
        except ValueError as error:
            raise DataError(f"{path}: {error}") from error


def _numbers(columns: Chunk, rows: Sequence[int]) -> tuple[Array, list[str]]:
    """(n, c) numbers of columns that are written alike, and where a cell is not a number."""
    written = format_of(list(chain.from_iterable(zip(*columns.values(), strict=True))), "number")
    values = np.empty((len(rows), len(columns)))
    bad: list[tuple[int, str]] = []
    for j, (name, cells) in enumerate(columns.items()):
        values[:, j], wrong = read_numbers(cells, written)
        bad += [(rows[i], f"row {rows[i]}, column {name!r}: {cells[i]!r}") for i in wrong]
    return values, [said for _, said in sorted(bad)]


def _in_time(
    values: Array, names: Sequence[str], stamps: tuple[Any, ...], notes: list[str]
) -> Series:
    """The series in the order of its times, with a row for those that were left out."""
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
        notes.append(f"{len(times) - len(stamps)} steps without a row are missing, first {left}")
        values, stamps = whole, tuple(times)
    return Series(values, tuple(names), stamps, notes=tuple(notes))

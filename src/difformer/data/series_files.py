"""Files about a series: its values, what is known ahead, and the coordinates of its nodes.

They are tables, in any format of `read_chunks`; `edges.read_step_edges` reads the edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.cells import (
    Array,
    bad_cells,
    cell_text,
    few_bad,
    format_of,
    place,
    read_numbers,
)
from difformer.data.rawtable import Chunk, naming, read_rows
from difformer.data.series import Series, align_known
from difformer.data.times import check_times, read_times, whole_times
from difformer.errors import DataError
from difformer.files import counted

PLACES = (("x", "lon", "lng", "longitude"), ("y", "lat", "latitude"))


def read_series_file(path: Path | str) -> Series:
    """A table of times, in its first column, and one further column per node.

    Numbers and dates are written as in any table. An empty cell, `na` or `nan` is a missing value,
    and so is a cell that is not a number, up to one in twenty. Rows may be in any order; a step
    without a row is missing. DataError names the row of a mistake.
    """
    found = _Timed.read(path, "one per node")
    if not few_bad(len(found.bad), found.values.size):
        raise DataError(f"{path}: {found.bad[0]} is not a number")
    notes = [bad_cells(len(found.bad), "number", found.bad[:3])] if found.bad else []
    with naming(path):
        return _in_time(found.values, found.names, found.times, notes)


def read_known_file(path: Path | str, series: Series) -> Series:
    """The series with what is known ahead: times, and one column per thing known."""
    found = _Timed.read(path, "others")
    if found.bad:
        raise DataError(f"{path}: {found.bad[0]} is not a number")
    with naming(path):
        return replace(series, known=align_known(series, found.times, found.values))


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
        with naming(path):
            return cls(read_times(columns[time]), names, values, bad)


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

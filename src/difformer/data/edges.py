"""Edges in a table, by the ids of rows or the names of the nodes of a series."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.cells import Array, cell_text, format_of, place, read_numbers
from difformer.data.rawtable import (
    Source,
    first_line,
    name_of,
    naming,
    numbered_chunks,
    read_rows,
    rows_of,
    without_header,
)
from difformer.data.series import Series
from difformer.data.snapshots import Edges
from difformer.data.times import read_times
from difformer.errors import DataError

LARGEST_WEIGHT = float(np.finfo(np.float32).max)


def read_edges(
    source: Source, where: Mapping[str, int], *, unknown: str = "is not a known id"
) -> Edges:
    """Edges (2, e) of a table, and their weights (e,) or None; read in chunks, O(e).

    A CSV file whose first line joins two known ids has no header: that line is an edge as well.

    Args:
        source: two or three columns: source, target and optionally weight.
        where: the row number of each id.
        unknown: what an error says about any other id.
    """
    ends: list[Array] = []
    weights: list[Array] = []
    written = ""
    if (
        len(first := first_line(source)) > 1
        and {cell_text(end) for end in first[:2]} <= where.keys()
    ):
        warnings.warn(headless(source, first), stacklevel=2)
        source = without_header(source)
    for start, chunk in numbered_chunks(source):
        if len(chunk) not in (2, 3):
            raise DataError(
                f"{name_of(source)}: must have source, target (and weight), has {list(chunk)}"
            )
        table = _Table(name_of(source), range(start, start + rows_of(chunk)))
        one, other, *weight = chunk.items()
        ends.append(np.stack([table.places(*end, where, unknown) for end in (one, other)]))
        if weight:
            written = written or format_of(weight[0][1], "number")
            weights.append(table.weights(*weight[0], written))
    return _edges(ends, weights)


def headless(source: Source, first: Sequence[str]) -> str:
    """What is said of a file of edges whose first line is an edge."""
    ends = " to ".join(map(cell_text, first[:2]))
    return f"{name_of(source)}: has no header: its first line, {ends}, is read as an edge"


def read_step_edges(source: Source, series: Series) -> tuple[Edges, ...]:
    """One graph of the nodes of a series, or with a column `time` one for each of its steps.

    The columns are source and target, and optionally weight and time, in any order. A step without
    a row has no edges.
    """
    columns, rows = read_rows(source)
    known = ("source", "target", "weight", "time")
    if not {"source", "target"} <= set(columns) or not set(columns) <= set(known):
        raise DataError(
            f"{name_of(source)}: must have columns source, target and optionally weight, time; "
            f"it has {', '.join(columns)}"
        )
    table = _Table(name_of(source), rows)
    where = {name: i for i, name in enumerate(series.names)}
    unknown = "is not a node of the series"
    ends = np.stack([table.places(n, columns[n], where, unknown) for n in known[:2]])
    weights: list[Array] = []
    if "weight" in columns:
        cells = columns["weight"]
        weights.append(table.weights("weight", cells, format_of(cells, "number")))
    if "time" not in columns:
        return (_edges([ends], weights),)
    step = {stamp: i for i, stamp in enumerate(series.stamps)}
    with naming(source):
        times = read_times(columns["time"])
    for i, time in enumerate(times):
        if time not in step:
            raise DataError(f"{table.at(i, 'time', columns['time'])} is not a step of the series")
    at = np.array([step[time] for time in times])
    graphs = (at == t for t in range(len(series.values)))
    return tuple(_edges([ends[:, own]], [w[own] for w in weights]) for own in graphs)


class _Table:
    """Cells of edges, and how errors name them."""

    def __init__(self, file: str, rows: Sequence[int]) -> None:
        self.file, self.rows = file, rows

    def at(self, i: int, column: str, cells: Sequence[Any]) -> str:
        return f"{self.file}: {place(self.rows[i], column, cells[i])}"

    def places(
        self, column: str, cells: Sequence[Any], where: Mapping[str, int], unknown: str
    ) -> Array:
        found = np.array([where.get(cell_text(cell), -1) for cell in cells], np.int64)
        if (found < 0).any():
            raise DataError(f"{self.at(int((found < 0).argmax()), column, cells)} {unknown}")
        return found

    def weights(self, column: str, cells: Sequence[Any], written: str) -> Array:
        found, _ = read_numbers(cells, written)
        good = (found >= 0) & (found <= LARGEST_WEIGHT)
        if not good.all():
            where = self.at(int((~good).argmax()), column, cells)
            raise DataError(f"{where} must be a weight, 0 or more")
        return found


def _edges(ends: Sequence[Array], weights: Sequence[Array]) -> tuple[Tensor, Tensor | None]:
    index = np.concatenate(ends, 1) if ends else np.zeros((2, 0), np.int64)
    weight = torch.from_numpy(np.concatenate(weights)).float() if weights else None
    return torch.from_numpy(index), weight

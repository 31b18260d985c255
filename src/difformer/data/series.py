"""A series as people have it: an array, a data frame or a CSV file of time × node, and its graphs.

No torch here but for the edges; a data frame is anything with `columns` and `to_numpy`, so that
neither pandas nor polars is needed.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from difformer.data.snapshots import Edges
from difformer.errors import DataError

Array = NDArray[Any]

LARGEST_WEIGHT = 3.4e38  # of a float32
MISSING = ("", "na", "nan", "null", "none")


@dataclass(frozen=True, eq=False)
class Series:
    """Values (T, n) float64, nan where missing; names of the nodes and stamps of the steps."""

    values: Array
    names: tuple[str, ...] = ()
    stamps: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        values = self.values
        if values.ndim != 2 or not values.size:
            raise ValueError(f"series must be (steps, nodes), got shape {values.shape}")
        if np.isinf(values).any():
            step, node = np.argwhere(np.isinf(values))[0]
            raise ValueError(f"series must be finite, {self.node(node)} is infinite at step {step}")
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"series must name each node once, {name!r} comes twice")
        _check_stamps(self.stamps)

    def node(self, index: int) -> str:
        """A node as an error calls it."""
        return f"node {self.names[index]!r}" if self.names else f"node {index}"

    def check_fit(self, lags: int) -> Series:
        """Itself, if it can be learned from: more steps than lags, and a value that is known."""
        if isinstance(lags, bool) or not isinstance(lags, int | np.integer) or lags < 1:
            raise ValueError(f"lags must be a whole number of at least 1, got {lags!r}")
        if len(self.values) <= lags + 1:
            raise ValueError(
                f"lags must be at least two fewer than the {len(self.values)} steps of the "
                f"series, got {lags}"
            )
        if np.isnan(self.values).all():
            raise ValueError("series must have known values, all are missing")
        return self


SEASONS = ((86400, 7), (7 * 86400, 52), (3600, 24), (900, 96), (60, 60))


def season_of(stamps: Sequence[Any]) -> int | None:
    """The steps of a season by the time between the newest steps; None where it is not known.

    Days make weeks, weeks, months and quarters make years, hours make days.
    """
    if len(stamps) < 3 or not hasattr(stamps[-1], "isoformat"):
        return None
    gaps = sorted((b - a).total_seconds() for a, b in pairwise(stamps[-13:]))
    gap = gaps[len(gaps) // 2]
    for seconds, steps in SEASONS:
        if abs(gap - seconds) < 0.02 * seconds:
            return steps
    days = gap / 86400
    return 12 if 27 < days < 32 else 4 if 88 < days < 93 else None


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
            raise ValueError("series must map names to lists of values, one a node")
        return Series(_floats(np.stack(list(columns.values()), axis=1)), tuple(columns))
    if hasattr(series, "columns") and hasattr(series, "to_numpy"):
        stamps = tuple(series.index) if hasattr(series, "index") else ()
        names = tuple(str(name) for name in series.columns)
        return Series(_floats(series.to_numpy()), names, stamps)
    if isinstance(series, Sequence) and not isinstance(series, str):
        sizes = {f"step {i}": np.size(row) for i, row in enumerate(cast("Sequence[Any]", series))}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"series must have as many nodes at every step, got {_unequal(sizes)}")
    if isinstance(series, torch.Tensor):
        series = series.detach().cpu().numpy()
    return Series(_floats(series))


def read_series_file(path: Path | str) -> Series:
    """A CSV file: a header, the time in its first column, one further column a node.

    An empty cell, `na` or `nan` is a missing value. DataError names the line of what is wrong.
    """
    path = Path(path)
    header, rows = _read_csv(path)
    if len(header) < 2:
        raise DataError(f"{path} must have a column of times and one a node, it has {len(header)}")
    values = np.empty((len(rows), len(header) - 1))
    for i, (line, cells) in enumerate(rows):
        for j, cell in enumerate(cells[1:]):
            values[i, j] = _number(path, line, header[j + 1], cell)
    try:
        return Series(values, tuple(header[1:]), tuple(_stamp(cells[0]) for _, cells in rows))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def read_edges_file(path: Path | str, series: Series) -> tuple[Edges, ...]:
    """A CSV file of edges: columns source, target, and where wanted weight and time.

    Nodes go by the names of the series. With a column `time` there is one graph for each step of
    the series; a step that no edge names has none.
    """
    path = Path(path)
    header, rows = _read_csv(path)
    known = ("source", "target", "weight", "time")
    if not {"source", "target"} <= set(header) or not set(header) <= set(known):
        raise DataError(
            f"{path} must have columns source, target and maybe weight, time; "
            f"it has {', '.join(header)}"
        )
    number = {name: i for i, name in enumerate(series.names)}
    step = {stamp: i for i, stamp in enumerate(series.stamps)}
    found: list[tuple[int, int, int, float]] = []
    for line, cells in rows:
        row = dict(zip(header, cells, strict=True))
        for end in ("source", "target"):
            if row[end] not in number:
                raise DataError(f"{path}, line {line}: {row[end]!r} is no node of the series")
        at = _stamp(row["time"]) if "time" in row else None
        if at is not None and at not in step:
            raise DataError(f"{path}, line {line}: {row['time']!r} is no step of the series")
        weight = _number(path, line, "weight", row.get("weight", "1"))
        if not 0 <= weight < LARGEST_WEIGHT:
            raise DataError(f"{path}, line {line}: weight must be 0 or more, got {row['weight']!r}")
        when = 0 if at is None else step[at]
        found.append((when, number[row["source"]], number[row["target"]], weight))
    graphs = len(series.values) if "time" in header else 1
    return tuple(_edges([e for e in found if e[0] == t]) for t in range(graphs))


def fill(values: Array, mean: Array) -> Array:
    """Missing values as the node's last known one; before its first, its `mean` (n,). Causal.

    >>> fill(np.array([[np.nan, 1.0], [2.0, np.nan]]), np.array([5.0, 5.0])).tolist()
    [[5.0, 1.0], [2.0, 1.0]]
    """
    filled = np.vstack([mean[None], values])
    known = np.where(np.isnan(filled), 0, np.arange(len(filled))[:, None])
    return np.take_along_axis(filled, np.maximum.accumulate(known, axis=0), axis=0)[1:]


def _edges(found: list[tuple[int, int, int, float]]) -> Edges:
    index = torch.tensor([(s, t) for _, s, t, _ in found], dtype=torch.int64).reshape(-1, 2).T
    return index.contiguous(), torch.tensor([w for *_, w in found], dtype=torch.float32)


def _floats(values: Any) -> Array:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"series must hold numbers: {error}") from error


def _check_stamps(stamps: tuple[Any, ...]) -> None:
    """Time stamps must go up; text that is no date or number cannot be ordered by us."""
    for step, (a, b) in enumerate(pairwise(stamps), start=1):
        if a == b:
            raise ValueError(f"series must have one row a time, {b} comes twice (step {step})")
        try:
            later = bool(b > a)
        except TypeError as error:
            raise ValueError(f"series must have comparable times, got {a!r} and {b!r}") from error
        if not later:
            raise ValueError(f"series must be sorted by time, step {step} ({b}) comes before {a}")


def _unequal(lengths: Mapping[str, int]) -> str:
    items = list(lengths.items())
    other = next(item for item in items if item[1] != items[0][1])
    return f"{items[0][1]} ({items[0][0]}) and {other[1]} ({other[0]})"


def _read_csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            rows = [(reader.line_num, [c.strip() for c in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"cannot read {path}: {reason}") from error
    if not header:
        raise DataError(f"{path} is empty: its first line must name the columns")
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {line}: {len(cells)} cells where the header has {len(header)}"
            )
    if not rows:
        raise DataError(f"{path} has a header and no rows")
    return header, rows


def _number(path: Path, line: int, column: str, cell: str) -> float:
    if cell.lower() in MISSING:
        return math.nan
    try:
        return float(cell)
    except ValueError as error:
        raise DataError(f"{path}, line {line}: {column} must be a number, got {cell!r}") from error


def _stamp(cell: str) -> Any:
    """A time as a number or a date, so that 9 comes before 10; other text as it is."""
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(cell)
    except ValueError:
        return cell

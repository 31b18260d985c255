"""A series as people have it: an array, a data frame or a CSV file of time × node, and its graphs.

No torch here but for the edges; a data frame is anything with `columns` and `to_numpy`, so that
neither pandas nor polars is needed.
"""

from __future__ import annotations

import csv
import math
import re
import warnings
from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from difformer.data.columns import BAD_SHARE, NUMBERS, PLAIN, format_of, read_numbers
from difformer.data.rawtable import not_utf8, separator_of
from difformer.data.snapshots import Edges
from difformer.errors import DataError

Array = NDArray[Any]

LARGEST_WEIGHT = 3.4e38  # of a float32
MISSING = ("", "na", "nan", "null", "none")


@dataclass(frozen=True, eq=False)
class Series:
    """Values (T, n) float64, nan where missing; names of the nodes and stamps of the steps.

    `known` (T + ahead, c) holds what is known before it happens, such as holidays: a row for each
    step and for steps ahead, nan where missing. `notes` say what was put right in reading.
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
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"series must name each node once, {name!r} comes twice")
        _check_stamps(self.stamps)
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


def following(stamps: Sequence[Any], steps: int, *, guess: bool = False) -> list[Any] | None:
    """The stamps after the last one where the newest steps are equal, else None.

    Equal are the same time apart, months (or quarters, years) of the same day or the last one, and
    Monday to Friday. With `guess` others go on by the usual time between them.

    >>> following([datetime(2020, 10, 31), datetime(2020, 11, 30), datetime(2020, 12, 31)], 2)
    [datetime.datetime(2021, 1, 31, 0, 0), datetime.datetime(2021, 2, 28, 0, 0)]
    """
    if len(stamps) < 2 or isinstance(stamps[-1], str):
        return None
    newest, last = list(stamps[-8:]), stamps[-1]
    dated = hasattr(last, "isoformat") and len(newest) > 2
    if dated and (months := _months(newest, steps)) is not None:  # two of 31 days look alike
        return months
    gap = last - newest[-2]
    if all(b - a == gap for a, b in pairwise(newest[-5:])):
        return [last + gap * (i + 1) for i in range(steps)]
    one = timedelta(days=1)
    working = {(day, one) for day in range(4)} | {(4, 3 * one)}
    if dated and len(newest) > 5 and {(a.weekday(), b - a) for a, b in pairwise(newest)} <= working:
        found = [last]
        while len(found) <= steps:
            found.append(found[-1] + (3 * one if found[-1].weekday() == 4 else one))
        return found[1:]
    usual = sorted(b - a for a, b in pairwise(newest))[len(newest) // 2 - 1]
    return [last + usual * (i + 1) for i in range(steps)] if guess else None


def _months(newest: Sequence[Any], steps: int) -> list[Any] | None:
    """The next ones of dates that are months apart, on the same day or the last one."""
    found = _monthly(newest)
    if found is None:
        return None
    months, on = found
    apart = months[-1] - months[-2]
    if any(b - a != apart for a, b in pairwise(months)):
        return None
    return [on(months[-1] + apart * (i + 1)) for i in range(steps)]


def _monthly(stamps: Sequence[Any]) -> tuple[list[int], Callable[[int], Any]] | None:
    """The month of each date, counted from January of the year 0, and the date of a month.

    None where the dates are not on one day of the month (or its last), each month once.
    """
    months = [12 * stamp.year + stamp.month - 1 for stamp in stamps]
    last = stamps[-1]
    whole = all(s.day == _days(m) for s, m in zip(stamps, months, strict=True))
    day = 31 if whole else max(stamp.day for stamp in stamps)
    same = all(s.day == min(day, _days(m)) for s, m in zip(stamps, months, strict=True))
    if not same or any(b <= a for a, b in pairwise(months)):
        return None
    return months, lambda m: last.replace(year=m // 12, month=m % 12 + 1, day=min(day, _days(m)))


LEAST_STEPS = 8  # by which it is told that times are equally far apart but for gaps


def whole_times(stamps: Sequence[Any]) -> list[Any] | None:
    """The times with those in between that were left out; None where none is, or no rule is seen.

    The time between two steps must be the usual one, or a multiple of it: hours, days, weeks,
    months. Days without week-ends are left as they are, and so is what would more than double.

    >>> whole_times([1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0])
    [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    """
    if len(stamps) < LEAST_STEPS or isinstance(stamps[0], str):
        return None
    monthly = _monthly(stamps) if hasattr(stamps[0], "isoformat") else None
    places: Sequence[Any] = stamps if monthly is None else monthly[0]
    gaps = [b - a for a, b in pairwise(places)]
    unit, often = Counter(gaps).most_common(1)[0]
    counts = [round(gap / unit) for gap in gaps]
    if 2 * often <= len(gaps) or any(unit * c != gap for c, gap in zip(counts, gaps, strict=True)):
        return None
    if unit == timedelta(days=1) and all(stamp.weekday() < 5 for stamp in stamps):
        return None
    if not len(gaps) < sum(counts) <= 2 * len(gaps):
        return None
    whole = [places[0] + unit * i for i in range(sum(counts) + 1)]
    return whole if monthly is None else [monthly[1](month) for month in whole]


def _days(month: int) -> int:
    """The days of a month, counted from January of the year 0."""
    return monthrange(month // 12, month % 12 + 1)[1]


# The seconds of a cycle, and how far a time is in it.
CYCLES = (
    (86400.0, lambda t: (t.hour * 3600 + t.minute * 60 + t.second) / 86400),
    (7 * 86400.0, lambda t: (t.weekday() + t.hour / 24) / 7),
    (365.25 * 86400.0, lambda t: (t.timetuple().tm_yday - 1 + t.hour / 24) / 365.25),
)
SEEN = 2  # times that a cycle must have been, to be learned from


def cycles_of(stamps: Sequence[Any]) -> tuple[int, ...]:
    """Which of `CYCLES` (day, week, year) the times go through, twice or more, in several steps."""
    if len(stamps) < 3 or not all(hasattr(stamp, "timetuple") for stamp in (stamps[0], stamps[-1])):
        return ()
    span = (stamps[-1] - stamps[0]).total_seconds()
    gaps = sorted((b - a).total_seconds() for a, b in pairwise(stamps[-13:]))
    gap = gaps[len(gaps) // 2]
    long = [i for i, (seconds, _) in enumerate(CYCLES) if span >= SEEN * seconds]
    return tuple(i for i in long if 3 * gap <= CYCLES[i][0])


def calendar(stamps: Sequence[Any], cycles: Sequence[int]) -> Array:
    """(T, 4 · cycles): sine and cosine of each cycle, and of its half."""
    parts: list[list[float]] = []
    for i in cycles:
        turn = [2 * math.pi * CYCLES[i][1](stamp) for stamp in stamps]
        parts += [[f(k * t) for t in turn] for k in (1, 2) for f in (math.sin, math.cos)]
    return np.array(parts).reshape(-1, len(stamps)).T


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
    return replace(series, known=_aligned(series, stamps, values))


def read_known_file(path: Path | str, series: Series) -> Series:
    """The series with the columns of a CSV file: its times, and one column for what is known."""
    path = Path(path)
    header, rows = _read_csv(path)
    written = format_of([cell for _, cells in rows for cell in cells[1:]], "number")
    values = np.array(
        [
            [_number(path, line, header[j], cell, written) for j, cell in enumerate(cells) if j]
            for line, cells in rows
        ]
    ).reshape(len(rows), -1)
    if values.shape[1] < 1:
        raise DataError(f"{path} must have a column of times and others, it has {len(header)}")
    try:
        stamps = _stamps([cells[0] for _, cells in rows])
        return replace(series, known=_aligned(series, stamps, values))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def read_places(path: Path | str, names: Sequence[str]) -> Array:
    """Where the nodes are, (n, 2), from a CSV file: node, then x and y (longitude and latitude).

    Columns named so, or latitude first, may come in any order; nan for a node that is not there.
    """
    path = Path(path)
    header, rows = _read_csv(path)
    lower = [name.lower() for name in header]
    ends = [
        next((i for i, name in enumerate(lower) if name in known), fallback)
        for fallback, known in (
            (1, ("x", "lon", "lng", "longitude")),
            (2, ("y", "lat", "latitude")),
        )
    ]
    if len(header) < 3:
        raise DataError(f"{path} must have columns node, x and y, it has {', '.join(header)}")
    node = next(i for i in range(len(header)) if i not in ends)
    where = {name: j for j, name in enumerate(names)}
    found = np.full((len(names), 2), np.nan)
    for line, cells in rows:
        if cells[node] not in where:
            raise DataError(f"{path}, line {line}: {cells[node]!r} is no node of the series")
        found[where[cells[node]]] = [_number(path, line, header[i], cells[i]) for i in ends]
    return found


def _aligned(series: Series, stamps: Sequence[Any], values: Array) -> Array:
    """Rows by the times of the series, then those of the times after its last one, in order."""
    place = {stamp: i for i, stamp in enumerate(stamps)}
    for stamp, own in zip(series.stamps, series.values, strict=True):
        if stamp not in place and np.isnan(own).all():  # a step that the series has not either
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
            raise ValueError("series must map names to lists of values, one a node")
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
        times = _stamps(times)
    pandas = type(frame).__module__.startswith("pandas")
    missing = {"dtype": np.float64, "na_value": np.nan} if pandas else {}
    try:
        values = _floats(frame.to_numpy(**missing))
    except (TypeError, ValueError) as error:
        raise ValueError(f"series must hold numbers, and dates in one column: {error}") from error
    return values, tuple(str(name) for name in frame.columns), times


def read_series_file(path: Path | str) -> Series:
    """A CSV file: a header, the time in its first column, one further column per node.

    Separated by commas, semicolons or tabs; numbers and dates are written as in a table. An empty
    cell, `na` or `nan` is a missing value, and so is up to one cell in twenty that is no number.
    Rows may be in any order; one for a time that is left out between others is missing.
    DataError names the line of what is wrong.
    """
    path = Path(path)
    header, rows = _read_csv(path)
    if len(header) < 2:
        raise DataError(
            f"{path} must have a column of times and one per node, it has {len(header)}"
        )
    written = format_of([cell for _, cells in rows for cell in cells[1:]], "number")
    values = np.full((len(rows), len(header) - 1), np.nan)
    bad: list[DataError] = []
    for i, (line, cells) in enumerate(rows):
        for j, cell in enumerate(cells[1:]):
            try:
                values[i, j] = _number(path, line, header[j + 1], cell, written)
            except DataError as error:
                bad.append(error)
    if len(bad) > BAD_SHARE * values.size:
        raise bad[0]
    notes = [f"{len(bad)} taken as missing: {', '.join(map(str, bad[:3]))}"] if bad else []
    try:
        return _in_time(values, header[1:], _stamps([cells[0] for _, cells in rows]), notes)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _in_time(
    values: Array, names: Sequence[str], stamps: tuple[Any, ...], notes: list[str]
) -> Series:
    """The series in the order of its times, with a row for those that were left out."""
    if not isinstance(stamps[0], str):
        order = sorted(range(len(stamps)), key=stamps.__getitem__)
        if order != list(range(len(stamps))):
            notes.append("rows were put in the order of their times")
        stamps, values = tuple(stamps[i] for i in order), values[order]
    _check_stamps(stamps)
    times = whole_times(stamps)
    if times is not None:
        place = {stamp: i for i, stamp in enumerate(times)}
        whole = np.full((len(times), values.shape[1]), np.nan)
        whole[[place[stamp] for stamp in stamps]] = values
        left = next(time for time in times if time not in set(stamps))
        notes.append(f"{len(times) - len(stamps)} steps without a row are missing, first {left}")
        values, stamps = whole, tuple(times)
    return Series(values, tuple(names), stamps, notes=tuple(notes))


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
    times = _stamps([cells[header.index("time")] for _, cells in rows]) if "time" in header else ()
    found: list[tuple[int, int, int, float]] = []
    for place, (line, cells) in enumerate(rows):
        row = dict(zip(header, cells, strict=True))
        for end in ("source", "target"):
            if row[end] not in number:
                raise DataError(f"{path}, line {line}: {row[end]!r} is no node of the series")
        at = times[place] if times else None
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
            reader = csv.reader(file, delimiter=separator_of(path))
            header = [cell.strip() for cell in next(reader, [])]
            lines = ((reader.line_num, [c.strip() for c in row]) for row in reader)
            rows = [(line, cells) for line, cells in lines if any(cells)]
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from error
    except (OSError, csv.Error) as error:
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


def _number(path: Path, line: int, column: str, cell: str, written: str = PLAIN) -> float:
    if cell.lower() in MISSING:
        return math.nan
    number = NUMBERS[written](cell)
    if number is None:
        raise DataError(f"{path}, line {line}: {column} must be a number, got {cell!r}")
    return number


def _stamps(cells: Sequence[str]) -> tuple[Any, ...]:
    """Times as numbers or dates, so that 9 comes before 10; other text as it is.

    ValueError where most are dates or numbers and one is none.
    """
    for read in (_packed, float, datetime.fromisoformat, _month, _quarter, _week):
        try:
            return tuple(read(cell) for cell in cells)
        except ValueError:
            pass
    for kind in ("number", "date"):
        values, _ = read_numbers(list(cells), format_of(list(cells), kind))
        wrong = np.flatnonzero(np.isnan(values))
        if not len(wrong) and kind == "date":
            start = datetime(1970, 1, 1)
            return tuple(start + timedelta(days=float(value)) for value in values)
        if 2 * len(wrong) < len(cells):
            raise ValueError(f"times must be alike, {cells[int(wrong[0])]!r} is no {kind}")
    return tuple(cells)


def _packed(cell: str) -> datetime:
    """20191231 as a date."""
    if not re.fullmatch(r"(1[89]|2[01])\d{6}", cell):
        raise ValueError(cell)
    return datetime.strptime(cell, "%Y%m%d")


def _month(cell: str) -> datetime:
    """2019-12 as its first day."""
    return datetime.strptime(cell, "%Y-%m")


def _quarter(cell: str) -> datetime:
    """2019Q4 or 2019-Q4 as its first day."""
    found = re.fullmatch(r"(\d{4})[- ]?Q([1-4])", cell)
    if found is None:
        raise ValueError(cell)
    return datetime(int(found[1]), 3 * int(found[2]) - 2, 1)


def _week(cell: str) -> datetime:
    """2019-52 or 2019W52 as the Monday of that week; it is tried where months go beyond 12."""
    found = re.fullmatch(r"(\d{4})[- ]?W?(\d\d?)", cell)
    if found is None:
        raise ValueError(cell)
    return datetime.fromisocalendar(int(found[1]), int(found[2]), 1)

"""Times of a series: read from text, continued, completed, and placed in the calendar."""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from difformer.data.table.cells import (
    Array,
    cell_text,
    format_of,
    is_missing,
    read_numbers,
)

SEASONS = ((86400, 7), (7 * 86400, 52), (3600, 24), (900, 96), (60, 60))
LEAST_STEPS = 8  # from which on gaps between equally spaced times are recognised


def season_of(stamps: Sequence[Any]) -> int | None:
    """The number of steps in a season, from the time between the newest steps; None if unknown.

    The season of days is a week, that of weeks, months and quarters a year, that of hours a day.
    """
    if len(stamps) < 3 or not hasattr(stamps[-1], "isoformat"):
        return None
    gap = _usual_seconds(stamps)
    for seconds, steps in SEASONS:
        if abs(gap - seconds) < 0.02 * seconds:
            return steps
    days = gap / 86400
    return 12 if 27 < days < 32 else 4 if 88 < days < 93 else None


def _usual_seconds(stamps: Sequence[Any]) -> float:
    """The median time between the newest steps."""
    gaps = sorted((b - a).total_seconds() for a, b in pairwise(stamps[-13:]))
    return gaps[len(gaps) // 2]


def following(stamps: Sequence[Any], steps: int, *, guess: bool = False) -> list[Any] | None:
    """The times after the last one if the newest steps are regular, else None.

    Regular are: equal distances; months (or quarters, years) on the same day or the last day; and
    Monday to Friday. With `guess`, other times continue by the usual distance.

    >>> following([datetime(2020, 10, 31), datetime(2020, 11, 30), datetime(2020, 12, 31)], 2)
    [datetime.datetime(2021, 1, 31, 0, 0), datetime.datetime(2021, 2, 28, 0, 0)]
    """
    if len(stamps) < 2 or isinstance(stamps[-1], str):
        return None
    newest, last = list(stamps[-8:]), stamps[-1]
    dated = hasattr(last, "isoformat") and len(newest) > 2
    if dated and (monthly := _monthly(newest)) is not None:  # two of 31 days look alike
        months, on = monthly
        apart = months[-1] - months[-2]
        if all(b - a == apart for a, b in pairwise(months)):
            return [on(months[-1] + apart * (i + 1)) for i in range(steps)]
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


def _monthly(stamps: Sequence[Any]) -> tuple[list[int], Callable[[int], Any]] | None:
    """The month of each date, counted from January of the year 0, and the date of a month.

    None unless the dates are on the same day of the month (or the last), each in a later month.
    """
    months = [12 * stamp.year + stamp.month - 1 for stamp in stamps]
    last = stamps[-1]
    whole = all(s.day == _days(m) for s, m in zip(stamps, months, strict=True))
    day = 31 if whole else max(stamp.day for stamp in stamps)
    same = all(s.day == min(day, _days(m)) for s, m in zip(stamps, months, strict=True))
    if not same or any(b <= a for a, b in pairwise(months)):
        return None
    return months, lambda m: last.replace(year=m // 12, month=m % 12 + 1, day=min(day, _days(m)))


def whole_times(stamps: Sequence[Any]) -> list[Any] | None:
    """The times and those missing between them; None if none is missing or they are irregular.

    The time between two steps must be the usual one, or a multiple of it: hours, days, weeks,
    months. Days without weekends are not completed, nor times that would more than double.

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


# The seconds of a cycle, and the fraction of it that has passed at a time.
CYCLES = (
    (86400.0, lambda t: (t.hour * 3600 + t.minute * 60 + t.second) / 86400),
    (7 * 86400.0, lambda t: (t.weekday() + t.hour / 24) / 7),
    (365.25 * 86400.0, lambda t: (t.timetuple().tm_yday - 1 + t.hour / 24) / 365.25),
)


SEEN = 2  # how many times a cycle must be in the data, to be learned


def cycles_of(stamps: Sequence[Any]) -> tuple[int, ...]:
    """Which of `CYCLES` (day, week, year) the times span twice or more, with several steps each."""
    if len(stamps) < 3 or not all(hasattr(stamp, "timetuple") for stamp in (stamps[0], stamps[-1])):
        return ()
    span = (stamps[-1] - stamps[0]).total_seconds()
    gap = _usual_seconds(stamps)
    long = [i for i, (seconds, _) in enumerate(CYCLES) if span >= SEEN * seconds]
    return tuple(i for i in long if 3 * gap <= CYCLES[i][0])


def calendar(stamps: Sequence[Any], cycles: Sequence[int]) -> Array:
    """(T, 4 · cycles): sine and cosine of each cycle, and of its half."""
    parts: list[list[float]] = []
    for i in cycles:
        turn = [2 * math.pi * CYCLES[i][1](stamp) for stamp in stamps]
        parts += [[f(k * t) for t in turn] for k in (1, 2) for f in (math.sin, math.cos)]
    return np.array(parts).reshape(-1, len(stamps)).T


def check_times(stamps: tuple[Any, ...]) -> None:
    """ValueError unless the times increase, each once."""
    for step, (a, b) in enumerate(pairwise(stamps), start=1):
        if a == b:
            raise ValueError(f"series must have one row per time, {b} comes twice (step {step})")
        try:
            later = bool(b > a)
        except TypeError as error:
            raise ValueError(f"series must have comparable times, got {a!r} and {b!r}") from error
        if not later:
            raise ValueError(f"series must be sorted by time, step {step} ({b}) comes before {a}")


def _matching(pattern: str, make: Callable[..., datetime]) -> Callable[[str], datetime]:
    """A reader of times whose whole numbers are the groups of a pattern."""

    def read(cell: str) -> datetime:
        found = re.fullmatch(pattern, cell)
        if found is None:
            raise ValueError(cell)
        return make(*map(int, found.groups()))

    return read


TIMES: tuple[Callable[[str], Any], ...] = (
    _matching(r"((?:1[89]|2[01])\d\d)(\d\d)(\d\d)", datetime),  # 20191231
    float,
    datetime.fromisoformat,
    _matching(r"(\d{4})-(\d\d?)", lambda year, month: datetime(year, month, 1)),
    _matching(r"(\d{4})[- ]?Q([1-4])", lambda year, part: datetime(year, 3 * part - 2, 1)),
    # The Monday of a week; tried if the numbers cannot be months.
    _matching(r"(\d{4})[- ]?W?(\d\d?)", lambda year, week: datetime.fromisocalendar(year, week, 1)),
)


def read_times(found: Sequence[Any]) -> tuple[Any, ...]:
    """Cells as numbers or dates, so that 9 comes before 10; other text as it is.

    ValueError if most cells are dates or numbers and one is not.
    """
    cells = ["" if is_missing(cell) else cell_text(cell) for cell in found]
    for read in TIMES:
        try:
            return tuple(read(cell) for cell in cells)
        except ValueError:
            pass
    for kind in ("number", "date"):
        values, _ = read_numbers(cells, format_of(cells, kind))
        wrong = np.flatnonzero(np.isnan(values))
        if not len(wrong) and kind == "date":
            start = datetime(1970, 1, 1)
            return tuple(start + timedelta(days=float(value)) for value in values)
        if 2 * len(wrong) < len(cells):
            raise ValueError(f"times must be alike, {cells[int(wrong[0])]!r} is not a {kind}")
    return tuple(cells)

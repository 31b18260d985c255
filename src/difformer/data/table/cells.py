"""Cells of a table: numbers and dates in their usual notations, texts, missing. No torch here."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, time, timedelta, timezone
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING = frozenset({"", "na", "n/a", "nan", "nat", "null", "none", "?", "<na>"})
BAD_SHARE = 0.05  # share of a column's cells that may be neither its numbers (or dates) nor missing
FEW_NUMBERS = 10  # up to so many distinct numbers among other texts are codes of a category
MOST_CATEGORIES = 100  # distinct values of a category; with more it is text or an identifier
SAMPLE = 1000  # cells from which a column's format is recognised

Array = NDArray[Any]
Cells = Sequence[Any] | Array


def is_missing(value: Any) -> bool:
    """True for None, NaN, NaT, an empty cell, and the words of `MISSING`."""
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    return type(value).__name__ in ("NAType", "NaTType")


def is_numeric(cells: Cells) -> bool:
    """Whether the cells are an array of numbers, which need not be parsed."""
    return isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf"


def few_bad(bad: int, known: int) -> bool:
    """Whether so few of a column's cells cannot be read that these are taken as empty."""
    return bad <= BAD_SHARE * known


def are_numbers(bad: int, known: int, different: int) -> bool:
    """Whether a column holds numbers or dates: all cells do, or nearly all of many values."""
    return bad == 0 or (few_bad(bad, known) and different > FEW_NUMBERS)


def repeated(names: Iterable[Any]) -> Any:
    """The first name that occurs more than once; None if there is none."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def place(row: int | str, column: str, cell: Any) -> str:
    """A cell as an error names it."""
    return f"row {row}, column {column!r}: {shown(cell)}"


def shown(cell: Any) -> str:
    """The start of a cell, quoted where it is text."""
    return repr(cell[:40] if isinstance(cell, str) else cell)


def bad_cells(count: int | str, kind: str, first: Sequence[str]) -> str:
    """The note on cells that could not be read, and the first of them."""
    return f"{count} not {kind}s, taken as empty ({', '.join(first)})"


def as_number(cell: Any) -> float | None:
    """A number, or a text that is one with a decimal point; a duration in days; else None."""
    if isinstance(cell, bool | np.bool_):
        return None
    if isinstance(cell, timedelta):
        return cell.total_seconds() / 86400
    try:
        return float(cell) if not isinstance(cell, str) or "_" not in cell else None
    except (TypeError, ValueError, OverflowError):
        return None


_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?(?!0+,)\d{1,3}(,\d{3})*(\.\d+)?([eE][+-]?\d+)?")
_SIGNED = re.compile(r"([+-]?)[$€£¥]?\s*(.*?)\s*[$€£¥%]?")  # a price or a percentage
_GROUPS = re.compile(r"(?<=\d)[ \u00a0\u202f'’](?=\d{3}(?!\d))")  # 1 234 567 or 1'234'567


def _separated(pattern: re.Pattern[str], group: str, mark: str) -> Callable[[Any], float | None]:
    """A reader of texts whose thousands are separated by `group` and decimals by `mark`."""

    def read(cell: Any) -> float | None:
        if not isinstance(cell, str):  # a number, whatever the notation of the texts
            return as_number(cell)
        found = _SIGNED.fullmatch(cell.strip())
        text = _GROUPS.sub("", "".join(found.groups())) if found else ""
        if pattern.fullmatch(text):
            return as_number(text.replace(group, "").replace(mark, "."))
        return as_number(text) if mark == "." and text != cell.strip() else None  # $1234.5

    return read


def _iso(cell: Any) -> float | None:
    """Days since 1970 of an ISO date or time, or of a date object; no zone is UTC."""
    text = cell.isoformat() if hasattr(cell, "isoformat") else str(cell).strip()
    if len(text) < 8 or not text[0].isdigit():
        return None
    try:
        return _days(datetime.fromisoformat(text.replace("Z", "+00:00")))
    except (ValueError, OverflowError):
        return None


def _written(pattern: str) -> Callable[[Any], float | None]:
    """A reader of dates of a format, with or without a time of day after a space."""

    def read(cell: Any) -> float | None:
        if hasattr(cell, "isoformat"):  # a date, whatever the notation of the texts
            return _iso(cell)
        day, _, clock = str(cell).strip().partition(" ")
        try:
            moment = datetime.strptime(day, pattern)
            return _days(datetime.combine(moment, time.fromisoformat(clock.strip() or "00:00")))
        except (ValueError, OverflowError):
            return None

    return read


def _month(cell: Any) -> float | None:
    text = str(cell).strip()
    return _written("%Y-%m")(text) if re.fullmatch(r"(1[89]|2[01])\d\d-\d\d", text) else None


def _days(moment: datetime) -> float:
    return moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp() / 86400


NUMBERS: dict[str, Callable[[Any], float | None]] = {
    "1234.5": as_number,
    "1,234.5": _separated(_THOUSANDS, ",", "."),
    "1.234,5": _separated(_COMMA, ".", ","),
}
DATES: dict[str, Callable[[Any], float | None]] = {
    "YYYY-MM-DD": _iso,
    "DD.MM.YYYY": _written("%d.%m.%Y"),
    "DD/MM/YYYY": _written("%d/%m/%Y"),
    "MM/DD/YYYY": _written("%m/%d/%Y"),
    "YYYY/MM/DD": _written("%Y/%m/%d"),
    "DD-MM-YYYY": _written("%d-%m-%Y"),
    "YYYY-MM": _month,
}
FORMATS = NUMBERS | DATES


def read_any(cell: Any) -> float | None:
    """A number or a date in any of its notations; else None."""
    return next((v for read in FORMATS.values() if (v := read(cell)) is not None), None)


PLAIN, THOUSANDS = "1234.5", "1,234.5"


def read_numbers(cells: Cells, written: str, *, strict: bool = False) -> tuple[Array, list[int]]:
    """Cells of one format as float64, NaN where missing, and the positions of those that are bad.

    An infinite number is bad, too. Where thousands have commas, a number without them is good
    unless `strict`. O(cells).
    """
    values = _at_once(cells) if written == PLAIN else None
    if values is not None:
        bad = np.flatnonzero(np.isinf(values)).tolist()
        values[bad] = np.nan
        return values, bad
    read = FORMATS[written]
    values, bad = np.full(len(cells), np.nan), list[int]()
    for i, cell in enumerate(cells):
        if is_missing(cell):
            continue
        number = read(cell)
        if number is None and written == THOUSANDS and not strict:  # 20000 among 1,234.5
            number = as_number(cell)
        if number is None or not math.isfinite(number):
            bad.append(i)
        else:
            values[i] = number
    return values, bad


def _at_once(cells: Cells) -> Array | None:
    """The numbers of an array, or of cells that are all plain numbers or missing; else None."""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64) if is_numeric(cells) else None
    types = {type(cell) for cell in cells}
    try:
        if types <= {int, float, type(None)}:
            return np.array([np.nan if cell is None else cell for cell in cells], np.float64)
        if types != {str} or "_" in "".join(cells):
            return None
        try:
            return np.array(cells, np.float64)
        except ValueError:  # some may be missing
            texts = ["nan" if is_missing(text) else text for text in cells]
            return np.array(texts, np.float64)
    except (ValueError, OverflowError):
        return None


def format_of(cells: Cells, kind: str | None) -> str:
    """The format that reads the most cells; among equals the first."""
    formats = {"number": NUMBERS, "date": DATES}.get(kind or "", FORMATS)
    if formats is not DATES and is_numeric(cells):
        return PLAIN
    some = list(islice((cell for cell in cells if not is_missing(cell)), SAMPLE))
    best, fewest = PLAIN, len(some) + 1
    for name in formats:
        bad = len(read_numbers(some, name, strict=True)[1])
        if bad < fewest:
            best, fewest = name, bad
        if bad == 0:
            break
    return best


def cell_text(cell: Any) -> str:
    """A cell as the text of its category: a whole number is written the same in any type."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()

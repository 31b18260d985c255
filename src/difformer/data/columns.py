"""Columns of a table: typed by what they hold, and turned into numbers.

A column is a number, a date, a category or free text; what is none of these is left out, and the
description says so. Everything is learned in one pass over chunks of rows (never from labels), kept
as JSON and rebuilt from it: no pickle.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta, timezone
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError

__all__ = [
    "KINDS",
    "Column",
    "Numbers",
    "Survey",
    "cell_text",
    "encode_numbers",
    "is_missing",
    "standardise",
]

KINDS = ("number", "date", "category", "text", "skip")

MISSING = frozenset({"", "na", "n/a", "nan", "nat", "null", "none", "?", "<na>"})
MOST_CATEGORIES = 100  # distinct values of a category; above, it is text or an identifier
MOST_WORDS = 2000  # terms kept of a text column, those in the most rows
WORDS_OF_TEXT = 3  # mean words above which many distinct values are free text
BAD_SHARE = 0.05  # a number or date column may have so many cells that are none
FEW_NUMBERS = 10  # up to so many distinct numbers, among other texts, are codes: a category
FARTHEST = 1000.0  # standard deviations from the mean at which values are clipped
SAMPLE = 1000  # cells by which a column's format is recognised

Array = NDArray[Any]
Cells = Sequence[Any] | Array


def is_missing(value: Any) -> bool:
    """True for None, NaN, NaT, an empty cell, and NA, null and the like."""
    if value is None:
        return True
    if isinstance(value, float | np.floating):
        return bool(value != value)
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    return type(value).__name__ in ("NAType", "NaTType")


# --- cells as numbers --------------------------------------------------------------------------


def _plain(cell: Any) -> float | None:
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
    """Reads texts whose thousands are parted by `group` and whose decimals follow `mark`."""

    def read(cell: Any) -> float | None:
        if not isinstance(cell, str):  # a number is one, however texts are written
            return _plain(cell)
        found = _SIGNED.fullmatch(cell.strip())
        text = _GROUPS.sub("", "".join(found.groups())) if found else ""
        if pattern.fullmatch(text):
            return _plain(text.replace(group, "").replace(mark, "."))
        return _plain(text) if mark == "." and text != cell.strip() else None  # $1234.5

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
    """Reads dates of a format, and a time of day after a space."""

    def read(cell: Any) -> float | None:
        if hasattr(cell, "isoformat"):  # a date is one, however texts are written
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
    "1234.5": _plain,
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
PLAIN = "1234.5"


def read_numbers(cells: Cells, written: str) -> tuple[Array, list[int]]:
    """Cells of one format as float64, NaN where missing, and the positions of those that are bad.

    An infinite number is bad, too. O(cells).
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
        if number is None or not math.isfinite(number):
            bad.append(i)
        else:
            values[i] = number
    return values, bad


def _at_once(cells: Cells) -> Array | None:
    """The numbers of an array, or of cells that are all plain numbers or missing; else None."""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64) if cells.dtype.kind in "iuf" else None
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
    """The format that reads the most of some cells; the first of several as good."""
    formats = {"number": NUMBERS, "date": DATES}.get(kind or "", FORMATS)
    if formats is not DATES and isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        return PLAIN
    some = list(islice((cell for cell in cells if not is_missing(cell)), SAMPLE))
    best, fewest = PLAIN, len(some) + 1
    for name in formats:
        bad = len(read_numbers(some, name)[1])
        if bad < fewest:
            best, fewest = name, bad
        if bad == 0:
            break
    return best


def standardise(values: Array, *, clip: bool = True) -> tuple[Array, Array, Array, Array]:
    """Mean, deviation, lowest and highest value to be encoded, for each column of (n, p). O(n p).

    NaN is left out. A few values far outside the range of all others would hide it: where one is
    more than `FARTHEST` widths of the middle 98 % away, values are clipped to one such width
    around them first, unless `clip` is off. A constant column has one value to be encoded,
    whatever comes later.
    """
    p = values.shape[1]
    mean, scale = np.zeros(p), np.ones(p)
    low, high = np.zeros(p), np.zeros(p)
    # Divided first: huge numbers must not overflow in their squares.
    for j, column in enumerate(np.ascontiguousarray(values.T)):
        known = column[~np.isnan(column)] if np.isnan(column).any() else column
        if not len(known):
            continue
        bounds = _usual(known) if clip else None
        known = known if bounds is None else known.clip(*bounds)
        largest = _largest(known)
        unit = known / largest
        middle, spread = float(unit.mean()), float(unit.std())
        mean[j] = low[j] = high[j] = middle * largest
        if spread < 1e-12:
            continue
        scale[j] = spread * largest
        with np.errstate(over="ignore"):  # then no value is too far away
            ends = mean[j] + FARTHEST * scale[j] * np.array([-1.0, 1.0])
        low[j], high[j] = bounds or np.nan_to_num(ends)
    return mean, scale, low, high


def _largest(values: Array) -> float:
    return max(float(np.abs(values).max()), float(np.finfo(np.float64).tiny))


def _usual(values: Array) -> tuple[float, float] | None:
    """The bounds to clip to where some values are far outside the range of all others."""
    largest = _largest(values)
    unit = values / largest
    if not float(np.abs(unit - unit.mean()).max()) > 5 * unit.std():
        return None  # nothing stands out: the usual case, without a sort
    first, middle, last = (float(q) for q in np.quantile(unit, (0.01, 0.5, 0.99)))
    width = last - first
    if not 0 < width < float(np.abs(unit - middle).max()) / FARTHEST:
        return None
    return (first - width) * largest, (last + width) * largest


def encode_numbers(values: Array, columns: Sequence[Column]) -> Array:
    """(m, p) numbers as (m, width): scaled, zero where missing, followed by a flag if learned."""
    learned = [column.learned for column in columns]
    mean, scale, low, high = (
        np.array([one[name] for one in learned]) for name in ("mean", "scale", "low", "high")
    )
    gone = np.isnan(values)
    scaled = np.where(gone, 0.0, (values.clip(low, high) - mean) / scale)
    widths = [column.width for column in columns]
    place = np.cumsum([0, *widths[:-1]]) if widths else np.zeros(0, int)
    flagged = np.flatnonzero(np.array(widths) == 2)
    out = np.zeros((len(values), sum(widths)))
    out[:, place] = scaled
    out[:, place[flagged] + 1] = gone[:, flagged]
    return out


# --- one pass over a column --------------------------------------------------------------------


@dataclass
class Numbers:
    """The numbers of a column: all of them, or beyond `most` an even sample and exact moments."""

    most: int | None = None
    known: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    spread: float = 0.0  # sum of squared distances from the mean
    gone: bool = False  # some are missing
    distinct: Array | None = field(default_factory=lambda: np.zeros(0))
    """The different ones; None where they are more than a category has."""
    _kept: list[Array] = field(default_factory=list[Array])
    _step: int = 1  # one of so many is kept
    _next: int = 0  # how many to pass over before the next that is kept

    def add(self, values: Array) -> None:
        """Take in numbers, NaN where missing."""
        if self.most is None:
            self._kept.append(values)
            return
        gone = np.isnan(values)
        self.gone = self.gone or bool(gone.any())
        values = values[~gone] if gone.any() else values
        if not len(values):
            return
        self._add_moments(values)
        if self.distinct is not None:
            self.distinct = np.union1d(self.distinct, values)
            if len(self.distinct) > MOST_CATEGORIES:
                self.distinct = None
        self._kept.append(values[self._next :: self._step].copy())
        self._next = (self._next - len(values)) % self._step
        if sum(map(len, self._kept)) > 2 * self.most:
            sample = np.concatenate(self._kept)
            # The next to be kept is `_next` numbers away from the end; half of the others go.
            self._next += self._step * (len(sample) % 2)
            self._step *= 2
            self._kept = [sample[::2]]

    def _add_moments(self, values: Array) -> None:
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = float(values.mean())
            spread = float(np.square(values - mean).sum())
            total, away = self.known + len(values), mean - self.mean
            self.spread += spread + away * away * self.known * len(values) / total
            self.mean += away * len(values) / total
        self.known = total

    def sample(self) -> Array:
        """All numbers, with NaN where missing, or the sample without."""
        return np.concatenate(self._kept) if self._kept else np.zeros(0)

    @property
    def empty(self) -> bool:
        """Whether all are missing."""
        return not self.known if self.most is not None else bool(np.isnan(self.sample()).all())

    @property
    def missing(self) -> bool:
        """Whether some are missing."""
        return self.gone if self.most is not None else bool(np.isnan(self.sample()).any())

    def unique(self) -> Array:
        """The different numbers, in order; of a sample where they are many."""
        if self.distinct is not None and self.most is not None:
            return self.distinct
        numbers = self.sample()
        return np.unique(numbers[~np.isnan(numbers)])

    def scale(self) -> tuple[float, float, float, float]:
        """Mean, deviation, lowest and highest value to be encoded, as `standardise` has them."""
        sample = self.sample()
        mean, scale, low, high = (float(v[0]) for v in standardise(sample[:, None]))
        if self.known <= len(sample) or not math.isfinite(self.spread) or self.low == self.high:
            return mean, scale, low, high
        bounds = _usual(np.concatenate([sample, [self.low, self.high]]))
        if bounds is not None:  # a few values are far outside: the sample says what is usual
            mean, scale, _, _ = (float(v[0]) for v in standardise(sample.clip(*bounds)[:, None]))
            return mean, scale, *bounds
        scale = math.sqrt(self.spread / self.known)
        return self.mean, scale, self.mean - FARTHEST * scale, self.mean + FARTHEST * scale


@dataclass
class Survey:
    """What one pass over a column's cells finds; eight bytes per cell, and bounded texts.

    With `most` no more than twice so many numbers are held; see `Numbers`.
    """

    name: str
    cells: int = 0
    missing: int = 0
    written: str = ""  # the format of its numbers or dates, by its first rows
    most: int | None = None
    infinite: int = 0
    bad: int = 0  # cells that are neither missing nor of that format
    first_bad: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    words: int = 0
    distinct: Counter[str] = field(default_factory=Counter[str])
    terms: Counter[str] = field(default_factory=Counter[str])
    overflow: bool = False  # more distinct values than a category may have
    given: str | None = None  # the kind that is asked for, or that the column's type says

    def __post_init__(self) -> None:
        self.numbers = Numbers(self.most)

    def add(self, cells: Cells, start: int) -> None:
        """Take in the cells of one chunk whose first is row `start`."""
        self.written = self.written or format_of(cells, self.given)
        values, bad = read_numbers(cells, self.written)
        self.numbers.add(values)
        self.cells += len(cells)
        self.missing += int(np.isnan(values).sum()) - len(bad)
        self._take_bad([(start + i, cells[i]) for i in bad])
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
            self.overflow = True  # numbers by their type: nothing else has to be known
            return
        for first in range(0, len(cells), SAMPLE):
            if self.overflow:
                break
            texts = (cell_text(c) for c in cells[first : first + SAMPLE] if not is_missing(c))
            self.distinct.update(texts)
            self.overflow = len(self.distinct) > MOST_CATEGORIES

    def _take_bad(self, bad: list[tuple[int, Any]]) -> None:
        self.first_bad += bad[: 3 - len(self.first_bad)]
        for _, cell in bad:
            number = _plain(cell)
            if number is not None and math.isinf(number):
                self.infinite += 1
                continue
            self.bad += 1
            found = _words(str(cell).strip())
            self.words += len(found)
            self.terms.update(set(found))
        if len(self.terms) > 50 * MOST_WORDS:  # keep the memory of a long table bounded
            self.terms = Counter(dict(self.terms.most_common(10 * MOST_WORDS)))

    def kind(self) -> tuple[str, str]:
        """What the column is, and in a few words why."""
        known = self.cells - self.missing
        if known == 0:
            return "skip", "empty"
        few = self.numbers.unique()
        same = len(few) == 1 if not self.bad else not len(few) and len(self.distinct) == 1
        if same and not self.missing and not self.infinite:
            return "skip", "the same in every row"
        if self.given is not None:
            return self.given, "by its type"
        mostly = self.bad <= BAD_SHARE * known and len(few) > FEW_NUMBERS
        if self.bad == 0 or mostly:
            return ("date" if self.written in DATES else "number"), f"written {self.written}"
        if not self.overflow and 2 * len(self.distinct) <= max(known, 4):
            return "category", f"{len(self.distinct)} values"
        if self.words / self.bad >= WORDS_OF_TEXT:
            return "text", f"{self.words / self.bad:.0f} words per row"
        return "skip", "an identifier: almost every row has its own value"

    def column(self, kind: str | None = None) -> Column:
        """The column ready to encode cells, of its own kind or of the one asked for."""
        own, reason = self.kind()
        kind, reason = (own, reason) if kind is None else (kind, "as asked for")
        learned: dict[str, Any] = {}
        if kind in ("number", "date"):
            learned = self._number(kind)
        elif kind == "category":
            if self.overflow and not self.distinct:  # numbers by their type
                self.distinct.update(cell_text(v) for v in self.numbers.unique().tolist())
            if len(self.distinct) > MOST_CATEGORIES:
                raise DataError(
                    f"column {self.name!r} must have at most {MOST_CATEGORIES} different values "
                    "to be a category"
                )
            learned = {"values": sorted(self.distinct)}
        elif kind == "text":
            kept = sorted(t for t, c in self.terms.most_common(MOST_WORDS) if c >= 2)
            rows = max(self.cells, 1)
            # scikit-learn's smooth idf, from the same counts it would make.
            idf = [math.log((1 + rows) / (1 + self.terms[t])) + 1 for t in kept]
            if not kept:
                kind, reason = "skip", "no word stands in two rows"
            learned = {"terms": kept, "idf": idf}
        bad: tuple[str, ...] = ()
        if kind in ("number", "date") and self.first_bad:
            count = self.bad + self.infinite
            bad = (str(count), *(f"row {row}: {str(cell)[:40]!r}" for row, cell in self.first_bad))
        return Column(self.name, kind, reason, self.missing, learned, bad)

    def _number(self, kind: str) -> dict[str, Any]:
        if self.numbers.empty:
            if not self.first_bad:
                raise DataError(f"column {self.name!r} must hold a {kind}, it is empty")
            row, cell = self.first_bad[0]
            raise DataError(f"row {row}, column {self.name!r}: {cell!r} is not a {kind}")
        mean, scale, low, high = self.numbers.scale()
        learned = {"mean": mean, "scale": scale, "low": low, "high": high}
        return {**learned, "flag": self.numbers.missing, "written": self.written}


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers; `learned` is plain data."""

    name: str
    kind: str
    reason: str
    missing: int
    learned: Mapping[str, Any]
    bad: tuple[str, ...] = ()  # how many cells could not be read, and the first of them

    @property
    def width(self) -> int:
        """How many numbers a cell becomes."""
        if self.kind in ("number", "date"):
            return 1 + bool(self.learned["flag"])
        if self.kind == "category":
            return len(self.learned["values"])
        return len(self.learned["terms"]) if self.kind == "text" else 0

    def describe(self) -> tuple[str, str, str]:
        """Name, kind and treatment, for the table shown before training."""
        written = "" if self.learned.get("written") in (None, PLAIN) else self.learned["written"]
        treatment = {
            "number": "scaled" + (f", written {written}" if written else ""),
            "date": f"days since 1970-01-01, scaled, written {written}",
            "category": f"{self.width} indicator columns",
            "text": f"TF-IDF of {self.width} words",
            "skip": f"left out: {self.reason}",
        }[self.kind]
        if self.missing and self.kind in ("number", "date"):
            treatment += f"; {self.missing} empty: the mean, and a flag"
        if self.bad:
            what = "dates" if self.kind == "date" else "numbers"
            treatment += f"; {self.bad[0]} not {what}, taken as empty ({', '.join(self.bad[1:])})"
        return self.name, self.kind, treatment

    def encode(self, cells: Cells, start: int, *, strict: bool = True) -> Any:
        """(m, width) numbers: an array, or a sparse matrix for text.

        Cells that cannot be read are an error, or missing where not `strict`.
        """
        if self.kind in ("number", "date"):
            values, bad = read_numbers(cells, self.learned["written"])
            if bad and strict:
                what = "date" if self.kind == "date" else "finite number"
                written = f", written {self.learned['written']} in training"
                raise DataError(
                    f"{self._where(start + bad[0], cells[bad[0]])} is not a {what}{written}"
                )
            return encode_numbers(values[:, None], (self,))
        texts = ["" if is_missing(c) else cell_text(c) for c in cells]
        if self.kind == "category":
            return _one_hot(self.learned["values"]).transform(np.array(texts, object)[:, None])
        return _tfidf(self.learned["terms"], self.learned["idf"]).transform(texts)

    def unreadable(self, cells: Cells, start: int) -> list[str]:
        """The cells that are no number or date though training had such, by row and column.

        DataError where more than a few are none: the column is written in another way.
        """
        if self.kind not in ("number", "date"):
            return []
        bad = read_numbers(cells, self.learned["written"])[1]
        if len(bad) > BAD_SHARE * len(cells):
            self.encode(cells, start)
        return [self._where(start + i, cells[i]) for i in bad]

    def _where(self, row: int, cell: Any) -> str:
        return f"row {row}, column {self.name!r}: {cell!r}"

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return {
            "name": self.name,
            "kind": self.kind,
            "reason": self.reason,
            "missing": self.missing,
            "learned": dict(self.learned),
            "bad": list(self.bad),
        }

    @classmethod
    def from_json(cls, record: Any) -> Column:
        """The column that `to_json` wrote; DataError where it is not one."""
        try:
            known: dict[str, Any] = {**record, "bad": tuple(record["bad"])}
            column = cls(**known)
            learned = column.learned
            good = column.kind in KINDS and isinstance(column.name, str)
            if column.kind in ("number", "date"):
                figures = [learned[name] for name in ("mean", "scale", "low", "high")]
                good = good and all(math.isfinite(v) for v in figures) and learned["scale"] > 0
                good = good and learned["written"] in FORMATS and isinstance(learned["flag"], bool)
            if column.kind == "text":
                good = good and len(learned["terms"]) == len(learned["idf"]) > 0
                good = good and all(math.isfinite(v) for v in learned["idf"])
            if column.kind == "category":
                good = good and all(isinstance(v, str) for v in learned["values"])
            if not good:
                raise ValueError(f"column {column.name!r} is not whole")
            return column
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(f"not a column: {error}") from error


def cell_text(cell: Any) -> str:
    """A cell as the text of its category: a whole number is written the same in any type."""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


_analyse: Any = None


def _words(text: str) -> list[str]:
    global _analyse
    if _analyse is None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        _analyse = TfidfVectorizer().build_analyzer()
    return _analyse(text)


def _one_hot(values: Sequence[str]) -> Any:
    from sklearn.preprocessing import OneHotEncoder

    # A value not seen in training gets zeros in all of the columns.
    known: Any = [np.array(values, object)]
    encoder = OneHotEncoder(categories=known, handle_unknown="ignore", sparse_output=False)
    return encoder.fit(np.array([[values[0]]], object))


def _tfidf(terms: Sequence[str], idf: Sequence[float]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(vocabulary=list(terms))
    vectorizer.idf_ = np.array(idf)
    return vectorizer

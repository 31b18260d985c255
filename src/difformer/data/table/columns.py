"""Scaling of numbers of any size, with a few far outside the range of the others. No torch here.

From all numbers of a column, or beyond a bound from an even sample and exact moments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from difformer.data.table.cells import (
    DATES,
    FEW_NUMBERS,
    FORMATS,
    MOST_CATEGORIES,
    PLAIN,
    SAMPLE,
    Array,
    Cells,
    are_numbers,
    as_number,
    bad_cells,
    cell_text,
    few_bad,
    format_of,
    is_missing,
    is_numeric,
    place,
    read_numbers,
    shown,
)
from difformer.errors import DataError
from difformer.files import MISREAD, reason_of

FARTHEST = 1000.0  # standard deviations from the mean at which values are clipped
RARE = 1e-5  # share of new values, like the known ones, that may lie outside the usual range
GROWN = 8.0  # times the farthest distance from the median, beyond which no new value is usual


def standardise(values: Array, *, clip: bool = True) -> tuple[Array, Array, Array, Array]:
    """Mean, deviation, lowest and highest value to be encoded, for each column of (n, p). O(n p).

    NaN is ignored. A few values far outside the range of all others would dominate the deviation:
    if one is more than `FARTHEST` times the width of the middle 98 % away from the median, values
    are first clipped to that middle and one width on either side, unless `clip` is off. A constant
    column is always encoded as that constant.
    """
    p = values.shape[1]
    mean, scale = np.zeros(p), np.ones(p)
    low, high = np.zeros(p), np.zeros(p)
    least = 1e-12 if clip else 1e-15  # of a column that varies: labels keep all digits
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
        if spread < least:
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


def usual_range(values: Array, *, least: float = 2.0) -> tuple[float, ...]:
    """Lowest and highest of (n,) values, and two bounds that others like them hardly cross. O(n).

    Seen from the median m, the upper bound lies as far beyond the highest value h as the tail has
    grown from the tenth highest value t, so that heavy tails have wide bounds:

        m + (h - m) g,  g = ((h - m) / (t - m))^e from `least` to `GROWN`,  e = -log10(RARE n) >= 1,

    and likewise the lower one. With less than 100 values t is the one at a tenth. A tail of less
    than ten values says nothing: it has no bound. () for a constant or less than 20 values.
    """
    n = len(values)
    k = min(10, n // 10)
    if k < 2 or values.min() == values.max():
        return ()
    places = [0, k - 1, n // 2, n - k, n - 1]
    low, near_low, middle, near_high, high = np.partition(values, places)[places]
    power, least = max(1.0, -math.log(RARE * n) / math.log(k)), least * (1 + 20 / n)
    bounds: list[float] = []
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for end, near, other in ((low, near_low, high), (high, near_high, low)):
            tail = end - middle
            if tail:
                grown = min(GROWN, (tail / (near - middle)) ** power)
                bound = middle + tail * (max(least, grown) if near != middle else math.inf)
            else:  # at least half of the values are this one
                bound = end + (least - 1) * (end - other)
            bounds.append(float(np.nan_to_num(bound)))
    return float(low), float(high), *bounds


@dataclass
class Numbers:
    """The numbers of a column: all of them, or beyond 2 `most` an even sample; exact moments."""

    most: float = math.inf
    known: int = 0
    low: float = math.inf
    high: float = -math.inf
    mean: float = 0.0
    spread: float = 0.0  # sum of squared distances from the mean
    missing: bool = False  # whether some are
    distinct: Array | None = field(default_factory=lambda: np.zeros(0))
    """The different ones; None if they are more than a category may have."""
    _kept: list[Array] = field(default_factory=list[Array])
    _step: int = 1  # every `_step`-th number is kept
    _next: int = 0  # how many to skip before the next that is kept

    def add(self, values: Array) -> None:
        """Take in numbers, NaN where missing."""
        gone = np.isnan(values)
        self.missing = self.missing or bool(gone.any())
        values = values[~gone]
        if not len(values):
            return
        self._add_moments(values)
        if self.distinct is not None:
            self.distinct = np.union1d(self.distinct, values)
            if len(self.distinct) > MOST_CATEGORIES:
                self.distinct = None
        self._kept.append(values[self._next :: self._step])
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
        """All numbers that are not missing, or a sample of them."""
        return np.concatenate(self._kept) if self._kept else np.zeros(0)

    def seen(self, least: float) -> tuple[float, ...]:
        """What `usual_range` says of them."""
        sample = self.sample()
        if self.known > len(sample):
            sample = np.concatenate([sample, [self.low, self.high]])
        return usual_range(sample, least=least)

    def scale(self) -> tuple[float, float, float, float]:
        """Mean, deviation, lowest and highest value to be encoded, as `standardise` has them."""
        sample = self.sample()
        mean, scale, low, high = (float(v[0]) for v in standardise(sample[:, None]))
        if self.known <= len(sample) or not math.isfinite(self.spread) or self.low == self.high:
            return mean, scale, low, high
        bounds = _usual(np.concatenate([sample, [self.low, self.high]]))
        if bounds is not None:  # a few values are far outside: only the sample is clipped
            mean, scale, _, _ = (float(v[0]) for v in standardise(sample.clip(*bounds)[:, None]))
            return mean, scale, *bounds
        scale = math.sqrt(self.spread / self.known)
        return self.mean, scale, self.mean - FARTHEST * scale, self.mean + FARTHEST * scale


KINDS = ("number", "date", "category", "text", "skip")

MOST_WORDS = 2000  # terms kept of a text column, those in the most rows
WORDS_OF_TEXT = 3  # mean words above which many distinct values are free text
LEAST = {"number": 2.0, "date": 1.2}  # see `usual_range`: time goes on, but not by years

Away = dict[str, Array]
"""How far the cells of each column are from all that was seen: 0 for none, NaN where missing."""


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


@dataclass
class Survey:
    """What one pass over a column's cells finds, in eight bytes per cell and bounded texts.

    With `most`, at most 2 `most` numbers are held at once; see `Numbers`.
    """

    name: str
    cells: int = 0
    missing: int = 0
    written: str = ""  # the format of its numbers or dates, from its first rows
    most: float = math.inf
    infinite: int = 0
    bad: int = 0  # cells that are neither missing nor of that format
    first_bad: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    words: int = 0
    distinct: Counter[str] = field(default_factory=Counter[str])
    terms: Counter[str] = field(default_factory=Counter[str])
    overflow: bool = False  # more distinct values than a category may have
    given: str | None = None  # the kind that is asked for, or that follows from the column's type
    counts: bool = True  # whether its cells are 0, 1, 2, ... or 1, 2, 3, ... so far

    def __post_init__(self) -> None:
        self.numbers = Numbers(self.most)
        self._first = math.nan

    def add(self, cells: Cells, start: int) -> None:
        """Take in the cells of one chunk whose first is row `start`."""
        self.written = self.written or format_of(cells, self.given)
        values, bad = read_numbers(cells, self.written)
        self.numbers.add(values)
        if self.counts and len(values):
            self._first = float(values[0]) if not self.cells else self._first
            here = self._first + self.cells + np.arange(len(values))
            self.counts = self._first in (0.0, 1.0) and np.array_equal(values, here)
        self.cells += len(cells)
        self.missing += int(np.isnan(values).sum()) - len(bad)
        self._take_bad([(start + i, cells[i]) for i in bad])
        if is_numeric(cells):
            self.overflow = True  # numbers by their type: no texts to count
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
            number = as_number(cell)
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
        """The kind of the column, and the reason in a few words."""
        known = self.cells - self.missing
        if known == 0:
            return "skip", "empty"
        few = self.numbers.distinct
        different = MOST_CATEGORIES + 1 if few is None else len(few)
        same = different == 1 if not self.bad else not different and len(self.distinct) == 1
        if same and not self.missing and not self.infinite:
            return "skip", "the same in every row"
        if self.counts and known > FEW_NUMBERS:
            return "skip", "it counts the rows"
        if self.given is not None:
            return self.given, "by its type"
        if are_numbers(self.bad, known, different):
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
            learned = {"values": self._categories()}
        elif kind == "text":
            kept = sorted(t for t, c in self.terms.most_common(MOST_WORDS) if c >= 2)
            # scikit-learn's smooth idf, from the same counts it would make.
            idf = [math.log((1 + self.cells) / (1 + self.terms[t])) + 1 for t in kept]
            if not kept:
                kind, reason = "skip", "no word occurs in two rows"
            learned = {"terms": kept, "idf": idf}
        bad: tuple[str, ...] = ()
        if kind in ("number", "date") and self.first_bad:
            count = self.bad + self.infinite
            bad = (str(count), *(f"row {row}: {shown(cell)}" for row, cell in self.first_bad))
        seen = self.numbers.seen(LEAST[kind]) if kind in LEAST else ()
        return Column(self.name, kind, reason, self.missing, learned, bad, self.cells, seen)

    def _categories(self) -> list[str]:
        numbers = self.numbers.distinct
        if self.overflow and not self.distinct and numbers is not None:  # numbers by their type
            return sorted(cell_text(number) for number in numbers.tolist())
        if self.overflow:
            raise DataError(
                f"column {self.name!r} must have at most {MOST_CATEGORIES} different values "
                "to be a category"
            )
        return sorted(self.distinct)

    def _number(self, kind: str) -> dict[str, Any]:
        if not self.numbers.known:
            if not self.first_bad:
                raise DataError(f"column {self.name!r} must hold a {kind}, it is empty")
            row, cell = self.first_bad[0]
            raise DataError(f"{place(row, self.name, cell)} is not a {kind}")
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
    # For the check of new cells; without it in files of earlier versions.
    rows: int = field(default=0, compare=False)
    seen: tuple[float, ...] = field(default=(), compare=False)  # see `usual_range`

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
            treatment += "; " + bad_cells(self.bad[0], self.kind, self.bad[1:])
        return self.name, self.kind, treatment

    def encode(
        self, cells: Cells, start: int, *, strict: bool = True, away: Away | None = None
    ) -> Any:
        """(m, width) numbers: an array, or a sparse matrix for text.

        Cells that cannot be read are an error, or missing where not `strict`. With `away`, cells
        that are missing or unlike all of training are put there.
        """
        if self.kind in ("number", "date"):
            values, bad = read_numbers(cells, self.learned["written"])
            if bad and strict:
                what = "date" if self.kind == "date" else "finite number"
                written = f", written {self.learned['written']} in training"
                where = place(start + bad[0], self.name, cells[bad[0]])
                raise DataError(f"{where} is not a {what}{written}")
            self.watch(values, away)
            return encode_numbers(values[:, None], (self,))
        texts = ["" if is_missing(c) else cell_text(c) for c in cells]
        self.watch(texts, away)
        if self.kind == "category":
            return _one_hot(self.learned["values"]).transform(np.array(texts, object)[:, None])
        return _tfidf(self.learned["terms"], self.learned["idf"]).transform(texts)

    def watch(self, read: Array | Sequence[str], away: Away | None) -> None:
        """Put the distances of cells, read as numbers or texts, into `away`, unless all are 0."""
        if away is None:
            return
        if isinstance(read, np.ndarray):
            found = np.where(np.isnan(read), np.nan, 0.0)
            if self.seen:
                low, high, first, last = self.seen
                odd = (read < first) | (read > last)
                with np.errstate(over="ignore", invalid="ignore"):
                    found[odd] = np.maximum(low - read[odd], read[odd] - high) / (high - low)
        else:
            known = {"": math.nan, **dict.fromkeys(self.learned.get("values", ()), 0.0)}
            unknown = math.inf if self.kind == "category" else 0.0
            found = np.array([known.get(text, unknown) for text in read])
        if found.any():  # NaN counts
            away[self.name] = found

    def unreadable(self, cells: Cells, start: int) -> list[str]:
        """The cells that are not numbers or dates as in training, by row and column.

        DataError where they are more than a few: the column is written in another way.
        """
        if self.kind not in ("number", "date"):
            return []
        bad = read_numbers(cells, self.learned["written"])[1]
        if not few_bad(len(bad), len(cells)):
            self.encode(cells, start)
        return [place(start + i, self.name, cells[i]) for i in bad]

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        lists = {"bad": list(self.bad), "seen": list(self.seen)}
        return {**vars(self), "learned": dict(self.learned), **lists}

    @classmethod
    def from_json(cls, record: Any) -> Column:
        """The column that `to_json` wrote; DataError where it is not one."""
        try:
            seen = tuple(float(bound) for bound in record.get("seen", ()))
            known: dict[str, Any] = {**record, "bad": tuple(record["bad"]), "seen": seen}
            column = cls(**known)
            learned = column.learned
            good = column.kind in KINDS and isinstance(column.name, str)
            good = good and type(column.rows) is int and len(seen) in (0, 4)
            good = good and all(map(math.isfinite, seen)) and (not seen or seen[0] < seen[1])
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
        except MISREAD as error:
            raise DataError(f"not a column: {reason_of(error)}") from error


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

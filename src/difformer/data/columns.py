"""Columns of a table: typed by what they hold, and turned into numbers.

A column is a number, a date, a category or free text; any other is left out, and the description
says so. All is learned in one pass over chunks of rows (never from labels) and saved as JSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from difformer.data.cells import (
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
from difformer.data.scales import Numbers
from difformer.errors import DataError
from difformer.files import MISREAD, reason_of

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

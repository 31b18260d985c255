"""Columns: surveyed in one pass, typed, and turned into numbers. No torch here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
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
from difformer.data.table.scales import FIGURES, Numbers
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
    mean, scale, low, high = (
        np.array([column.learned[name] for column in columns]) for name in FIGURES
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


class Survey:
    """What one pass over a column's cells finds, in eight bytes per cell and bounded texts.

    With `most`, at most 2 `most` numbers are held at once; see `Numbers`. `given` is the kind that
    is asked for, or that follows from the column's type.
    """

    def __init__(self, name: str, given: str | None = None, most: float = math.inf) -> None:
        self.name, self.given = name, given
        self.numbers = Numbers(most)
        self.cells = self.missing = 0
        self.written = ""  # the format of its numbers or dates, from its first rows
        self.counts = True  # whether its cells are 0, 1, 2, ... or 1, 2, 3, ... so far
        self._first = math.nan
        self._bad = self._infinite = 0  # cells that are neither missing nor of that format
        self._first_bad: list[str] = []
        self._words, self._terms = 0, Counter[str]()  # of those that are not numbers
        self._texts: set[str] = set()
        self._overflow = False  # more different texts than a category may have, or only numbers

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
        for i in bad:
            self._take_bad(start + i, cells[i])
        if len(self._terms) > 50 * MOST_WORDS:  # keep the memory of a long table bounded
            self._terms = Counter(dict(self._terms.most_common(10 * MOST_WORDS)))
        self._overflow = self._overflow or is_numeric(cells)  # by their type: no texts to count
        for first in range(0, len(cells), SAMPLE):
            if self._overflow:
                break
            some = cells[first : first + SAMPLE]
            self._texts.update(cell_text(cell) for cell in some if not is_missing(cell))
            self._overflow = len(self._texts) > MOST_CATEGORIES

    def _take_bad(self, row: int, cell: Any) -> None:
        if len(self._first_bad) < 3:
            self._first_bad.append(f"row {row}: {shown(cell)}")
        number = as_number(cell)
        if number is not None and math.isinf(number):
            self._infinite += 1
            return
        self._bad += 1
        found = _analyser()(str(cell).strip())
        self._words += len(found)
        self._terms.update(set(found))

    def kind(self) -> tuple[str, str]:
        """The kind of the column, and the reason in a few words."""
        known, bad, texts = self.cells - self.missing, self._bad, len(self._texts)
        if known == 0:
            return "skip", "empty"
        few = self.numbers.distinct
        different = MOST_CATEGORIES + 1 if few is None else len(few)
        same = different == 1 if not bad else not different and texts == 1
        if same and not self.missing and not self._infinite:
            return "skip", "the same in every row"
        if self.counts and known > FEW_NUMBERS:
            return "skip", "it counts the rows"
        if self.given is not None:
            return self.given, "by its type"
        if are_numbers(bad, known, different):
            return ("date" if self.written in DATES else "number"), f"written {self.written}"
        if not self._overflow and 2 * texts <= max(known, 4):
            return "category", f"{texts} values"
        if self._words / bad >= WORDS_OF_TEXT:
            return "text", f"{self._words / bad:.0f} words per row"
        return "skip", "an identifier: almost every row has its own value"

    def column(self, kind: str | None = None) -> Column:
        """The column ready to encode cells, of its own kind or of the one asked for."""
        kind, reason = self.kind() if kind is None else (kind, "as asked for")
        learned: dict[str, Any] = {}
        bad: tuple[str, ...] = ()
        seen: tuple[float, ...] = ()
        if kind in LEAST:
            if not self.numbers.known:
                told = f"column {self.name!r} must hold a {kind}, it is empty"
                if self._first_bad:
                    row, _, cell = self._first_bad[0].partition(": ")
                    told = f"{row}, column {self.name!r}: {cell} is not a {kind}"
                raise DataError(told)
            flag = {"flag": self.numbers.missing, "written": self.written}
            learned, seen = {**self.numbers.scale(), **flag}, self.numbers.seen(LEAST[kind])
            if self._first_bad:
                bad = (str(self._bad + self._infinite), *self._first_bad)
        elif kind == "category":
            learned = {"values": self._categories()}
        elif kind == "text":
            kept = sorted(t for t, c in self._terms.most_common(MOST_WORDS) if c >= 2)
            # scikit-learn's smooth idf, from the same counts it would make.
            idf = [math.log((1 + self.cells) / (1 + self._terms[t])) + 1 for t in kept]
            if not kept:
                kind, reason = "skip", "no word occurs in two rows"
            learned = {"terms": kept, "idf": idf}
        return Column(self.name, kind, reason, self.missing, learned, bad, self.cells, seen)

    def _categories(self) -> list[str]:
        numbers = self.numbers.distinct
        if self._overflow and not self._texts and numbers is not None:  # numbers by their type
            return sorted(cell_text(number) for number in numbers.tolist())
        if self._overflow:
            raise DataError(
                f"column {self.name!r} must have at most {MOST_CATEGORIES} different values "
                "to be a category"
            )
        return sorted(self._texts)


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
        if self.kind in LEAST:
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
        if self.missing and self.kind in LEAST:
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
        if self.kind in LEAST:
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
            # A value not seen in training gets zeros in all of the columns.
            known = np.array(self.learned["values"], object)
            return (np.array(texts, object)[:, None] == known).astype(np.float64)
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
        if self.kind not in LEAST:
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
            good = [column.kind in KINDS, isinstance(column.name, str), type(column.rows) is int]
            good += [len(seen) in (0, 4), not seen or seen[0] < seen[1]]
            figures = list(seen)
            if column.kind in LEAST:
                figures += [learned[name] for name in FIGURES]
                good += [learned["scale"] > 0, learned["written"] in FORMATS]
                good += [isinstance(learned["flag"], bool)]
            if column.kind == "text":
                figures += learned["idf"]
                good += [len(learned["terms"]) == len(learned["idf"]) > 0]
            if column.kind == "category":
                good += [isinstance(value, str) for value in learned["values"]]
            if not (all(good) and all(map(math.isfinite, figures))):
                raise ValueError(f"column {column.name!r} is not whole")
            return column
        except MISREAD as error:
            raise DataError(f"not a column: {reason_of(error)}") from error


@cache
def _analyser() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer().build_analyzer()


def _tfidf(terms: Sequence[str], idf: Sequence[float]) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(vocabulary=list(terms))
    vectorizer.idf_ = np.array(idf)
    return vectorizer

"""Columns of a table: typed by what they hold, and turned into numbers by scikit-learn.

A column is a number, a date, a category or free text; what is none of these is left out, and said
so. Everything is learned in one pass over chunks of rows (never from labels), kept as JSON, and
rebuilt from it: no pickle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError

__all__ = ["KINDS", "Column", "Survey", "is_missing"]

KINDS = ("number", "date", "category", "text", "left out")

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
MOST_CATEGORIES = 100  # distinct values of a category; above, it is text or an identifier
MOST_WORDS = 2000  # terms kept of a text column, those in the most rows
WORDS_OF_TEXT = 3  # mean words above which many distinct values are free text

Array = NDArray[Any]


def is_missing(value: Any) -> bool:
    """True for None, NaN, an empty cell, and NA, null and the like."""
    if value is None:
        return True
    if isinstance(value, float):
        return value != value
    return isinstance(value, str) and value.strip().lower() in MISSING


@dataclass
class Survey:
    """What one pass over a column's cells finds; O(distinct values) memory, bounded."""

    name: str
    cells: int = 0
    missing: int = 0
    numbers: int = 0
    dates: int = 0
    words: int = 0
    texts: int = 0
    distinct: Counter[str] = field(default_factory=Counter[str])
    terms: Counter[str] = field(default_factory=Counter[str])
    overflow: bool = False  # more distinct values than a category may have
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])  # count, mean, M2
    infinite: tuple[int, Any] | None = None
    first_text: tuple[int, Any] | None = None

    def add(self, cells: Sequence[Any], start: int) -> None:
        """Take in the cells of one chunk whose first is row `start`."""
        for offset, cell in enumerate(cells):
            self.cells += 1
            if is_missing(cell):
                self.missing += 1
                continue
            number = _number(cell)
            if number is None and isinstance(cell, str) and (number := _date(cell)) is not None:
                self.dates += 1
            elif number is not None:
                self.numbers += 1
                if math.isinf(number) and self.infinite is None:
                    self.infinite = (start + offset, cell)
            elif self.first_text is None:
                self.first_text = (start + offset, cell)
            if number is not None and math.isfinite(number):
                self._moment(number)
            text = str(cell).strip()
            if not self.overflow:
                self.distinct[text] += 1
                self.overflow = len(self.distinct) > MOST_CATEGORIES
            if number is None:
                self.texts += 1
                found = _words(text)
                self.words += len(found)
                self.terms.update(set(found))
        if len(self.terms) > 50 * MOST_WORDS:  # keep the memory of a long table bounded
            self.terms = Counter(dict(self.terms.most_common(10 * MOST_WORDS)))

    def _moment(self, number: float) -> None:
        self.sums[0] += 1
        delta = number - self.sums[1]
        self.sums[1] += delta / self.sums[0]
        self.sums[2] += delta * (number - self.sums[1])

    def kind(self) -> tuple[str, str]:
        """What the column is, and in a few words why."""
        known = self.cells - self.missing
        if known == 0:
            return "left out", "empty"
        if not self.overflow and len(self.distinct) == 1 and not self.missing:
            return "left out", "the same in every row"
        if self.numbers == known:
            return "number", f"mean {self.sums[1]:.4g}"
        if self.dates == known:
            return "date", "days since 1970-01-01"
        if not self.overflow and 2 * len(self.distinct) <= max(known, 4):
            return "category", f"{len(self.distinct)} values"
        if self.texts and self.words / self.texts >= WORDS_OF_TEXT:
            return "text", f"{self.words / self.texts:.0f} words a row"
        return "left out", "an identifier: almost every row has its own value"

    def column(self, kind: str | None = None) -> Column:
        """The column ready to encode cells, of its own kind or of the one asked for."""
        own, reason = self.kind()
        kind = kind or own
        if kind not in KINDS:
            raise ValueError(f"kind of {self.name!r} must be one of {', '.join(KINDS)}: {kind!r}")
        if kind == "number" and self.infinite is not None:
            row, cell = self.infinite
            raise DataError(f"row {row}, column {self.name!r}: {cell!r} is not finite")
        if kind == "number" and self.first_text is not None:
            row, cell = self.first_text
            raise DataError(f"row {row}, column {self.name!r}: {cell!r} is not a number")
        learned: dict[str, Any] = {}
        if kind in ("number", "date"):
            spread = math.sqrt(self.sums[2] / max(self.sums[0], 1.0))
            learned = {"mean": self.sums[1], "scale": spread if spread > 0 else 1.0}
            learned["flag"] = self.missing > 0
        elif kind == "category":
            learned = {"values": sorted(self.distinct)}
        elif kind == "text":
            kept = sorted(t for t, c in self.terms.most_common(MOST_WORDS) if c >= 2)
            rows = max(self.cells, 1)
            # scikit-learn's smooth idf, from the same counts it would make.
            idf = [math.log((1 + rows) / (1 + self.terms[t])) + 1 for t in kept]
            if not kept:
                kind, reason = "left out", "no word stands in two rows"
            learned = {"terms": kept, "idf": idf}
        return Column(self.name, kind, reason, self.missing, learned)


@dataclass(frozen=True)
class Column:
    """How one column becomes numbers; `learned` is plain data."""

    name: str
    kind: str
    reason: str
    missing: int
    learned: Mapping[str, Any]

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
        treatment = {
            "number": "scaled",
            "date": "days since 1970-01-01, scaled",
            "category": f"{self.width} indicator columns",
            "text": f"TF-IDF of {self.width} words",
            "left out": f"left out: {self.reason}",
        }[self.kind]
        if self.missing and self.kind in ("number", "date"):
            treatment += f"; {self.missing} empty: the mean, and a flag"
        return self.name, self.kind, treatment

    def encode(self, cells: Sequence[Any], start: int) -> Any:
        """(m, width) numbers: an array, or a sparse matrix for text."""
        if self.kind in ("number", "date"):
            return self._numbers(cells, start)
        texts = ["" if is_missing(c) else str(c).strip() for c in cells]
        if self.kind == "category":
            return _one_hot(self.learned["values"]).transform(np.array(texts, object)[:, None])
        return _tfidf(self.learned["terms"], self.learned["idf"]).transform(texts)

    def _numbers(self, cells: Sequence[Any], start: int) -> Array:
        from sklearn.preprocessing import StandardScaler

        read = _date if self.kind == "date" else _number
        values = np.full((len(cells), 1), np.nan)
        for i, cell in enumerate(cells):
            if is_missing(cell):
                continue
            number = read(cell)
            if number is None or not math.isfinite(number):
                what = "date" if self.kind == "date" else "finite number"
                raise DataError(
                    f"row {start + i}, column {self.name!r}: {cell!r} is not a {what}, "
                    "as in every row of training"
                )
            values[i] = number
        scaler: Any = StandardScaler()
        scaler.mean_ = np.array([self.learned["mean"]])
        scaler.scale_ = np.array([self.learned["scale"]])
        scaler.n_features_in_ = 1
        scaled = scaler.transform(values)
        gone = np.isnan(scaled)
        filled = np.where(gone, 0.0, scaled)  # zero is the mean
        return np.hstack([filled, gone.astype(float)]) if self.learned["flag"] else filled

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        return {
            "name": self.name,
            "kind": self.kind,
            "reason": self.reason,
            "missing": self.missing,
            "learned": dict(self.learned),
        }

    @classmethod
    def from_json(cls, record: Any) -> Column:
        """The column that `to_json` wrote; DataError where it is not one."""
        try:
            column = cls(**record)
            learned = column.learned
            good = column.kind in KINDS and isinstance(column.name, str)
            if column.kind in ("number", "date"):
                good = good and math.isfinite(learned["mean"]) and learned["scale"] > 0
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


def _number(cell: Any) -> float | None:
    if isinstance(cell, bool | np.bool_):
        return None
    if isinstance(cell, int | float | np.number):
        return float(cell)
    try:
        return float(cell) if "_" not in str(cell) else None
    except (TypeError, ValueError):
        return None


def _date(cell: Any) -> float | None:
    """Days since 1970 of an ISO date or time; no zone is UTC."""
    text = str(cell).strip()
    if len(text) < 8 or not text[0].isdigit():
        return None
    try:
        moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return moment.timestamp() / 86400


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

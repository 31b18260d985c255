"""How a table becomes features: learned from one, applied to others, and what is odd in these."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from difformer.data.table.cells import PLAIN, SAMPLE, Array, place
from difformer.data.table.columns import KINDS, Away, Column, Survey, encode_numbers
from difformer.data.table.files import (
    CHUNK,
    Chunk,
    Source,
    check_columns,
    is_frame,
    name_of,
    naming,
    numbered_chunks,
    read_chunks,
    rows_of,
)
from difformer.data.table.scales import FIGURES, standardise, usual_range
from difformer.errors import DataError
from difformer.files import MISREAD, json_text, reason_of

VERSION = 2
LARGEST = 1e15  # largest number that is not scaled: its square must be a float32

SHOWN = 3  # columns named in one line
ENOUGH = 20  # rows from which on a share of missing cells is judged
SURE = 4.0  # standard errors by which it must differ, and
MUCH = 0.1  # by how much


def label_names(label: str | Sequence[str] | None) -> tuple[str, ...]:
    """The label columns: none, one or several."""
    if label is None:
        return ()
    return (label,) if isinstance(label, str) else tuple(label)


@dataclass(frozen=True)
class TableEncoder:
    """How a table's columns become features: learned from one table, applied to others."""

    columns: tuple[Column, ...]
    label: str | tuple[str, ...] | None = None
    id: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict[str, str])  # on label columns

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label columns: none, one or several."""
        return label_names(self.label)

    @cached_property
    def width(self) -> int:
        """How many features a row has."""
        return sum(column.width for column in self.columns)

    def describe(self) -> list[tuple[str, str, str]]:
        """Name, kind and treatment of each column, for the table shown before training."""
        special = [(name, "label", self.notes.get(name, "")) for name in self.labels]
        special += [(self.id, "id", "")] if self.id else []
        return [*special, *(column.describe() for column in self.columns)]

    @classmethod
    def learn(
        cls,
        source: Source,
        *,
        label: str | Sequence[str] | None = None,
        id: str | None = None,
        kinds: Mapping[str, str] | None = None,
        size: int = CHUNK,
        start: int = 1,
        most: float = math.inf,
    ) -> TableEncoder:
        """Learn from one pass over a table, chunk by chunk, without the label columns.

        Errors and reports number its rows from `start` on. `most` limits the numbers of a column
        that are held at once, see `Survey`.
        """
        surveys: dict[str, Survey] = {}
        asked = kinds or {}
        for name, kind in asked.items():
            if kind not in KINDS:
                raise DataError(f"kind of {name!r} must be one of {', '.join(KINDS)}, got {kind!r}")
        given, first = {**_given_kinds(source), **asked}, start
        special = [*label_names(label), *([id] if id else [])]
        # A column's format is recognised by its first cells, which must not depend on `size`.
        for chunk in read_chunks(source, max(size, SAMPLE)):
            names = [n for n in chunk if n not in special]
            check_columns(chunk, special, source)
            if surveys and list(surveys) != names:
                raise DataError(f"{name_of(source)}: its columns change between chunks: {names}")
            for name in names:
                survey = surveys.setdefault(name, Survey(name, given=given.get(name), most=most))
                survey.add(chunk[name], start)
            start += rows_of(chunk)
        if start == first:
            raise DataError(f"{name_of(source)}: has no rows")
        check_columns(surveys, asked, source)
        if len(surveys) == 1:  # the only column is used, even if it counts the rows
            asked = {**{name: "number" for name, s in surveys.items() if s.counts}, **asked}
        with naming(source):
            columns = tuple(s.column(asked.get(n)) for n, s in surveys.items())
        encoder = cls(columns, label if isinstance(label, str | None) else tuple(label), id)
        if encoder.width == 0:
            reasons = "; ".join(f"{c.name}: {c.reason}" for c in columns)
            raise DataError(f"{name_of(source)}: no column can be used ({reasons})")
        return encoder

    @classmethod
    def of_numbers(cls, rows: Array, names: Sequence[str], *, scale: bool = True) -> TableEncoder:
        """One column of numbers for each column of an array (n, p), none left out. O(n p)."""
        n, reason = len(rows), "a column of an array"
        figures = [(0.0, 1.0, -LARGEST, LARGEST)] * rows.shape[1]
        if scale:
            figures = np.stack(standardise(rows), axis=1).tolist()
        columns: list[Column] = []
        for name, cells, each in zip(names, rows.T, figures, strict=True):
            known = cells[~np.isnan(cells)]
            gone, seen = n - len(known), usual_range(known)
            learned = dict(zip(FIGURES, each, strict=True)) | {"flag": gone > 0, "written": PLAIN}
            columns.append(Column(name, "number", reason, gone, learned, rows=n, seen=seen))
        return cls(tuple(columns))

    def encode(self, source: Source, size: int = CHUNK, *, strict: bool = True) -> Any:
        """(n, width) float32: dense, or SciPy CSR where there is text; cells in chunks."""
        parts = [
            self.encode_chunk(c, start, source, strict=strict)
            for start, c in numbered_chunks(source, size)
        ]
        if not parts:
            raise DataError(f"{name_of(source)}: has no rows")
        return sparse.vstack(parts).tocsr() if sparse.issparse(parts[0]) else np.concatenate(parts)

    def encode_array(self, rows: Array, away: Away | None = None) -> Array:
        """(m, width) float32 from an array (m, p) of numbers, NaN where missing. O(m p).

        `away` is that of `encode_chunk`.
        """
        if away is not None:
            for column, values in zip(self.columns, rows.T, strict=True):
                column.watch(values, away)
        out = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            out[part] = encode_numbers(rows[part], self.columns)
        return out

    def encode_chunk(
        self,
        chunk: Chunk,
        start: int = 1,
        source: Source = "the table",
        *,
        strict: bool = True,
        away: Away | None = None,
    ) -> Any:
        """Encode one chunk whose first row is row `start`.

        A column of training that is not there is an error, unless training did not use it. A cell
        that cannot be read is an error, or missing if not `strict`. Into `away` go the columns
        with cells that are missing or unlike all of training; see `Drift`.
        """
        used = [c for c in self.columns if c.width]
        check_columns(chunk, (c.name for c in used), source)
        with naming(source):
            blocks = [c.encode(chunk[c.name], start, strict=strict, away=away) for c in used]
        if any(sparse.issparse(b) for b in blocks):
            return sparse.hstack(blocks, format="csr").astype(np.float32)
        return np.hstack(blocks).astype(np.float32)

    def extra(self, chunk: Chunk) -> list[str]:
        """The columns of a chunk that training did not have, which are ignored."""
        known = {*(c.name for c in self.columns), *self.labels, self.id}
        return [name for name in chunk if name not in known]

    def to_json(self) -> str:
        """Everything learned, as JSON text."""
        columns = [c.to_json() for c in self.columns]
        record = {"version": VERSION, "label": self.label, "id": self.id, "columns": columns}
        return json_text({**record, "notes": dict(self.notes)})

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """Read what `to_json` wrote; DataError if it is not that."""
        try:
            record = json.loads(text)
            if record["version"] != VERSION:
                raise ValueError(f"version {record['version']}, not {VERSION}")
            columns = tuple(Column.from_json(c) for c in record["columns"])
            label, notes = record["label"], record.get("notes", {})
            label = tuple(label) if isinstance(label, list) else label
            return cls(columns, label, record["id"], {str(k): str(v) for k, v in notes.items()})
        except MISREAD as error:
            raise DataError(f"not a table's description: {reason_of(error)}") from error


def _given_kinds(source: Source) -> dict[str, str]:
    """The kinds that follow from the types of a data frame's columns."""
    if not is_frame(source):
        return {}
    frame: Any = source
    types = {str(n): str(frame[n].dtype).lower() for n in frame.columns}
    kinds = {"category": "category", "categorical": "category", "enum": "category"}
    kinds |= {"bool": "category", "boolean": "category", "date": "date"}
    found = {name: kinds.get(kind.split("(")[0].split("[")[0]) for name, kind in types.items()}
    found |= {name: "date" for name, kind in types.items() if kind.startswith("datetime")}
    return {name: kind for name, kind in found.items() if kind is not None}


@dataclass
class Drift:
    """What `add` finds in the blocks of rows of one table; false if that is nothing."""

    rows: int = 0
    odd: int = 0  # rows with a cell unlike all of training
    cells: Counter[str] = field(default_factory=Counter[str])  # such cells of each column
    gone: Counter[str] = field(default_factory=Counter[str])  # missing cells of each column
    worst: dict[str, tuple[float, int | str, Any]] = field(default_factory=dict[str, Any])
    known: dict[str, Column] = field(default_factory=dict[str, Column])

    def add(
        self,
        encoder: TableEncoder,
        chunk: Mapping[str, Any],
        away: Away,
        rows: int,
        *,
        start: int = 1,
        names: Sequence[str] | None = None,
    ) -> None:
        """Take in a block of rows, the first of number `start`, and what encoding put into `away`.

        `names` are the ids of the rows; an empty one is no id.
        """
        self.rows += rows
        odd = np.zeros(rows, bool)
        for name in away:
            gone, far = np.isnan(away[name]), np.nan_to_num(away[name], posinf=math.inf)
            self.known[name] = next(c for c in encoder.columns if c.name == name)
            self.gone[name] += int(gone.sum())
            self.cells[name] += int((far > 0).sum())
            odd |= far > 0
            row = int(far.argmax())
            if far[row] > self.worst.get(name, (0.0,))[0]:
                value = chunk[name][row]
                value = value.item() if isinstance(value, np.generic) else value
                value = value if isinstance(value, str | int | float) else str(value)
                self.worst[name] = far[row], (names[row] if names else "") or start + row, value
        self.odd += int(odd.sum())

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns with cells unlike all of training: the worst cell, the farthest first."""
        found = sorted(self.worst.items(), key=lambda item: -item[1][0])
        return [
            {
                "column": name,
                "cells": self.cells[name],
                "row": row,
                "value": value,
                "seen": _seen(self.known[name]),
            }
            for name, (_, row, value) in found
        ]

    @property
    def empty(self) -> list[dict[str, Any]]:
        """The columns that are missing far more often: their shares, now and in training."""
        found: list[dict[str, Any]] = []
        for name, gone in self.gone.items():
            column, m = self.known[name], self.rows
            n, before = column.rows, column.missing + int((column.bad or "0")[0])
            if m < ENOUGH or not n:
                continue
            both = (gone + before + 1) / (m + n + 2)
            error = math.sqrt(both * (1 - both) * (1 / m + 1 / n))
            if gone / m - before / n >= max(MUCH, SURE * error):
                found.append({"column": name, "share": gone / m, "seen": before / n})
        return found

    @property
    def lines(self) -> list[str]:
        """Sentences on the worst cells and on missing ones."""
        cells: list[str] = []
        for found in self.columns:
            row, name, count = found["row"], found["column"], found["cells"]
            where = place(repr(row) if isinstance(row, str) else row, name, found["value"])
            some = f" ({count} cells)" if count > 1 else ""
            cells.append(f"{where}, in training {_text(self.known[name])}{some}")
        gone = [
            f"column {found['column']!r} is empty in {100 * found['share']:.0f} % of the rows, "
            f"{100 * found['seen']:.0f} % in training"
            for found in self.empty
        ]
        return [*_first(cells), *_first(gone)]

    @property
    def line(self) -> str:
        """All in one line."""
        rows = f"{self.odd} of {self.rows} rows hold values unlike all of training"
        return f"{rows if self.odd else 'cells are missing'}: {'; '.join(self.lines)}"

    def __bool__(self) -> bool:
        return bool(self.odd or self.empty)

    def to_json(self) -> dict[str, Any]:
        """All in plain values."""
        return {"rows": self.rows, "odd": self.odd, "columns": self.columns, "empty": self.empty}


def _seen(column: Column) -> list[Any]:
    """The categories of a column, or its lowest and highest value."""
    if column.kind == "date":
        return [str(np.datetime64(int(day // 1), "D")) for day in column.seen[:2]]
    return list(column.seen[:2] or column.learned["values"])


def _text(column: Column) -> str:
    seen = [f"{v:g}" if isinstance(v, float) else v for v in _seen(column)]
    if column.seen:
        return " to ".join(seen)
    return ", ".join(map(repr, seen[:SHOWN])) + (", ..." if len(seen) > SHOWN else "")


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{more} more column{'s' * (more > 1)}"]

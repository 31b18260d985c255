"""How the columns of a table become features: learned from one table, applied to others."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from difformer.data.table.cells import PLAIN, SAMPLE, Array
from difformer.data.table.columns import (
    FIGURES,
    KINDS,
    Away,
    Column,
    Survey,
    encode_numbers,
    standardise,
    usual_range,
)
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
from difformer.data.table.labels import label_names
from difformer.errors import DataError
from difformer.files import MISREAD, json_text, reason_of

VERSION = 2
LARGEST = 1e15  # largest number that is not scaled: its square must be a float32


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

"""Cells of a file, chunk by chunk: CSV, JSON lines, Parquet and npz, all by the same four lines."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from difformer.errors import DataError

__all__ = ["CHUNK", "ENDINGS", "Chunk", "read_chunks"]

CHUNK = 10_000
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".npz")
LONGEST_CELL = 10_000_000

Chunk = dict[str, list[Any]]
"""The cells of some rows, by column."""


def read_chunks(
    source: str | Path | Mapping[str, Sequence[Any]], size: int = CHUNK
) -> Iterator[Chunk]:
    """Chunks of at most `size` rows; only one is in memory (but for npz, which is a whole).

    A mapping of columns is one chunk as it is. The format is the file's ending: .csv, .tsv,
    .jsonl, .ndjson, .parquet or .npz.
    """
    if isinstance(source, Mapping):
        lengths = {name: len(cells) for name, cells in source.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"columns must be of one length, got {lengths}")
        yield {name: list(cells) for name, cells in source.items()}
        return
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    readers = {
        ".csv": _csv,
        ".tsv": _csv,
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
        ".parquet": _parquet,
        ".npz": _npz,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: must end in {', '.join(readers)}")
    try:
        yield from reader(path, size)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _csv(path: Path, size: int) -> Iterator[Chunk]:
    csv.field_size_limit(min(LONGEST_CELL, sys.maxsize))
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        header = next(rows, None)
        if not header:
            raise DataError(f"{path}: is empty: the first line must name the columns")
        names = [name.strip() for name in header]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{path}: has two columns named {name!r}")
        held: list[list[str]] = []
        number = 0
        for row in rows:
            if not row:
                continue
            number += 1
            if len(row) != len(names):
                raise DataError(
                    f"{path}: row {number} (line {rows.line_num}) has {len(row)} cells, "
                    f"the header {len(names)}"
                )
            held.append(row)
            if len(held) == size:
                yield _by_column(names, held)
                held = []
        if held:
            yield _by_column(names, held)


def _jsonl(path: Path, size: int) -> Iterator[Chunk]:
    names: list[str] = []
    held: list[list[Any]] = []
    number = 0
    with path.open(encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            number += 1
            try:
                record = json.loads(text)
            except ValueError as error:
                raise DataError(f"{path}: line {line} is not JSON ({error})") from error
            if not isinstance(record, dict):
                raise DataError(
                    f"{path}: line {line} must be an object, got {type(record).__name__}"
                )
            names = names or list(record)
            unknown = [name for name in record if name not in names]
            if unknown:
                raise DataError(
                    f"{path}: row {number} has a column {unknown[0]!r} the first has not"
                )
            held.append([_cell(record.get(name), path, number, name) for name in names])
            if len(held) == size:
                yield _by_column(names, held)
                held = []
    if held:
        yield _by_column(names, held)
    if not number:
        raise DataError(f"{path}: is empty")


def _cell(value: Any, path: Path, row: int, name: str) -> Any:
    if isinstance(value, dict | list):
        raise DataError(f"{path}: row {row}, column {name!r} must be one value, got {value!r:.50}")
    return value


def _parquet(path: Path, size: int) -> Iterator[Chunk]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError("Parquet needs the package pyarrow: pip install pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=size):
                yield {name: _texts(cells) for name, cells in batch.to_pydict().items()}
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a whole Parquet file ({error})") from error


def _texts(cells: list[Any]) -> list[Any]:
    """Dates as their ISO text: one form for all formats."""
    return [c.isoformat() if hasattr(c, "isoformat") else c for c in cells]


def _npz(path: Path, size: int) -> Iterator[Chunk]:
    columns: dict[str, list[Any]] = {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                array = arrays[name]
                if array.ndim == 1:
                    columns[name] = array.tolist()
                elif array.ndim == 2:
                    columns |= {f"{name}[{j}]": array[:, j].tolist() for j in range(array.shape[1])}
                else:
                    raise DataError(f"{path}: {name} must have one or two dimensions")
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise DataError(f"{path}: not an npz file of plain arrays ({error})") from error
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) != 1:
        raise DataError(f"{path}: its arrays must have one length, got {sorted(lengths)}")
    for start in range(0, lengths.pop(), size):
        yield {name: cells[start : start + size] for name, cells in columns.items()}


def _by_column(names: Sequence[str], rows: list[list[Any]]) -> Chunk:
    return {name: [row[j] for row in rows] for j, name in enumerate(names)}

"""Cells of a table, chunk by chunk: CSV, JSON lines, Parquet, npz, data frames and mappings."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from difformer.data.npz import read_npz
from difformer.data.table.cells import (
    SAMPLE,
    is_missing,
    is_numeric,
    read_any,
    repeated,
    shown,
)
from difformer.errors import DataError, missing_extra
from difformer.files import not_a_file

CHUNK = 10_000
ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".npz")
LONGEST_CELL = 10_000_000

SEPARATORS = (",", ";", "\t")
NO_HEADER = "; if the first line is a row already, give --no-header (header=False)"

Chunk = dict[str, Any]
"""The cells of some rows, by column: lists, or arrays where a column is of numbers."""

Source = Any
"""A file's path, a mapping of columns, a data frame (of pandas or polars), or an object whose
`chunks(size)` returns a new iterator of chunks at each call."""


def is_frame(source: Any) -> bool:
    """Whether it is a data frame: named columns, each with a type."""
    return hasattr(source, "columns") and hasattr(source, "dtypes")


def collected(source: Any) -> Any:
    """The rows of a lazy frame (of polars), which are computed here; anything else as it is."""
    lazy = hasattr(source, "collect") and hasattr(source, "lazy")
    return source.collect() if lazy else source


def read_chunks(source: Source, size: int = CHUNK, *, header: bool = True) -> Iterator[Chunk]:
    """Chunks of at most `size` rows; only one is in memory (but an npz file as a whole).

    A mapping of columns, or a data frame, is one chunk. The format of a file is its ending: .csv,
    .tsv, .txt, .jsonl, .ndjson, .parquet or .npz. The columns of a .csv or .txt file are separated
    by commas, semicolons or tabs, whichever give its first line the most cells. Without `header`
    this line is a row already, and the columns are column1, column2, ...
    """
    if isinstance(source, Mapping) or is_frame(source):
        columns = _columns(source)
        lengths = {name: len(cells) for name, cells in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"columns must be of one length, got {lengths}")
        yield columns
        return
    if hasattr(source, "chunks"):
        yield from source.chunks(size)
        return
    path = Path(source)
    if not path.is_file():
        raise DataError(f"{path}: {not_a_file(path)}")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: must end in {', '.join(_READERS)}")
    try:
        yield from reader(path, size) if header or reader is not _csv else _csv(path, size, False)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: cannot be read as UTF-8 ({error.reason}); if it is Latin-1 or Windows-1252, "
            "save it as UTF-8 first"
        ) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


@dataclass(frozen=True)
class NoHeader:
    """A file that is read without a header; of the formats only CSV can lack one."""

    path: str | Path

    def chunks(self, size: int) -> Iterator[Chunk]:
        return read_chunks(self.path, size, header=False)

    def __str__(self) -> str:
        return str(self.path)


def without_header(source: Source) -> Source:
    """The same source, read without a header if it is a file."""
    return NoHeader(source) if isinstance(source, str | Path) else source


def first_line(source: Source) -> list[str]:
    """The cells of the first line of a CSV file; none where it is something else."""
    path = Path(source) if isinstance(source, str | Path) else None
    if path is None or _READERS.get(path.suffix.lower()) is not _csv or not path.is_file():
        return []
    with suppress(OSError, ValueError, csv.Error), path.open(encoding="utf-8-sig") as file:
        return next(_csv_lines(path, file), [])
    return []


def column_names(count: int) -> list[str]:
    """The names of the columns of a file without a header."""
    return [f"column{j}" for j in range(1, count + 1)]


def check_header(path: Path, names: Sequence[str], below: Chunk | None = None) -> None:
    """DataError for a first line that looks like a row: two equal names, or values for names.

    These are numbers and dates only; or a number above numbers, beside a text that occurs again in
    its column. Numbers that count (0, 1, 2) are names, as data frames without names write them.
    """
    values = [read_any(name) for name in names if not is_missing(name)]
    numbers = [value for value in values if value is not None]
    number = next((name for name in names if read_any(name) is not None), None)
    counts = not numbers or all(a.is_integer() and b == a + 1 for a, b in pairwise(numbers))
    if (twice := repeated(names)) is not None:
        reason = f"has two columns named {twice!r}"
    elif (len(numbers) == len(values) and not counts) or (below and _repeats(names, below)):
        reason = f"its first line holds no names, but values such as {shown(number)}"
    else:
        return
    raise DataError(
        f"{path}: {reason}: write a line with the names of the columns above{NO_HEADER}"
    )


def _repeats(names: Sequence[str], below: Chunk) -> bool:
    """Whether names are a row like those below: a number above numbers, and a text once more."""
    kept = [name for name in names if not is_missing(name)]
    numbers = {name for name in kept if read_any(name) is not None}
    above = any(
        all(is_missing(cell) or read_any(cell) is not None for cell in below[name][:SAMPLE])
        for name in numbers
    )
    texts = (name for name in kept if name not in numbers)
    return above and any(name in map(str.strip, below[name][:SAMPLE]) for name in texts)


def numbered_chunks(source: Source, size: int = CHUNK) -> Iterator[tuple[int, Chunk]]:
    """The chunks of a table, each after the number of its first row, from 1 on."""
    start = 1
    for chunk in read_chunks(source, size):
        yield start, chunk
        start += rows_of(chunk)


def read_rows(source: Source) -> tuple[Chunk, list[int]]:
    """All rows that are not blank, as one chunk, and their numbers; DataError if there are none.

    For small tables: every cell is held in memory.
    """
    columns: dict[str, list[Any]] = {}
    kept: list[int] = []
    for start, chunk in numbered_chunks(source):
        filled = [i for i, row in enumerate(zip(*chunk.values(), strict=True)) if _holds(row)]
        kept += [start + i for i in filled]
        for name, cells in chunk.items():
            columns.setdefault(name, []).extend(cells[i] for i in filled)
    if not kept:
        raise DataError(f"{name_of(source)}: has no rows")
    return columns, kept


def _holds(row: Sequence[Any]) -> bool:
    """Whether any cell of a row is not blank."""
    return any(cell is not None and str(cell).strip() for cell in row)


@contextmanager
def naming(source: Source) -> Generator[None, None, None]:
    """Errors about the content of a table start with its name."""
    try:
        yield
    except (DataError, ValueError) as error:
        raise DataError(f"{name_of(source)}: {error}") from error


def check_columns(chunk: Mapping[str, Any], wanted: Iterable[str], source: Source) -> None:
    """DataError unless the chunk has the wanted columns."""
    for name in wanted:
        if name not in chunk:
            known = ", ".join(islice(chunk, 20)) + (", ..." if len(chunk) > 20 else "")
            hint = NO_HEADER if any(read_any(each) is not None for each in chunk) else ""
            raise DataError(f"{name_of(source)}: has no column {name!r}; it has {known}{hint}")


def rows_of(chunk: Chunk) -> int:
    """How many rows a chunk has."""
    return len(next(iter(chunk.values()), []))


def name_of(source: Source) -> str:
    """A table as errors name it."""
    named = isinstance(source, str | Path) or hasattr(source, "chunks")
    return str(source) if named else "the table"


def _columns(source: Any) -> Chunk:
    """A frame's columns by name as texts: numbers as an array, the others as a list."""
    names: list[Any] = list(source.columns) if is_frame(source) else list(source)
    columns: Chunk = {}
    for name in names:
        cells: Any = source[name]
        kind = str(getattr(cells, "dtype", "")).lower()
        if kind.startswith("period"):
            cells = cells.dt.to_timestamp()
        if kind.startswith(("int", "uint", "float")):
            columns[str(name)] = _numbers(cells)
        else:
            columns[str(name)] = cells.tolist() if hasattr(cells, "tolist") else list(cells)
    if (twice := repeated(map(str, names))) is not None:
        raise DataError(f"the table has two columns named {twice!r}")
    return columns


def _numbers(cells: Any) -> Any:
    """A column of numbers: whole ones as they are (they may be ids), others as float64.

    pandas' NA and polars' null are NaN.
    """
    if type(cells).__module__.startswith("pandas"):
        kind = {"i": np.int64, "u": np.uint64}.get(str(cells.dtype)[0].lower(), np.float64)
        if cells.isna().any():
            return cells.to_numpy(dtype=np.float64, na_value=np.nan)
        return cells.to_numpy(dtype=kind)
    found = np.asarray(cells)
    return found if found.dtype.kind in "iu" else found.astype(np.float64)


def _csv(path: Path, size: int, header: bool = True) -> Iterator[Chunk]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _csv_lines(path, file)
        first = next(lines, None)
        if not first:
            raise DataError(f"{path}: is empty: the first line must name the columns")
        names = [name.strip() for name in first] if header else column_names(len(first))
        if header:
            check_header(path, names)
        rows = lines if header else chain([first], lines)
        chunks = _by_column(names, _csv_rows(path, rows, lines, len(names)), size)
        below = next(chunks, None)
        if below is None:
            return
        if header:
            check_header(path, names, below)
        yield below
        yield from chunks


def _csv_lines(path: Path, file: TextIO) -> Any:
    """The lines of a file, by the separator that gives the first the most cells, or a comma."""
    csv.field_size_limit(min(LONGEST_CELL, sys.maxsize))
    first = file.readline(LONGEST_CELL)
    file.seek(0)
    marks = "\t" if path.suffix.lower() == ".tsv" else SEPARATORS
    cells = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in marks}
    return csv.reader(file, delimiter=max(marks, key=cells.__getitem__))


def _csv_rows(path: Path, rows: Iterable[list[str]], lines: Any, width: int) -> Iterator[list[str]]:
    """The rows of these lines; a blank line is not a row."""
    number = 0
    for row in rows:
        if len(row) != width and not _holds(row):
            continue
        number += 1
        if len(row) != width:
            raise DataError(
                f"{path}: row {number} (line {lines.line_num}) has {len(row)} cells, "
                f"the header {width}"
            )
        yield row


def _jsonl(path: Path, size: int) -> Iterator[Chunk]:
    with path.open(encoding="utf-8") as file:
        records = _json_records(path, file)
        first = next(records, None)
        if first is None:
            raise DataError(f"{path}: is empty")
        rows = ([record.get(name) for name in first] for record in chain([first], records))
        yield from _by_column(list(first), rows, size)


def _json_records(path: Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The object of each line that is not blank: single values, under the names of the first."""
    known: Mapping[str, Any] | None = None
    row = 0
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
            if "\\u" in text:  # half of a pair of surrogates is not text
                json.dumps(record, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {line} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {line} must be an object, got {type(record).__name__}")
        row, known = row + 1, record if known is None else known
        for name, value in record.items():
            where = f"{path}: row {row}"
            if name not in known:
                raise DataError(f"{where} has a column {name!r}, which the first row does not have")
            if isinstance(value, dict | list):
                raise DataError(f"{where}, column {name!r} must be one value, got {value!r:.50}")
        yield record


def _parquet(path: Path, size: int) -> Iterator[Chunk]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise missing_extra("a Parquet file", "parquet") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=size):
                yield {name: _texts(cells) for name, cells in batch.to_pydict().items()}
    except (pyarrow.ArrowException, ValueError, OverflowError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({error})") from error


def _texts(cells: list[Any]) -> list[Any]:
    """Dates as their ISO text: one form for all formats."""
    return [c.isoformat() if hasattr(c, "isoformat") else c for c in cells]


def _npz(path: Path, size: int) -> Iterator[Chunk]:
    columns: Chunk = {}
    try:
        for name, array in read_npz(path).items():
            if array.ndim == 1:
                columns[name] = _plain(array)
            elif array.ndim == 2:
                columns |= {f"{name}[{j}]": _plain(array[:, j]) for j in range(array.shape[1])}
            else:
                raise DataError(f"{path}: {name} must have one or two dimensions")
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not an npz file of plain arrays ({error})") from error
    lengths = {len(cells) for cells in columns.values()}
    if len(lengths) != 1:
        raise DataError(f"{path}: its arrays must have one length, got {sorted(lengths)}")
    for start in range(0, lengths.pop(), size):
        yield {name: cells[start : start + size] for name, cells in columns.items()}


def _plain(array: Any) -> Any:
    """Numbers as they are; booleans, texts and times as a list."""
    return array if is_numeric(array) else array.tolist()


def _by_column(names: Sequence[str], rows: Iterator[list[Any]], size: int) -> Iterator[Chunk]:
    """Rows as chunks of columns."""
    while held := list(islice(rows, size)):
        yield dict(zip(names, map(list, zip(*held, strict=True)), strict=True))


_READERS = {
    ".csv": _csv,
    ".tsv": _csv,
    ".txt": _csv,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".parquet": _parquet,
    ".npz": _npz,
}

"""DuckDB for data larger than memory: reading files, joining ids, sorting edges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.rawtable import Chunk
from difformer.errors import DataError, missing_extra
from difformer.files import one_line, replacing

__all__ = [
    "Engine",
    "Files",
    "cells_of",
    "key",
    "matching",
    "named",
    "number",
    "numbers",
    "weights",
]

Array = NDArray[Any]
Tell = Callable[[str, float | None], None]
"""Called with the name of a stage and the share of it that is done, None if unknown."""

READERS = {
    ".parquet": "read_parquet([{}])",
    ".csv": "read_csv([{}], all_varchar = true, header = true)",
    ".tsv": "read_csv([{}], all_varchar = true, header = true, delim = '\t')",
}
WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
KEPT_FREE = 400 * 10**6  # of the memory allowed: for chunks in transit and DuckDB's own overhead
LEAST = 256 * 10**6
GROUP = 1 << 16  # rows of a row group of a table that was copied
PAGE = 1 << 17  # bytes of a column that Arrow reads together
POLL = 0.2  # seconds between looks at a query's progress


class Engine:
    """A DuckDB database in a folder of its own, with a bound on its memory."""

    def __init__(self, folder: Path, memory: int, held: int, tell: Tell) -> None:
        """`held` are the bytes that this process already holds, of the `memory` it may use."""
        try:
            import duckdb
        except ImportError as error:
            raise missing_extra("sharding", "shards") from error
        limit = memory - held - KEPT_FREE
        if limit < LEAST:
            least = (held + KEPT_FREE + LEAST) / 1e9
            raise DataError(f"memory must be at least {least:.1f}GB here, got {memory / 1e9:g}GB")
        self._error: Any = duckdb.Error
        self._limit = limit
        self._tell = tell
        folder.mkdir(parents=True, exist_ok=True)
        settings: Any = {
            "memory_limit": f"{limit // 10**6}MB",
            "temp_directory": str(folder / "spilled"),
        }
        try:
            self._connection: Any = duckdb.connect(str(folder / "work.duckdb"), config=settings)
        except duckdb.Error as error:
            raise DataError(f"{folder} cannot be used: {one_line(error)}") from error

    def close(self) -> None:
        """Flush to disk and close the database."""
        self._connection.close()

    def run(self, statement: str, stage: str = "", values: Sequence[Any] = ()) -> list[Any]:
        """Run a statement, reporting its progress; returns its (few) rows."""
        failed: list[BaseException] = []
        rows: list[Any] = []

        def work() -> None:
            try:
                rows.extend(self._connection.execute(statement, list(values)).fetchall())
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL)
                if stage:
                    share = self._connection.query_progress()
                    self._tell(stage, share / 100 if share >= 0 else None)
        except BaseException:
            self._connection.interrupt()
            thread.join()
            raise
        if failed:
            if isinstance(failed[0], self._error):
                raise DataError(f"sharding: {one_line(failed[0])}") from failed[0]
            raise failed[0]
        return rows

    def one(self, statement: str, stage: str = "", values: Sequence[Any] = ()) -> Any:
        """The first row of what a statement returns, or None."""
        return next(iter(self.run(statement, stage, values)), None)

    def batches(self, statement: str, size: int) -> Iterator[Any]:
        """The result of a statement as Arrow record batches, a few in memory at a time."""
        try:
            # A separate cursor: other statements may run between two batches.
            reader = self._connection.cursor().sql(statement).to_arrow_reader(size)
        except self._error as error:
            raise DataError(f"sharding: {one_line(error)}") from error
        batches = iter(reader)
        while True:
            try:
                batch = next(batches, None)
            except (self._error, OSError) as error:  # Arrow wraps DuckDB's errors
                raise DataError(f"sharding: {one_line(error)}") from error
            if batch is None:
                return
            yield batch

    def shrink(self, share: float) -> None:
        """Let DuckDB hold only a share of what it was allowed."""
        self.run(f"SET memory_limit = '{max(LEAST, int(share * self._limit)) // 10**6}MB'")


class Files:
    """One or more Parquet or CSV files of one layout, read in the order of their rows."""

    def __init__(self, engine: Engine, paths: Sequence[str | Path], what: str) -> None:
        self.engine, self.what = engine, what
        found = [p for name in paths for p in matching(str(name))]
        if not found:
            raise DataError(f"{what}: no such file: {', '.join(map(str, paths))}")
        endings = {path.suffix.lower() for path in found}
        if len(endings) > 1 or not endings <= set(READERS):
            kinds = ", ".join(READERS)
            raise DataError(f"{what} must be files of one kind, one of {kinds}, got {endings}")
        self.paths = found
        self.sql = READERS[endings.pop()].format(", ".join(quoted(str(p)) for p in found))
        described = engine.run(f"DESCRIBE SELECT * FROM {self.sql}")
        self.types: dict[str, str] = {str(row[0]): str(row[1]) for row in described}

    def __str__(self) -> str:
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and others"

    def count(self) -> int:
        """How many rows there are."""
        return int(self.engine.one(f"SELECT count(*) FROM {self.sql}", f"counting {self.what}")[0])

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The cells, chunk by chunk: arrays where a column is of numbers, else lists."""
        for batch in self._batches(size):
            yield cells_of(batch)

    def _batches(self, size: int) -> Iterator[Any]:
        """Parquet by Arrow, a page of each column at a time; DuckDB holds whole row groups."""
        if self.paths[0].suffix.lower() != ".parquet":
            yield from self.engine.batches(f"SELECT * FROM {self.sql}", size)
            return
        import pyarrow
        from pyarrow import parquet

        for path in self.paths:
            try:
                with parquet.ParquetFile(path, pre_buffer=False, buffer_size=PAGE) as file:
                    yield from file.iter_batches(size)
            except (OSError, pyarrow.ArrowException) as error:
                raise DataError(f"{path} cannot be read: {one_line(error)}") from error

    def as_parquet(self, folder: Path) -> list[str]:
        """The same rows as Parquet: its own files, or one that is made of them in a folder."""
        if self.paths[0].suffix.lower() == ".parquet":
            return [str(path.resolve()) for path in self.paths]
        copy = folder.resolve() / f"{self.what}.parquet"
        if not copy.exists():
            with replacing(copy, error=DataError) as part:
                options = f"FORMAT parquet, ROW_GROUP_SIZE {GROUP}"
                statement = f"COPY (SELECT * FROM {self.sql}) TO {quoted(str(part))} ({options})"
                self.engine.run(statement, f"reading {self.what}")
        return [str(copy)]

    def whole(self, column: str) -> bool:
        """Whether a column holds whole numbers by its type."""
        return self.types[column] in WHOLE


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def named(column: str) -> str:
    """The name of a column, quoted for SQL."""
    return '"' + column.replace('"', '""') + '"'


def key(column: str, integers: bool) -> str:
    """A column in the form in which ids are compared, in SQL."""
    name = named(column)
    return f"CAST({name} AS BIGINT)" if integers else f"trim(CAST({name} AS VARCHAR))"


def number(column: str, missing: int) -> str:
    """A column as whole numbers, `missing` where a cell is none, in SQL."""
    return f"coalesce(TRY_CAST({named(column)} AS BIGINT), {missing})"


def weights(column: str | None) -> str:
    """A further column `w` of a query, if there are weights."""
    return "" if column is None else f", TRY_CAST({named(column)} AS FLOAT) AS w"


def matching(name: str) -> list[Path]:
    """The files a name stands for: itself, those of a folder, or those that match a pattern."""
    path = Path(name)
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix.lower() in READERS)
    if path.is_file() or not any(mark in name for mark in "*?["):
        return [path] if path.is_file() else []
    return sorted(path.parent.glob(path.name))


def cells_of(batch: Any) -> Chunk:
    """The cells of an Arrow record batch: arrays where a column is of numbers, else lists."""
    names = batch.schema.names
    return {name: _cells(column) for name, column in zip(names, batch.columns, strict=True)}


def _cells(column: Any) -> Any:
    """Numbers as float64 with NaN where null; dates as their ISO text; the others as they are."""
    import pyarrow

    types = pyarrow.types
    if types.is_floating(column.type) or types.is_integer(column.type):
        cells: Array = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
        return cells
    if types.is_decimal(column.type):
        return column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False)
    return [c.isoformat() if hasattr(c, "isoformat") else c for c in column.to_pylist()]


def numbers(column: Any, dtype: Any = np.int64) -> Array:
    """An Arrow column without nulls as an array."""
    found: Array = column.to_numpy(zero_copy_only=False)
    return found.astype(dtype, copy=False)

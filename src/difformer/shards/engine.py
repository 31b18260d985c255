"""Tables larger than memory: DuckDB queries them and joins ids, Arrow reads rows in chunks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.graphs import headless
from difformer.data.table.cells import cell_text
from difformer.data.table.files import Chunk, check_header, column_names, first_line
from difformer.errors import DataError, missing_extra
from difformer.files import not_a_file, one_line, replacing
from difformer.shards.edges import Pairs
from difformer.shards.partition import ShardSettings

Tell = Callable[[str, float | None], None]
"""Called with the name of a stage and the share of it that is done, None where unknown."""

READERS = {
    ".parquet": "read_parquet([{}])",
    ".csv": "read_csv([{}], all_varchar = true, header = {})",
    ".tsv": "read_csv([{}], all_varchar = true, header = {}, delim = '\t')",
}
WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER")
KEPT_FREE = 400 * 10**6  # bytes left for chunks in transit and DuckDB's own overhead
LEAST = 256 * 10**6  # bytes that DuckDB needs
GROUP = 1 << 16  # rows in a row group of a table that is copied to Parquet
PAGE = 1 << 17  # bytes of a column that Arrow reads together
BATCH = 1 << 20  # edges read together
POLL = 0.2  # seconds between looks at a query's progress


class Engine:
    """A DuckDB database in a folder, with a bound on its memory.

    Args:
        folder: where the database and what it spills to disk are kept.
        memory: bytes that this process may use.
        held: bytes of them that it uses already.
        tell: called with the progress of long queries.
    """

    def __init__(self, folder: Path, memory: int, held: int, tell: Tell) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise missing_extra("sharding", "shards") from error
        limit = memory - held - KEPT_FREE
        if limit < LEAST:
            least = (held + KEPT_FREE + LEAST) / 1e9
            raise DataError(f"memory must be at least {least:.1f}GB here, got {memory / 1e9:g}GB")
        self._error: Any = duckdb.Error
        self.tell = tell
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

    def run(self, statement: str, stage: str = "") -> list[Any]:
        """Run a statement and return its rows, which must be few; `stage` names its progress."""
        with ThreadPoolExecutor(1) as worker:
            found = worker.submit(lambda: self._connection.execute(statement).fetchall())
            try:
                while not wait([found], POLL).done:
                    if stage:
                        share = self._connection.query_progress()
                        self.tell(stage, share / 100 if share >= 0 else None)
                return found.result()
            except self._error as error:
                raise DataError(f"sharding: {one_line(error)}") from error
            except BaseException:
                self._connection.interrupt()
                raise

    def copy(self, query: str, path: Path, stage: str) -> None:
        """Write the rows of a query to a Parquet file."""
        options = f"FORMAT parquet, ROW_GROUP_SIZE {GROUP}"
        self.run(f"COPY ({query}) TO {quoted(str(path))} ({options})", stage)

    def batches(self, statement: str, size: int) -> Iterator[Any]:
        """The result of a statement as Arrow record batches, a few in memory at a time."""
        try:
            # A separate cursor: other statements may run between two batches.
            yield from self._connection.cursor().sql(statement).to_arrow_reader(size)
        except (self._error, OSError) as error:  # Arrow wraps DuckDB's errors
            raise DataError(f"sharding: {one_line(error)}") from error

    def shrink(self) -> None:
        """Leave DuckDB only the memory that it needs."""
        self.run(f"SET memory_limit = '{LEAST // 10**6}MB'")


class Files:
    """Parquet or CSV files with the same columns, read as one table in the order of their rows.

    Without `header` the columns of CSV files are column1, column2, ...
    """

    def __init__(
        self, engine: Engine, paths: Sequence[str | Path], what: str, *, header: bool = True
    ) -> None:
        self.engine, self.what = engine, what
        found: list[Path] = []
        for path in map(Path, paths):
            if not (here := matching(str(path))):
                none = f"holds no file that ends in {', '.join(READERS)}"
                raise DataError(f"{what}: {path}: {none if path.is_dir() else not_a_file(path)}")
            found += here
        endings = {path.suffix.lower() for path in found}
        if len(endings) > 1 or not endings <= set(READERS):
            kinds = ", ".join(READERS)
            got = ", ".join(sorted(endings))
            raise DataError(f"{what} must be files of one kind, one of {kinds}, got {got}")
        self.paths = found
        first = "true"
        for path, cells in zip(found, map(first_line, found), strict=True):
            if header and cells:
                check_header(path, [cell.strip() for cell in cells])
            elif cells:
                first = f"false, names = {column_names(len(cells))}"
        listed = ", ".join(quoted(str(p)) for p in found)
        self.sql = READERS[endings.pop()].format(listed, first)
        described = engine.run(f"DESCRIBE SELECT * FROM {self.sql}")
        self.types: dict[str, str] = {str(row[0]): str(row[1]) for row in described}

    def __str__(self) -> str:
        return str(self.paths[0]) if len(self.paths) == 1 else f"{self.paths[0]} and others"

    @cached_property
    def rows(self) -> int:
        """How many rows there are, counted once."""
        query = f"SELECT count(*) FROM {self.sql}"
        return int(self.engine.run(query, f"counting {self.what}")[0][0])

    def chunks(self, size: int, stage: str = "learning columns") -> Iterator[Chunk]:
        """The cells, chunk by chunk: arrays where a column is of numbers, else lists.

        The progress is told under the name of the stage.
        """
        done = 0
        for batch in self._batches(size):
            self.engine.tell(stage, done / self.rows)
            yield cells_of(batch)
            done += batch.num_rows

    def _batches(self, size: int) -> Iterator[Any]:
        """Arrow reads Parquet page by page; DuckDB would hold whole row groups."""
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
        """Parquet files with these rows: the files themselves, or a copy in a folder."""
        if self.paths[0].suffix.lower() == ".parquet":
            return [str(path.resolve()) for path in self.paths]
        copy = folder.resolve() / f"{self.what}.parquet"
        if not copy.exists():
            with replacing(copy, error=DataError) as part:
                self.engine.copy(f"SELECT * FROM {self.sql}", part, f"reading {self.what}")
        return [str(copy)]

    def whole(self, column: str) -> bool:
        """Whether the type of a column is of whole numbers."""
        return self.types[column] in WHOLE


class EdgeFiles(Files):
    """Files of edges: the ids of their two ends, joined with those of the nodes, and weights.

    They have no header where the first line joins two known ids, as `read_edges` takes it; of
    several files all have one or none has. Without `id`, rows are named by their number. The row
    of each id is kept in the folder.
    """

    def __init__(self, nodes: Files, settings: ShardSettings, folder: Path) -> None:
        self._nodes, self._id, self._folder = nodes, settings.id, folder
        header, paths = settings.header, settings.edges
        for path in [path for name in paths for path in matching(name)] if header else ():
            first = [cell_text(cell) for cell in first_line(path)]
            if len(first) > 1 and set(first[:2]) <= self._known(nodes, first[:2]):
                warnings.warn(headless(path, first), stacklevel=2)
                header = False
        super().__init__(nodes.engine, paths, "edges", header=header)
        names = list(self.types)
        if len(names) not in (2, 3):
            raise DataError(f"{self}: must have source, target (and weight), has {names}")
        self.ends, self.weighted = names[:2], len(names) == 3
        self.weights = f"{self}: column {names[-1]!r}"  # as errors name them

    def _known(self, nodes: Files, names: Sequence[str]) -> set[str]:
        """Those of some names that are ids."""
        if self._id is None:
            return {name for name in names if name.isdecimal() and int(name) < nodes.rows}
        cell, listed = key(self._id, integers=False), ", ".join(map(quoted, names))
        query = f"SELECT DISTINCT {cell} FROM {nodes.sql} WHERE {cell} IN ({listed})"
        return {str(row[0]) for row in nodes.engine.run(query)}

    def pairs(self) -> Iterator[Pairs]:
        """The edges between known rows, batch by batch."""
        for batch in self.engine.batches(self.query(self.sql), BATCH):
            yield as_pairs(batch, self.weights)

    def query(self, table: str) -> str:
        """SQL for the rows and the weights of those edges of a table whose ends are known."""
        nodes, id = self._nodes, self._id
        weight = f", TRY_CAST({named(list(self.types)[2])} AS FLOAT) AS w" if self.weighted else ""
        if id is None:
            s, t = (f"TRY_CAST({named(end)} AS BIGINT)" for end in self.ends)
            known = f"between 0 and {nodes.rows - 1}"
            cells = f"SELECT {s} AS s, {t} AS t{weight} FROM {table}"
            return f"SELECT * FROM ({cells}) WHERE s {known} AND t {known}"
        integers = nodes.whole(id) and all(map(self.whole, self.ends))
        s, t = (key(end, integers) for end in self.ends)
        ids = f"read_parquet({quoted(str(self._number_ids(id, integers)))})"
        return (
            f"SELECT a.row AS s, b.row AS t{', w' if weight else ''} "
            f"FROM (SELECT {s} AS s, {t} AS t{weight} FROM {table}) e "
            f"JOIN {ids} a ON a.id = e.s JOIN {ids} b ON b.id = e.t"
        )

    def _number_ids(self, id: str, integers: bool) -> Path:
        """A file with the row of each id; DataError where one is empty or repeated."""
        path = self._folder.resolve() / "ids.parquet"
        if path.exists():
            return path
        nodes, engine = self._nodes, self.engine
        cells = f"SELECT row_number() OVER () - 1 AS row, {key(id, integers)} AS id"
        with replacing(path, error=DataError) as part:
            ids = f"read_parquet({quoted(str(part))})"
            engine.copy(f"{cells} FROM {nodes.sql}", part, "numbering ids")
            where = "WHERE id IS NULL OR CAST(id AS VARCHAR) = ''"
            for (row,) in engine.run(f"SELECT row FROM {ids} {where} ORDER BY row LIMIT 1"):
                raise DataError(f"{nodes}: row {row + 1}, column {id!r}: the id is empty")
            twice = f"SELECT id, min(row), max(row) FROM {ids} GROUP BY id HAVING count(*) > 1"
            for name, row, again in engine.run(f"{twice} LIMIT 1", "looking for repeated ids"):
                where = f"{nodes}: row {again + 1}, column {id!r}"
                raise DataError(f"{where}: the id {str(name)!r} is also that of row {row + 1}")
        return path


def as_pairs(batch: Any, weights: str) -> Pairs:
    """An Arrow batch of `EdgeFiles.query`; `weights` names them in errors."""
    source, target, *weight = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
    if not weight:
        return Pairs(source, target, None)
    if not ((weight[0] >= 0) & (weight[0] < np.inf)).all():
        raise DataError(f"{weights} must hold finite weights, 0 or more, in every row")
    return Pairs(source, target, weight[0])


def quoted(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def named(column: str) -> str:
    """The name of a column, quoted for SQL."""
    return '"' + column.replace('"', '""') + '"'


def key(column: str, integers: bool) -> str:
    """SQL for a column of ids in the form in which they are compared."""
    name = named(column)
    return f"CAST({name} AS BIGINT)" if integers else f"trim(CAST({name} AS VARCHAR))"


def matching(name: str) -> list[Path]:
    """The files that a name stands for: one file, those of a folder or those of a pattern."""
    path = Path(name)
    if path.is_dir():
        return sorted(p for p in path.iterdir() if p.suffix.lower() in READERS)
    if path.is_file() or not any(mark in name for mark in "*?["):
        return [path] if path.is_file() else []
    return sorted(path.parent.glob(path.name))


def cells_of(batch: Any) -> Chunk:
    """The cells of an Arrow record batch, as `Files.chunks` returns them."""
    names = batch.schema.names
    return {name: _cells(column) for name, column in zip(names, batch.columns, strict=True)}


def _cells(column: Any) -> Any:
    """Numbers as an array, float64 with NaN where one is null; dates as ISO text; others as is."""
    import pyarrow

    types, kind = pyarrow.types, column.type
    if types.is_integer(kind) and not column.null_count:
        return column.to_numpy(zero_copy_only=False)
    if types.is_floating(kind) or types.is_integer(kind) or types.is_decimal(kind):
        cells = column.cast(pyarrow.float64(), safe=types.is_decimal(kind))
        return cells.to_numpy(zero_copy_only=False)
    return [c.isoformat() if hasattr(c, "isoformat") else c for c in column.to_pylist()]

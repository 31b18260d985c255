"""Edges by the numbers of their rows: ids are looked up in memory, or joined by DuckDB.

Whole numbers that lie close together are looked up in an array of row numbers. A cluster, every
machine of which has room for the ids, looks other ids up in a sorted array; one machine joins them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from difformer.data.graphs import headless
from difformer.data.table.cells import cell_text
from difformer.data.table.files import first_line
from difformer.errors import DataError
from difformer.shards.edges import Pairs
from difformer.shards.engine import Files, key, matching, named, number, numbers, quoted, weights
from difformer.shards.settings import ShardSettings

BATCH = 1 << 20  # edges, or ids, read together
LOOKED_UP = 0.25  # share of the memory that an array of row numbers may take

Array = NDArray[Any]


class Lookup(Protocol):
    """From ids to the numbers of rows."""

    def rows_of(self, ids: Any) -> Array:
        """The row of each id of an Arrow column, -1 where there is none."""
        ...


@dataclass(frozen=True)
class NumberedRows:
    """Ids that are the numbers of the rows."""

    rows: int

    def rows_of(self, ids: Any) -> Array:
        given = numbers(ids)
        return np.where((given >= 0) & (given < self.rows), given, -1)


@dataclass(frozen=True)
class DenseIds:
    """The row of each id from `low` on, -1 where there is none; the last entry is always -1."""

    low: int
    row: Array  # int32

    def rows_of(self, ids: Any) -> Array:
        # As unsigned numbers, ids below the first are huge.
        place = np.minimum((numbers(ids) - self.low).view(np.uint64), np.uint64(len(self.row) - 1))
        return self.row.take(place.view(np.int64))

    @classmethod
    def read(cls, nodes: Files, id: str, room: int) -> DenseIds | None:
        """The array of whole numbers; None if it needs more bytes, or one is empty or repeated."""
        engine, cell = nodes.engine, key(id, True)
        query = f"SELECT min({cell}), max({cell}), count({cell}) FROM {nodes.sql}"
        low, high, count = engine.one(query)
        if count < nodes.rows or 4 * (high - low + 2) > room:
            return None
        row: Array = np.full(high - low + 2, -1, np.int32)
        first = 0
        for batch in engine.batches(f"SELECT {cell} FROM {nodes.sql}", BATCH):
            ids = numbers(batch.column(0))
            row[ids - low] = np.arange(first, first + len(ids), dtype=np.int32)
            first += len(ids)
        return cls(int(low), row) if int(np.count_nonzero(row >= 0)) == nodes.rows else None


@dataclass(frozen=True)
class SortedIds:
    """Ids in order, numbers or texts of one width, and the row of each."""

    ids: Array
    row: Array  # int32

    def rows_of(self, ids: Any) -> Array:
        if self.ids.dtype.kind == "S":
            width = self.ids.dtype.itemsize
            texts = [(text or "").encode() for text in ids.to_pylist()]
            cells = np.array([b"" if len(text) > width else text for text in texts], self.ids.dtype)
        else:
            cells = numbers(ids)
        place = np.searchsorted(self.ids, cells).clip(max=len(self.ids) - 1)
        return np.where(self.ids[place] == cells, self.row[place], -1)

    @classmethod
    def read(cls, nodes: Files, id: str, whole: bool) -> SortedIds:
        """All ids, as numbers where `whole`; DataError where one is empty or repeated."""
        pieces: list[Array] = []
        for batch in nodes.engine.batches(f"SELECT {key(id, whole)} FROM {nodes.sql}", BATCH):
            column = batch.column(0)
            cells = column.to_pylist() if column.null_count or not whole else None
            empty = next((i for i, c in enumerate(cells or []) if c is None or c == ""), None)
            if empty is not None:
                raise _empty(nodes, id, sum(map(len, pieces)) + empty)
            pieces.append(
                numbers(column) if cells is None else np.array([c.encode() for c in cells], "S")
            )
        ids = np.concatenate(pieces)
        row = np.argsort(ids, kind="stable").astype(np.int32)
        ids = ids[row]
        twice = np.flatnonzero(ids[1:] == ids[:-1])
        if len(twice):
            first, again = row[twice[0] : twice[0] + 2].tolist()
            said = ids[twice[0]].item()
            said = said.decode() if isinstance(said, bytes) else said
            raise _repeated(nodes, id, said, first, again)
        return cls(ids, row)


def edge_files(nodes: Files, settings: ShardSettings) -> Files:
    """The edges, without a header where the first line joins two known ids, as `read_edges` does.

    Of several files all have a header or none has.
    """
    header, paths = settings.header, [p for name in settings.edges for p in matching(name)]
    for path in paths if header else ():
        first = [cell_text(cell) for cell in first_line(path)]
        if len(first) > 1 and set(first[:2]) <= _known(nodes, settings.id, first[:2]):
            warnings.warn(headless(path, first), stacklevel=2)
            header = False
    return Files(nodes.engine, settings.edges, "edges", header=header)


def _known(nodes: Files, id: str | None, names: Sequence[str]) -> set[str]:
    """Those of some names that are ids."""
    if id is None:
        return {name for name in names if name.isdecimal() and int(name) < nodes.rows}
    cell = f"trim(CAST({named(id)} AS VARCHAR))"
    listed = ", ".join(map(quoted, names))
    query = f"SELECT DISTINCT {cell} FROM {nodes.sql} WHERE {cell} IN ({listed})"
    return {str(row[0]) for row in nodes.engine.run(query)}


def edge_columns(edges: Files) -> tuple[list[str], str | None]:
    """The two columns of ids, and the column of weights."""
    names = list(edges.types)
    if len(names) not in (2, 3):
        raise DataError(f"{edges}: must have source, target (and weight), has {names}")
    return names[:2], names[2] if len(names) == 3 else None


def edge_query(ends: list[str], weight: str | None, table: str, whole: bool) -> str:
    """SQL for the ids of each edge, as numbers where `whole`, and its weight."""
    source, target = (number(end) if whole else key(end, False) for end in ends)
    return f"SELECT {source} AS s, {target} AS t{weights(weight)} FROM {table}"


def known_pairs(batch: Any, ids: Lookup, weights_of: str) -> Pairs:
    """The edges of an Arrow batch between known rows; `weights_of` names the weights in errors."""
    rows = (ids.rows_of(batch.column(end)) for end in (0, 1))
    source, target = (each.astype(np.int64, copy=False) for each in rows)
    weight = numbers(batch.column(2), np.float32) if batch.num_columns == 3 else None
    known = (source >= 0) & (target >= 0)
    if not known.all():
        source, target = source[known], target[known]
        weight = None if weight is None else weight[known]
    if weight is not None and not ((weight >= 0) & (weight < np.inf)).all():
        raise DataError(f"{weights_of} must hold finite weights, 0 or more, in every row")
    return Pairs(source, target, weight)


def pairs_of(edges: Files, nodes: Files, id: str | None, memory: int) -> Iterator[Pairs]:
    """The edges between known rows, batch by batch; without `id`, rows are named by number."""
    engine, (ends, weight) = edges.engine, edge_columns(edges)
    ids: Lookup | None = None
    if id is None:
        ids = NumberedRows(nodes.rows)
    elif nodes.whole(id) and all(edges.whole(end) for end in ends):
        ids = DenseIds.read(nodes, id, int(LOOKED_UP * memory))
    if ids is not None:
        query = edge_query(ends, weight, edges.sql, True)
    else:
        assert id is not None
        ids, query = NumberedRows(nodes.rows), _joined(edges, nodes, id)
    for batch in engine.batches(query, BATCH):
        yield known_pairs(batch, ids, f"{edges}: column {weight!r}")
    engine.run("DROP TABLE IF EXISTS ids")


def _joined(edges: Files, nodes: Files, id: str) -> str:
    """SQL for the rows of each edge, by a join with a table of ids that is made here."""
    ends, weight = edge_columns(edges)
    known = nodes.whole(id)
    _number_ids(nodes, id)
    integers = known and all(edges.whole(end) for end in ends)
    of = "CAST({}.id AS VARCHAR)" if known and not integers else "{}.id"
    cells = [key(end, integers) for end in ends]
    return (
        f"SELECT a.row AS s, b.row AS t{weights(weight)} FROM {edges.sql} "
        f"JOIN ids a ON {of.format('a')} = {cells[0]} JOIN ids b ON {of.format('b')} = {cells[1]}"
    )


def _number_ids(nodes: Files, id: str) -> None:
    """A table `ids` with the row of each id; DataError where one is empty or repeated."""
    engine, cell = nodes.engine, key(id, nodes.whole(id))
    engine.run("DROP TABLE IF EXISTS ids")
    numbered = f"SELECT row_number() OVER () - 1 AS row, {cell} AS id FROM {nodes.sql}"
    engine.run(f"CREATE TABLE ids AS {numbered}", "numbering ids")
    empty = engine.one("SELECT row FROM ids WHERE id IS NULL OR CAST(id AS VARCHAR) = '' LIMIT 1")
    if empty is not None:
        raise _empty(nodes, id, empty[0])
    twice = engine.one(
        "SELECT id, min(row), max(row) FROM ids GROUP BY id HAVING count(*) > 1 LIMIT 1",
        "looking for repeated ids",
    )
    if twice is not None:
        raise _repeated(nodes, id, *twice)


def _empty(nodes: Files, column: str, row: int) -> DataError:
    return DataError(f"{nodes}: row {row + 1}, column {column!r}: the id is empty")


def _repeated(nodes: Files, column: str, name: Any, first: int, again: int) -> DataError:
    where = f"{nodes}: row {again + 1}, column {column!r}"
    return DataError(f"{where}: the id {str(name)!r} is also that of row {first + 1}")

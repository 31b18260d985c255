"""Edges by the numbers of their rows: ids are looked up in an array, or joined by DuckDB.

Whole numbers that lie close together are looked up in an array of row numbers; other ids, texts
among them, are joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.shards.edges import Pairs
from difformer.data.shards.engine import Engine, Files, key, number, numbers, weights
from difformer.errors import DataError

__all__ = ["RowNumbers", "edge_columns", "pairs_of"]

BATCH = 1 << 20  # edges read together
LOOKED_UP = 0.25  # the share of the memory that an array of row numbers may take

Array = NDArray[Any]


@dataclass(frozen=True)
class RowNumbers:
    """The row of each id from `low` on, -1 where there is none; the last entry is always -1."""

    low: int
    row: Array  # int32

    def of(self, ids: Array) -> Array:
        """The rows of some ids, -1 for unknown ones. O(ids)."""
        # Ids below the first become huge as unsigned numbers.
        place = np.minimum((ids - self.low).view(np.uint64), np.uint64(len(self.row) - 1))
        return self.row.take(place.view(np.int64))


def edge_columns(edges: Files) -> tuple[list[str], str | None]:
    """The two columns of ids, and the column of weights."""
    names = list(edges.types)
    if len(names) not in (2, 3):
        raise DataError(f"{edges}: must have source, target (and weight), has {names}")
    return names[:2], names[2] if len(names) == 3 else None


def pairs_of(
    engine: Engine, edges: Files, nodes: Files, id: str | None, rows: int, memory: int
) -> Iterator[Pairs]:
    """The edges between known rows, batch by batch; without `id`, rows are named by number."""
    ends, weight = edge_columns(edges)
    weighted = weights(weight)
    if id is None:
        none = np.concatenate([np.arange(rows, dtype=np.int32), np.array([-1], np.int32)])
        found = _looked_up(engine, edges, RowNumbers(0, none), weighted)
    else:
        known = None
        if all(edges.whole(end) for end in ends):
            known = _row_numbers(engine, nodes, id, rows, int(LOOKED_UP * memory))
        if known is None:
            _number_ids(engine, nodes, id)
            found = _joined(engine, edges, weighted)
        else:
            found = _looked_up(engine, edges, known, weighted)
    for pairs in found:
        if pairs.weight is not None and not ((pairs.weight >= 0) & (pairs.weight < np.inf)).all():
            raise DataError(
                f"{edges}: column {weight!r} must hold weights, 0 or more, in every row"
            )
        yield pairs
    engine.run("DROP TABLE IF EXISTS ids")


def _looked_up(engine: Engine, edges: Files, known: RowNumbers, weight: str) -> Iterator[Pairs]:
    ends, _ = edge_columns(edges)
    cells = [number(end, known.low - 1) for end in ends]
    query = f"SELECT {cells[0]} AS s, {cells[1]} AS t{weight} FROM {edges.sql}"
    for pairs in _batches(engine, query):
        source, target = known.of(pairs.source), known.of(pairs.target)
        unknown = (source < 0) | (target < 0)
        if unknown.any():
            keep = ~unknown
            source, target = source[keep], target[keep]
            pairs = pairs._replace(weight=None if pairs.weight is None else pairs.weight[keep])
        yield pairs._replace(source=source.astype(np.int64), target=target.astype(np.int64))


def _joined(engine: Engine, edges: Files, weight: str) -> Iterator[Pairs]:
    ends, _ = edge_columns(edges)
    known = any(row[0] == "id" and row[1] == "BIGINT" for row in engine.run("DESCRIBE ids"))
    integers = known and all(edges.whole(end) for end in ends)
    of = "CAST({}.id AS VARCHAR)" if known and not integers else "{}.id"
    cells = [key(end, integers) for end in ends]
    return _batches(
        engine,
        f"SELECT a.row AS s, b.row AS t{weight} FROM {edges.sql} "
        f"JOIN ids a ON {of.format('a')} = {cells[0]} JOIN ids b ON {of.format('b')} = {cells[1]}",
    )


def _batches(engine: Engine, query: str) -> Iterator[Pairs]:
    for batch in engine.batches(query, BATCH):
        weight = numbers(batch.column(2), np.float32) if batch.num_columns == 3 else None
        yield Pairs(numbers(batch.column(0)), numbers(batch.column(1)), weight)


def _row_numbers(engine: Engine, nodes: Files, id: str, rows: int, room: int) -> RowNumbers | None:
    """The array of row numbers; None if it would not fit, or if an id is empty or repeated."""
    if not nodes.whole(id):
        return None
    cell = key(id, True)
    query = f"SELECT min({cell}), max({cell}), count({cell}) FROM {nodes.sql}"
    low, high, count = engine.one(query)
    if count < rows or 4 * (high - low + 2) > room:
        return None
    row: Array = np.full(high - low + 2, -1, np.int32)
    first = 0
    for batch in engine.batches(f"SELECT {cell} FROM {nodes.sql}", BATCH):
        ids = numbers(batch.column(0))
        row[ids - low] = np.arange(first, first + len(ids), dtype=np.int32)
        first += len(ids)
    return RowNumbers(int(low), row) if int(np.count_nonzero(row >= 0)) == rows else None


def _number_ids(engine: Engine, nodes: Files, id: str) -> None:
    """A table `ids` with the number of each; DataError where one is empty or repeated."""
    cell = key(id, nodes.whole(id))
    engine.run("DROP TABLE IF EXISTS ids")
    numbered = f"SELECT row_number() OVER () - 1 AS row, {cell} AS id FROM {nodes.sql}"
    engine.run(f"CREATE TABLE ids AS {numbered}", "numbering ids")
    empty = engine.one("SELECT row FROM ids WHERE id IS NULL OR CAST(id AS VARCHAR) = '' LIMIT 1")
    if empty is not None:
        raise DataError(f"{nodes}: row {empty[0] + 1}, column {id!r}: the id is empty")
    twice = engine.one(
        "SELECT id, min(row), max(row) FROM ids GROUP BY id HAVING count(*) > 1 LIMIT 1",
        "looking for repeated ids",
    )
    if twice is not None:
        where = f"{nodes}: row {twice[2] + 1}, column {id!r}"
        raise DataError(f"{where}: the id {str(twice[0])!r} is also that of row {twice[1] + 1}")

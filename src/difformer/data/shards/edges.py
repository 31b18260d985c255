"""Edges sorted by the row they enter: a table of keys in DuckDB, read back piece by piece.

    key = target · 2³² + source · 2 + backwards

One 64-bit number is one directed edge: keys sort as (target, source) does, and the last bit
separates an edge of the file from the reverse edge added to it, so that repeated edges can be
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.shards.engine import Engine, Files, named, numbers
from difformer.data.shards.parts import Block
from difformer.errors import DataError

__all__ = ["MOST_ROWS", "EdgeTable", "Sorted", "map_edges"]

MOST_ROWS = 2**31
BATCH = 1 << 20  # keys read together
ROW = 2**32

Array = NDArray[Any]


@dataclass(frozen=True)
class Sorted:
    """Some rows' edges, each pair once: (edges,) targets, sources and optionally weights."""

    target: Array
    source: Array
    weight: Array | None
    repeated: int  # edges of the file that were repeated


class EdgeTable:
    """The edges between rows by their numbers, both ways and one loop per row, sorted."""

    def __init__(self, engine: Engine, rows: int, weighted: bool, table: str = "sorted") -> None:
        if rows >= MOST_ROWS:
            raise DataError(f"rows must be fewer than {MOST_ROWS:,}, got {rows:,}")
        self.engine, self.rows, self.weighted, self.table = engine, rows, weighted, table

    def make(self, pairs: str) -> None:
        """Sort the edges of a table or query with columns s, t (and w); O(e log e) by DuckDB."""
        ways = f"unnest([t * {ROW} + s * 2, s * {ROW} + t * 2 + 1]) AS key"
        weight, loop = (", w", ", CAST(1 AS FLOAT)") if self.weighted else ("", "")
        self.engine.run(
            f"CREATE TABLE {self.table} AS "
            f"SELECT {ways}{weight} FROM {pairs} WHERE s <> t "
            f"UNION ALL SELECT range * {ROW} + range * 2{loop} FROM range({self.rows}) "
            "ORDER BY key",
            "sorting edges",
        )

    def renumbered(self, new: Array, table: str) -> EdgeTable:
        """The same edges by other numbers of the rows, sorted again."""
        import pyarrow

        def batches() -> Iterator[Any]:
            for batch in self.engine.batches(f"SELECT * FROM {self.table}", BATCH):
                key = numbers(batch.column(0))
                source, back = (key % ROW) >> 1, key & 1
                moved = new[key // ROW].astype(np.int64) * ROW + new[source].astype(np.int64) * 2
                columns = [pyarrow.array(moved + back), *batch.columns[1:]]
                yield pyarrow.record_batch(columns, names=batch.schema.names)

        fields: list[Any] = [("key", pyarrow.int64())]
        fields += [("w", pyarrow.float32())] if self.weighted else []
        self.engine.sort(table, batches(), pyarrow.schema(fields), "sorting edges by part")
        return EdgeTable(self.engine, self.rows, self.weighted, table)

    def between(self, first: int, last: int) -> Iterator[Sorted]:
        """The edges that enter the rows `first` to `last` (without it), piece by piece."""
        keys: Array = np.zeros(0, np.int64)
        weights: Array | None = np.zeros(0, np.float32) if self.weighted else None
        where = f"key >= {first * ROW} AND key < {last * ROW}"
        for batch in self.engine.batches(f"SELECT * FROM {self.table} WHERE {where}", BATCH):
            keys = np.concatenate([keys, numbers(batch.column(0))])
            if weights is not None:
                weights = np.concatenate([weights, numbers(batch.column(1), np.float32)])
            # The last pair may go on in the next batch.
            whole = int(np.searchsorted(keys, keys[-1] & ~1))
            if whole:
                yield _merged(keys[:whole], None if weights is None else weights[:whole])
                keys = keys[whole:]
                weights = None if weights is None else weights[whole:]
        if len(keys):
            yield _merged(keys, weights)

    def blocks(self) -> Iterator[Block]:
        """Compressed rows without loops, in order: every row once, also without edges."""
        after, held = 0, list[Sorted]()
        for piece in self.between(0, self.rows):
            held.append(piece)
            target = np.concatenate([p.target for p in held])
            source = np.concatenate([p.source for p in held])
            last = int(target[-1])  # it may go on
            done = int(np.searchsorted(target, last))
            if last > after:
                yield _block(after, last, target[:done], source[:done])
                after = last
            held = [Sorted(target[done:], source[done:], None, 0)]
        if held:
            yield _block(after, self.rows, held[0].target, held[0].source)


def _block(first: int, last: int, target: Array, source: Array) -> Block:
    keep = target != source
    ends = np.cumsum(np.bincount(target[keep] - first, minlength=last - first))
    return first, ends, source[keep]


def _merged(keys: Array, weights: Array | None) -> Sorted:
    """Each pair once: without weights it counts once, with them as `Graph.from_edges` adds up."""
    if np.any(keys[1:] < keys[:-1]):
        raise DataError("sharding: the edges did not come back sorted")
    new = np.concatenate([[True], keys[1:] != keys[:-1]])
    repeated = int(np.count_nonzero(~new & (keys & 1 == 0)))
    once = keys[new]
    pair = np.concatenate([[True], once[1:] >> 1 != once[:-1] >> 1])
    weight = None
    if weights is not None:
        added = np.add.reduceat(weights, np.flatnonzero(new))
        weight = np.maximum.reduceat(added, np.flatnonzero(pair))
    kept = once[pair]
    return Sorted(kept // ROW, (kept % ROW) >> 1, weight, repeated)


def map_edges(engine: Engine, edges: Files, rows: int, ids: bool) -> tuple[str, dict[str, int]]:
    """A table of the edges by the numbers of their rows, and what was found.

    Dangling edges, which name a row that is not there, are left out and counted. With `ids` a table
    of that name gives the number of each id; without, ids are numbers.
    """
    names = list(edges.types)
    if len(names) not in (2, 3):
        raise DataError(f"{edges}: must have source, target (and weight), has {names}")
    weight = ""
    if len(names) == 3:
        weight = f", TRY_CAST({named(names[2])} AS FLOAT) AS w"
    if ids:
        known = _integer_ids(engine)
        integers = known and all(edges.whole(name) for name in names[:2])
        of = "CAST({}.id AS VARCHAR)" if known and not integers else "{}.id"
        ends = [edges.key(name, integers) for name in names[:2]]
        query = (
            f"SELECT a.row AS s, b.row AS t{weight} FROM {edges.sql} "
            f"JOIN ids a ON {of.format('a')} = {ends[0]} JOIN ids b ON {of.format('b')} = {ends[1]}"
        )
    else:
        ends = [f"TRY_CAST({named(name)} AS BIGINT)" for name in names[:2]]
        query = (
            f"SELECT {ends[0]} AS s, {ends[1]} AS t{weight} FROM {edges.sql} "
            f"WHERE {ends[0]} BETWEEN 0 AND {rows - 1} AND {ends[1]} BETWEEN 0 AND {rows - 1}"
        )
    engine.run(f"CREATE TABLE pairs AS {query}", "looking up ids")
    total = edges.count()
    kept, loops = engine.one("SELECT count(*), count(*) FILTER (s = t) FROM pairs")
    if len(names) == 3:
        bad = engine.one("SELECT s FROM pairs WHERE w IS NULL OR w < 0 OR NOT isfinite(w) LIMIT 1")
        if bad is not None:
            raise DataError(
                f"{edges}: column {names[2]!r} must hold weights, 0 or more, in every row"
            )
    return "pairs", {"edges read": total, "dangling edges": total - kept, "loops": loops}


def _integer_ids(engine: Engine) -> bool:
    types = engine.run("DESCRIBE ids")
    return any(row[0] == "id" and row[1] == "BIGINT" for row in types)

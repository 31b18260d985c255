"""Edges by the numbers of their rows: DuckDB joins their ids with those of the nodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.graphs import headless
from difformer.data.table.cells import cell_text
from difformer.data.table.files import first_line
from difformer.errors import DataError
from difformer.files import replacing
from difformer.shards.edges import Pairs
from difformer.shards.engine import Files, key, matching, named, numbers, quoted
from difformer.shards.settings import ShardSettings

BATCH = 1 << 20  # edges read together


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


def pairs_of(edges: Files, nodes: Files, id: str | None, folder: Path) -> Iterator[Pairs]:
    """The edges between known rows, batch by batch; without `id`, rows are named by number."""
    for batch in edges.engine.batches(edge_query(edges, nodes, id, folder, edges.sql), BATCH):
        yield as_pairs(batch, weights_of(edges))


def weights_of(edges: Files) -> str:
    """The column of weights, as errors name it."""
    return f"{edges}: column {edge_columns(edges)[1]!r}"


def edge_query(edges: Files, nodes: Files, id: str | None, folder: Path, table: str) -> str:
    """SQL for the rows and the weights of those edges of a table whose ends are known.

    The number of each id is written to the folder first.
    """
    ends, weight = edge_columns(edges)
    more = "" if weight is None else f", TRY_CAST({named(weight)} AS FLOAT) AS w"
    if id is None:
        s, t = (f"TRY_CAST({named(end)} AS BIGINT)" for end in ends)
        known = f"between 0 and {nodes.rows - 1}"
        cells = f"SELECT {s} AS s, {t} AS t{more} FROM {table}"
        return f"SELECT * FROM ({cells}) WHERE s {known} AND t {known}"
    integers = all(files.whole(name) for files, name in ((nodes, id), *((edges, e) for e in ends)))
    s, t = (key(end, integers) for end in ends)
    ids = f"read_parquet({quoted(str(_number_ids(nodes, id, integers, folder)))})"
    return (
        f"SELECT a.row AS s, b.row AS t{', w' if more else ''} "
        f"FROM (SELECT {s} AS s, {t} AS t{more} FROM {table}) e "
        f"JOIN {ids} a ON a.id = e.s JOIN {ids} b ON b.id = e.t"
    )


def as_pairs(batch: Any, named: str) -> Pairs:
    """An Arrow batch of `edge_query`; `named` are its weights in errors."""
    source, target = (numbers(batch.column(end)) for end in (0, 1))
    weight = numbers(batch.column(2), np.float32) if batch.num_columns == 3 else None
    if weight is not None and not ((weight >= 0) & (weight < np.inf)).all():
        raise DataError(f"{named} must hold finite weights, 0 or more, in every row")
    return Pairs(source, target, weight)


def _number_ids(nodes: Files, id: str, integers: bool, folder: Path) -> Path:
    """A file with the row of each id; DataError where one is empty or repeated."""
    path = folder.resolve() / "ids.parquet"
    if path.exists():
        return path
    engine, cell = nodes.engine, key(id, integers)
    numbered = f"SELECT row_number() OVER () - 1 AS row, {cell} AS id FROM {nodes.sql}"
    with replacing(path, error=DataError) as part:
        copy, ids = quoted(str(part)), f"read_parquet({quoted(str(part))})"
        engine.run(f"COPY ({numbered}) TO {copy} (FORMAT parquet)", "numbering ids")
        where = "WHERE id IS NULL OR CAST(id AS VARCHAR) = ''"
        if empty := engine.one(f"SELECT row FROM {ids} {where} ORDER BY row LIMIT 1"):
            raise DataError(f"{nodes}: row {empty[0] + 1}, column {id!r}: the id is empty")
        twice = engine.one(
            f"SELECT id, min(row), max(row) FROM {ids} GROUP BY id HAVING count(*) > 1 LIMIT 1",
            "looking for repeated ids",
        )
        if twice is not None:
            name, first, again = twice
            where = f"{nodes}: row {again + 1}, column {id!r}"
            raise DataError(f"{where}: the id {str(name)!r} is also that of row {first + 1}")
    return path

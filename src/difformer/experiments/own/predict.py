"""Predict the rows of a new table from a finished run, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from difformer.core.graph import Graph
from difformer.data.cells import cell_text
from difformer.data.columns import Away
from difformer.data.drift import Drift
from difformer.data.edges import read_edges
from difformer.data.rawtable import Chunk, Source, name_of, read_chunks, rows_of
from difformer.errors import DataError
from difformer.experiments.own.run import OwnRun
from difformer.files import counted

__all__ = ["edges_of", "table_lines"]


def table_lines(
    run: OwnRun,
    source: Source,
    edges: Source | None,
    tell: Callable[[str], None],
    drift: Drift,
) -> Iterator[list[list[Any]]]:
    """The answers for a table as lines of a CSV file, some at a time; first the header.

    See `predict_run` for the arguments.
    """
    names = _new_names(run, source)
    graph = None if edges is None else edges_of(run, names, edges, tell)
    among = graph is not None and graph[:, len(run.ids) :].nnz > 0
    yield [run.header]
    start = 0
    for chunk in read_chunks(source, max(len(names), 1)) if among else read_chunks(source):
        extra = run.encoder.extra(chunk)
        if extra and not start:
            tell(f"{name_of(source)}: ignored, because not in training: {', '.join(extra)}")
        away: Away = {}
        features = _encoded(run, chunk, start + 1, source, tell, away)
        stop = start + features.shape[0]
        mine = None if graph is None else graph[start:stop]
        ids = None if run.encoder.id is None else names[start:stop]
        drift.add(run.encoder, chunk, away, stop - start, start=start + 1, names=ids)
        yield run.lines(names[start:stop], run.answer(features, mine, ids=ids))
        start = stop
    if drift:
        tell(f"{name_of(source)}: {drift.line}")


def _encoded(
    run: OwnRun,
    chunk: Chunk,
    start: int,
    source: Source,
    tell: Callable[[str], None],
    away: Away,
) -> Any:
    """Features of some rows; a few cells that cannot be read are named, and taken as empty."""
    known = [column for column in run.encoder.columns if column.name in chunk]
    try:
        bad = [cell for c in known for cell in c.unreadable(chunk[c.name], start)]
    except DataError as error:
        raise DataError(f"{name_of(source)}: {error}") from error
    if bad:
        count = counted(len(bad), "cell")
        told = f"{count} taken as empty, because not as in training: {', '.join(bad[:3])}"
        tell(f"{name_of(source)}: {told}")
    return run.encoder.encode_chunk(chunk, start, source, strict=False, away=away)


def _new_names(run: OwnRun, source: Source) -> list[str]:
    """The ids of the rows: their numbers if the table of training has no column of ids."""
    column, where = run.encoder.id, name_of(source)
    if column is None:
        return [str(row) for row in range(sum(map(rows_of, read_chunks(source))))]
    names: dict[str, int] = {}
    for chunk in read_chunks(source):
        if column not in chunk:
            raise DataError(f"{where}: the id column {column!r} of training is missing")
        for name in map(cell_text, chunk[column]):
            row = len(names) + 1
            if names.setdefault(name, row) != row:
                place = f"{where}: row {row}, column {column!r}"
                raise DataError(f"{place}: the id {name!r} comes twice")
    return list(names)


def edges_of(run: OwnRun, names: Sequence[str], edges: Source, tell: Callable[[str], None]) -> Any:
    """A (new rows, known and new rows) matrix of the edges that a file or a mapping brings."""
    from scipy.sparse import csr_matrix

    known = {name: row for row, name in enumerate(run.ids)}
    n, m = len(known), len(names)
    # An id that is in the new table names its row there: the edge is one that this row brings.
    pairs, weight = read_edges(edges, known | {name: n + row for row, name in enumerate(names)})
    new = (pairs >= n).any(0)
    if not bool(new.all()):
        where = edges if isinstance(edges, str | Path) else "edges"
        tell(f"{where}: ignored, because between known rows: {counted(int((~new).sum()), 'edge')}")
    directed = run.estimator.directed
    found = Graph.from_edges(pairs, n + m, weight, undirected=not directed, self_loops=False)
    source, target = found.edge_index.numpy()
    mine = target >= n
    value = np.ones(len(source)) if found.edge_weight is None else found.edge_weight.numpy()
    return csr_matrix((value[mine], (target[mine] - n, source[mine])), shape=(m, n + m))

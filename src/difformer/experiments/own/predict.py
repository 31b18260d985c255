"""Predict the rows of a new table from a finished run, chunk by chunk."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from difformer.core.graph import Graph
from difformer.data.cells import cell_text
from difformer.data.edges import read_edges
from difformer.data.rawtable import Chunk, Source, read_chunks
from difformer.errors import DataError
from difformer.experiments.own.run import OwnRun
from difformer.files import answer_file

__all__ = ["edges_of", "predict_own"]


def predict_own(
    folder: str | Path,
    source: Source,
    out: str | Path,
    *,
    edges: Source | None = None,
    level: float | None = None,
    overwrite: bool = False,
    tell: Callable[[str], None] = warnings.warn,
) -> int:
    """Predict a table, chunk by chunk, into a CSV file; returns how many rows.

    Args:
        out: where the file goes, see `answer_file`.
        edges: id, id (and weight): what joins the new rows to known ones and to one another. With
            edges among new rows the table is read at once.
        level: of intervals (of numbers) or sets (of classes) beside the answers; None for none.
        tell: takes a note about what was passed over.
    """
    run = OwnRun.load(folder, level=level)
    with answer_file(out, overwrite=overwrite) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(run.header)
        count = 0
        for lines in _lines(run, source, edges, tell):
            writer.writerows(lines)
            count += len(lines)
    return count


def _lines(
    run: OwnRun, source: Source, edges: Source | None, tell: Callable[[str], None]
) -> Iterator[list[list[Any]]]:
    names = _new_names(run, source)
    graph = None if edges is None else edges_of(run, names, edges, tell)
    among = graph is not None and graph[:, len(run.ids) :].nnz > 0
    start = 0
    for chunk in read_chunks(source, max(len(names), 1)) if among else read_chunks(source):
        extra = run.encoder.extra(chunk)
        if extra and not start:
            where = source if isinstance(source, str | Path) else "the table"
            tell(f"{where}: not looked at, because not there in training: {', '.join(extra)}")
        features = _encoded(run, chunk, start + 1, source, tell)
        stop = start + features.shape[0]
        mine = None if graph is None else graph[start:stop]
        ids = None if run.encoder.id is None else names[start:stop]
        yield run.lines(names[start:stop], run.answer(features, mine, ids=ids))
        start = stop


def _encoded(
    run: OwnRun, chunk: Chunk, start: int, source: Source, tell: Callable[[str], None]
) -> Any:
    """Features of some rows; a few cells that cannot be read are named, and taken as empty."""
    where = source if isinstance(source, str | Path) else "the table"
    known = [column for column in run.encoder.columns if column.name in chunk]
    try:
        bad = [cell for c in known for cell in c.unreadable(chunk[c.name], start)]
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if bad:
        count = f"{len(bad)} cell{'s' if len(bad) > 1 else ''}"
        tell(f"{where}: {count} taken as empty, because not as in training: {', '.join(bad[:3])}")
    return run.encoder.encode_chunk(chunk, start, source, strict=False)


def _new_names(run: OwnRun, source: Source) -> list[str]:
    column = run.encoder.id
    names: list[str] = []
    for chunk in read_chunks(source):
        size = len(next(iter(chunk.values()), []))
        if column is not None and column not in chunk:
            raise DataError(f"{source}: the id column {column!r} of training is missing")
        if column is None:
            names += [str(len(names) + i) for i in range(size)]
        else:
            names += [cell_text(v) for v in chunk[column]]
    seen: set[str] = set()
    for row, name in enumerate(names, 1):
        if name in seen:
            raise DataError(
                f"{source}: row {row}, column {column!r}: the id {name!r} is there twice"
            )
        seen.add(name)
    return names


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
        tell(f"{where}: not looked at, because between known rows: {int((~new).sum())} edges")
    directed = run.estimator.directed
    found = Graph.from_edges(pairs, n + m, weight, undirected=not directed, self_loops=False)
    source, target = found.edge_index.numpy()
    mine = target >= n
    value = np.ones(len(source)) if found.edge_weight is None else found.edge_weight.numpy()
    return csr_matrix((value[mine], (target[mine] - n, source[mine])), shape=(m, n + m))

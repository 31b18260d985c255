"""Predict the rows of a new table from a finished run, chunk by chunk."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from difformer.data.rawtable import Source, read_chunks
from difformer.data.tables import read_edges
from difformer.errors import DataError, RunError
from difformer.experiments.own.run import OwnRun

__all__ = ["predict_own"]


def predict_own(
    folder: str | Path, source: Source, out: str | Path, *, edges: Source | None = None
) -> int:
    """Predict a table, chunk by chunk, into a CSV file; returns how many rows.

    Args:
        edges: known id, new id (and weight): what joins the new rows to known ones.
    """
    run = OwnRun.load(folder)
    out = Path(out)
    part = out.with_name(f".new-{out.name}")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(run.header)
            count = 0
            for lines in _lines(run, source, edges):
                writer.writerows(lines)
                count += len(lines)
        part.replace(out)
    except OSError as error:
        raise RunError(f"cannot write {out}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    return count


def _lines(run: OwnRun, source: Source, edges: Source | None) -> Iterator[list[list[Any]]]:
    names = _new_names(run, source)
    graph = None if edges is None else _between(run, names, edges)
    start = 0
    for chunk in read_chunks(source):
        features = run.encoder.encode_chunk(chunk, start + 1, source)
        stop = start + features.shape[0]
        mine = None if graph is None else graph[start:stop]
        ids = None if run.encoder.id is None else names[start:stop]
        yield run.lines(names[start:stop], run.answer(features, mine, ids=ids))
        start = stop


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
            names += [str(v).strip() for v in chunk[column]]
    seen: set[str] = set()
    for row, name in enumerate(names, 1):
        if name in seen:
            raise DataError(
                f"{source}: row {row}, column {column!r}: the id {name!r} is there twice"
            )
        seen.add(name)
    return names


def _between(run: OwnRun, names: Sequence[str], edges: Source) -> Any:
    """A (new rows, known rows) matrix of the edges that a file brings."""
    from scipy.sparse import coo_matrix

    known = {name: row for row, name in enumerate(run.ids)}
    new = {name: len(known) + row for row, name in enumerate(names)}
    # An id that is in the new table names its row there: the edge is one that this row brings.
    pairs, weight = read_edges(edges, {**known, **new})
    n = len(known)
    rows: list[int] = []
    columns: list[int] = []
    for a, b in pairs.T.tolist():
        if (a < n) == (b < n):
            raise DataError(f"{edges}: an edge must join a known row and a new one")
        rows.append(max(a, b) - n)
        columns.append(min(a, b))
    values = np.ones(len(rows)) if weight is None else weight.numpy()
    return coo_matrix((values, (rows, columns)), shape=(len(names), n)).tocsr()

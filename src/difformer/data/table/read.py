"""Read a table into a Dataset: typed columns, label columns, ids, and a file of edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from scipy import sparse

from difformer.data.dataset import Dataset, csr_tensor
from difformer.data.graphs import read_edges
from difformer.data.table.cells import cell_text, is_missing
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.files import (
    CHUNK,
    Chunk,
    Source,
    check_columns,
    collected,
    is_frame,
    name_of,
    read_chunks,
    rows_of,
    without_header,
)
from difformer.data.table.labels import LabelCoder, label_names
from difformer.errors import DataError


def read_table(
    nodes: Source,
    label: str | Sequence[str],
    *,
    id: str | None = None,
    edges: Source | None = None,
    task: str | None = None,
    kinds: Mapping[str, str] | None = None,
    unlabelled: Any = -1,
    header: bool = True,
    size: int = CHUNK,
) -> Dataset:
    """Read a table (and edges between its rows) into a Dataset; three passes, chunk by chunk.

    Args:
        nodes: a CSV, JSON lines, Parquet or npz file, a data frame, or a mapping of columns.
        label: the column to predict; an empty cell is a row to predict. Several columns are
            predicted together: all yes or no (0 and 1, true and false) or all numbers.
        id: a column that names each row, for `edges`; without it rows are named by the index of a
            data frame, or by their number from 0 if that index only counts or there is none.
        edges: a file of two or three columns: source, target and optionally weight.
        task: "multiclass", "regression", or "multilabel" for several columns of yes or no; by
            default numbers that are not whole, or many of them, are regression.
        kinds: columns whose kind is given and not guessed: "number", "date", "category", "text" or
            "skip", which leaves a column out.
        unlabelled: the number that marks a row to predict among classes, as for the estimators;
            None if -1 is a class.
        header: False if the first line of CSV files is a row: columns are column1, column2, ...

    >>> data = read_table({"size": [1, 2, 8, 9], "kind": ["ant", "ant", "cat", None]}, "kind")
    >>> data.class_names, data.y.tolist()
    (('ant', 'cat'), [0, 0, 1, -1])
    """
    name = Path(nodes).stem if isinstance(nodes, str | Path) else "table"
    if not header:
        nodes, edges = without_header(nodes), without_header(edges)
    wanted, nodes, edges = label_names(label), collected(nodes), collected(edges)
    _check_labels(wanted, id)
    special = (*wanted, *([id] if id else []))
    columns: Chunk = {column: list[Any]() for column in special}
    count = 0
    for chunk in read_chunks(nodes, size):
        check_columns(chunk, special, nodes)
        for column, cells in columns.items():
            cells += list(chunk[column])
        count += rows_of(chunk)
    file = name_of(nodes)
    ids = _index(nodes, needed=edges is not None)
    if id is not None:
        ids = [cell_text(cell) for cell in columns.pop(id)]
    where = _row_of(ids or [str(row) for row in range(count)], file, id)
    label = wanted[0] if len(wanted) == 1 else wanted
    encoder = TableEncoder.learn(nodes, label=label, id=id, kinds=kinds, size=size)
    features = encoder.encode(nodes, size, strict=False)
    labels = LabelCoder.learn(columns, file=file, task=task, unlabelled=unlabelled)
    edge_index = weight = None
    if edges is not None:
        numbered = "" if ids else ": rows are numbered from 0, or name the column of their ids"
        edge_index, weight = read_edges(edges, where, unknown=f"is not a known id{numbered}")
    return Dataset(
        name=name,
        x=csr_tensor(features) if sparse.issparse(features) else torch.from_numpy(features),
        y=torch.from_numpy(labels.encode(columns)),
        task=labels.task,
        edge_index=edge_index,
        edge_weight=weight,
        class_names=labels.class_names,
        source=file,
        ids=tuple(ids),
        encoder=replace(encoder, notes=labels.notes),
    )


def _check_labels(names: Sequence[str], id: str | None) -> None:
    for name in names:
        if names.count(name) > 1 or name == id:
            raise ValueError(f"label must name columns once, and not the ids: {name!r}")
    if not names:
        raise ValueError("label must name at least one column")


def _index(nodes: Source, *, needed: bool) -> list[str]:
    """The ids from a data frame's index; none if it only numbers the rows.

    An index with duplicates, as after `concat`, gives ids only where they are needed.
    """
    index = getattr(nodes, "index", None) if is_frame(nodes) else None
    if index is None or type(index).__name__ == "RangeIndex":
        return []
    names = [cell_text(name) for name in index]
    return names if needed or len(set(names)) == len(names) else []


def _row_of(ids: Sequence[str], file: str, column: str | None) -> dict[str, int]:
    where: dict[str, int] = {}
    for row, name in enumerate(ids):
        if is_missing(name) or name in where:
            at = f"row {row + 1}" + (f", column {column!r}" if column else "")
            told = (
                "is empty"
                if is_missing(name)
                else f"{name!r} is also that of row {where[name] + 1}"
            )
            raise DataError(f"{file}: {at}: the id {told}")
        where[name] = row
    return where

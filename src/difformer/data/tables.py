"""A user's own files as a dataset: the table of rows, a label column, ids, and a file of edges."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from difformer.data.columns import Column, Survey, is_missing
from difformer.data.convert import csr_tensor
from difformer.data.dataset import Dataset
from difformer.data.rawtable import CHUNK, Chunk, read_chunks
from difformer.errors import DataError

__all__ = ["OwnData", "TableEncoder", "from_pyg", "read_edges", "read_table"]

VERSION = 1
MOST_CLASSES = 50  # whole numbers with more distinct values are quantities
Source = str | Path | Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class TableEncoder:
    """How a table's columns become features: learned from one table, used on any like it."""

    columns: tuple[Column, ...]
    label: str | None
    id: str | None

    @property
    def width(self) -> int:
        """How many features a row has."""
        return sum(column.width for column in self.columns)

    def describe(self) -> list[tuple[str, str, str]]:
        """Name, kind and treatment of each column, to be shown before training."""
        special = [
            (name, kind, "") for name, kind in ((self.label, "label"), (self.id, "id")) if name
        ]
        return [*special, *(column.describe() for column in self.columns)]

    @classmethod
    def learn(
        cls,
        source: Source,
        *,
        label: str | None = None,
        id: str | None = None,
        kinds: Mapping[str, str] | None = None,
        size: int = CHUNK,
    ) -> TableEncoder:
        """One pass over the table, chunk by chunk; the label column is not looked at."""
        surveys: dict[str, Survey] = {}
        start = 1
        for chunk in read_chunks(source, size):
            names = [n for n in chunk if n not in (label, id)]
            _same_columns(chunk, names, surveys, source, label, id)
            for name in names:
                surveys.setdefault(name, Survey(name)).add(chunk[name], start)
            start += len(next(iter(chunk.values()), []))
        if start == 1:
            raise DataError(f"{_name(source)}: has no rows")
        for name in kinds or {}:
            if name not in surveys:
                raise DataError(f"{_name(source)}: has no column {name!r} to give a kind")
        try:
            columns = tuple(s.column((kinds or {}).get(n)) for n, s in surveys.items())
        except DataError as error:
            raise DataError(f"{_name(source)}: {error}") from error
        encoder = cls(columns, label, id)
        if encoder.width == 0:
            raise DataError(f"{_name(source)}: no column can be used: {encoder.describe()}")
        return encoder

    def encode(self, source: Source, size: int = CHUNK) -> Any:
        """(n, width) float32: dense, or SciPy CSR where there is text; cells in chunks."""
        parts = [self.encode_chunk(c, start, source) for start, c in _numbered(source, size)]
        if not parts:
            raise DataError(f"{_name(source)}: has no rows")
        return sparse.vstack(parts).tocsr() if sparse.issparse(parts[0]) else np.concatenate(parts)

    def encode_chunk(self, chunk: Chunk, start: int = 1, source: Source = "the table") -> Any:
        """One chunk whose first row is row `start`; columns missing or new are errors."""
        wanted = [c.name for c in self.columns]
        for name in wanted:
            if name not in chunk:
                raise DataError(f"{_name(source)}: column {name!r} of training is missing")
        for name in chunk:
            if name not in wanted and name not in (self.label, self.id):
                raise DataError(f"{_name(source)}: column {name!r} was not there in training")
        used = [c for c in self.columns if c.width]
        try:
            blocks = [c.encode(chunk[c.name], start) for c in used]
        except DataError as error:
            raise DataError(f"{_name(source)}: {error}") from error
        if any(sparse.issparse(b) for b in blocks):
            return sparse.hstack(blocks, format="csr").astype(np.float32)
        return np.hstack(blocks).astype(np.float32)

    def to_json(self) -> str:
        """All that was learned, as JSON text."""
        columns = [c.to_json() for c in self.columns]
        record = {"version": VERSION, "label": self.label, "id": self.id, "columns": columns}
        return json.dumps(record)

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """What `to_json` wrote; DataError where it is not."""
        try:
            record = json.loads(text)
            if record["version"] != VERSION:
                raise ValueError(f"version {record['version']}, not {VERSION}")
            columns = tuple(Column.from_json(c) for c in record["columns"])
            return cls(columns, record["label"], record["id"])
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"not a table's description: {error}") from error


@dataclass(frozen=True)
class OwnData:
    """A dataset read from files, with what is needed to read more files like it."""

    dataset: Dataset
    encoder: TableEncoder
    ids: tuple[str, ...]
    labels: tuple[Any, ...]  # as in the file, None where empty
    features: Any  # the rows as an array or CSR matrix, the same numbers as dataset.x
    edges: str | None = None  # the file of edges, as given


def read_table(
    nodes: Source,
    label: str,
    *,
    id: str | None = None,
    edges: Source | None = None,
    task: str | None = None,
    kinds: Mapping[str, str] | None = None,
    size: int = CHUNK,
) -> OwnData:
    """Read a table (and edges between its rows) into a Dataset; two passes, O(chunk) cells held.

    Args:
        nodes: a CSV, JSON lines, Parquet or npz file, or a mapping of columns.
        label: the column to predict; an empty cell is a row to predict.
        id: a column that names each row, for `edges`; without it rows are numbered from 0.
        edges: a file of two or three columns: source, target and perhaps weight.
        task: "multiclass" or "regression"; by default numbers that are not whole, or many of
            them, are regression.
        kinds: columns whose kind is not to be guessed: "number", "category", "text", "left out".
    """
    labels: list[Any] = []
    ids: list[str] = []
    for _, chunk in _numbered(nodes, size):
        for column, what in ((label, "label"), (id, "id")):
            if column is not None and column not in chunk:
                known = ", ".join(chunk)
                raise DataError(f"{_name(nodes)}: has no {what} column {column!r}; it has {known}")
        labels += [None if is_missing(v) else v for v in chunk[label]]
        ids += [str(v).strip() for v in chunk[id]] if id else []
    ids = ids or [str(row) for row in range(len(labels))]
    where = _row_of(ids, _name(nodes), id)
    encoder = TableEncoder.learn(nodes, label=label, id=id, kinds=kinds, size=size)
    features = encoder.encode(nodes, size)
    y, task, names = _read_labels(labels, label, task, _name(nodes))
    edge_index = weight = None
    if edges is not None:
        numbered = "" if id else ": rows are numbered from 0, or name the column of their ids"
        edge_index, weight = read_edges(edges, where, hint=numbered)
    dataset = Dataset(
        name=Path(nodes).stem if isinstance(nodes, str | Path) else "table",
        x=csr_tensor(features) if sparse.issparse(features) else torch.from_numpy(features),
        y=y,
        task=task,
        edge_index=edge_index,
        edge_weight=weight,
        class_names=names,
        source=_name(nodes),
    )
    named = None if edges is None else _name(edges)
    return OwnData(dataset, encoder, tuple(ids), tuple(labels), features, named)


def read_edges(
    source: Source, where: Mapping[str, int], *, hint: str = ""
) -> tuple[Tensor, Tensor | None]:
    """Edges (2, e) of a file by the rows' ids, and their weights; unknown ids are named."""
    pairs: list[tuple[int, int]] = []
    weights: list[float] = []
    width = 0
    for start, chunk in _numbered(source, CHUNK):
        names = list(chunk)
        width = len(names)
        if width not in (2, 3):
            raise DataError(f"{_name(source)}: must have source, target (and weight), has {names}")
        columns = [chunk[n] for n in names]
        for i, cells in enumerate(zip(*columns, strict=True)):
            ends: list[int] = []
            for name, cell in zip(names[:2], cells[:2], strict=True):
                found = where.get(str(cell).strip())
                if found is None:
                    at = f"{_name(source)}: row {start + i}, column {name!r}"
                    raise DataError(f"{at}: {cell!r} is no known id{hint}")
                ends.append(found)
            pairs.append((ends[0], ends[1]))
            if width == 3:
                weights.append(_weight(cells[2], source, start + i, names[2]))
    edge_index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T.contiguous()
    return edge_index, torch.tensor(weights) if width == 3 else None


def from_pyg(data: Any, name: str = "data") -> Dataset:
    """A torch_geometric Data as a Dataset, with its train, val and test masks as split "given"."""
    from difformer.data.split import mask_split

    if data.x is None or data.y is None:
        raise DataError(f"{name}: must have x and y")
    y = data.y
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    task = "multiclass"
    if y.ndim == 2 and set(y[~y.isnan()].unique().tolist()) <= {0.0, 1.0}:
        y, task = y.float(), "multilabel"
    elif y.is_floating_point() or y.ndim == 2:
        y, task = y.float(), "regression"
    masks: list[Any] = [getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")]
    whole = all(isinstance(m, Tensor) and m.ndim == 1 for m in masks)
    splits = {"given": mask_split(*masks)} if whole else {}
    weight = getattr(data, "edge_weight", None)
    return Dataset(
        name, data.x.float(), y, task, data.edge_index, weight, splits=splits, source="PyG Data"
    )


def _numbered(source: Source, size: int) -> Any:
    start = 1
    for chunk in read_chunks(source, size):
        yield start, chunk
        start += len(next(iter(chunk.values()), []))


def _read_labels(
    labels: Sequence[Any], column: str, task: str | None, file: str
) -> tuple[Tensor, str, tuple[str, ...]]:
    known = [v for v in labels if v is not None]
    if not known:
        raise DataError(f"{file}: the label column {column!r} is empty in every row")
    numbers = [_as_number(v) for v in known]
    numeric = all(v is not None for v in numbers)
    if task is None:
        whole = numeric and all(v == round(v) for v in numbers if v is not None)
        few = len(set(numbers)) <= min(MOST_CLASSES, max(2, len(known) // 2))
        task = "regression" if numeric and not (whole and few) else "multiclass"
    if task == "regression":
        values = [math.nan if v is None else _as_number(v) for v in labels]
        for row, value in enumerate(values, 1):
            if value is None or math.isinf(value):
                raise DataError(
                    f"{file}: row {row}, column {column!r}: {labels[row - 1]!r} is not a number"
                )
        return torch.tensor(values, dtype=torch.float32).reshape(-1, 1), task, ()
    if task != "multiclass":
        raise ValueError(f"task must be multiclass or regression, got {task!r}")
    texts = [None if v is None else str(v).strip() for v in labels]
    names = sorted({t for t in texts if t is not None}, key=lambda t: (_as_number(t) or 0.0, t))
    if len(names) < 2:
        raise DataError(f"{file}: the label column {column!r} has one class only: {names[0]!r}")
    code = {name: i for i, name in enumerate(names)}
    y = torch.tensor([-1 if t is None else code[t] for t in texts], dtype=torch.int64)
    return y, task, tuple(names)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _row_of(ids: Sequence[str], file: str, column: str | None) -> dict[str, int]:
    where: dict[str, int] = {}
    for row, name in enumerate(ids):
        if is_missing(name):
            raise DataError(f"{file}: row {row + 1}, column {column!r}: the id is empty")
        if name in where:
            raise DataError(
                f"{file}: row {row + 1}, column {column!r}: the id {name!r} is also that of "
                f"row {where[name] + 1}"
            )
        where[name] = row
    return where


def _same_columns(
    chunk: Chunk,
    names: Sequence[str],
    surveys: Mapping[str, Survey],
    source: Source,
    label: str | None,
    id: str | None,
) -> None:
    if surveys and list(surveys) != list(names):
        raise DataError(f"{_name(source)}: its columns change on the way: {list(names)}")
    for name in (label, id):
        if name is not None and name not in chunk:
            raise DataError(f"{_name(source)}: has no column {name!r}; it has {', '.join(chunk)}")


def _weight(cell: Any, source: Source, row: int, name: str) -> float:
    value = _as_number(cell)
    if value is None or not math.isfinite(value) or value < 0:
        raise DataError(
            f"{_name(source)}: row {row}, column {name!r}: {cell!r} must be a weight, 0 or more"
        )
    return value


def _name(source: Source) -> str:
    return str(source) if isinstance(source, str | Path) else "the table"

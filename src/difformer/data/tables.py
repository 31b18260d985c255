"""Read a table into a Dataset: typed columns, label columns, ids, and a file of edges."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from difformer.data.columns import (
    BAD_SHARE,
    FEW_NUMBERS,
    KINDS,
    PLAIN,
    SAMPLE,
    Column,
    Survey,
    cell_text,
    encode_numbers,
    format_of,
    is_missing,
    read_numbers,
    standardise,
)
from difformer.data.convert import csr_tensor
from difformer.data.dataset import Dataset
from difformer.data.rawtable import CHUNK, Chunk, Source, is_frame, read_chunks
from difformer.errors import DataError

__all__ = ["LabelCoder", "TableEncoder", "from_pyg", "read_edges", "read_pyg", "read_table"]

VERSION = 2
MOST_CLASSES = 50  # whole numbers with more distinct values are quantities
LARGEST = 1e15  # largest number that is not scaled: its square must be a float32

Array = NDArray[Any]


@dataclass(frozen=True)
class TableEncoder:
    """How a table's columns become features: learned from one table, applied to others."""

    columns: tuple[Column, ...]
    label: str | tuple[str, ...] | None = None
    id: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict[str, str])  # on label columns

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The label columns: none, one or several."""
        return _names(self.label)

    @cached_property
    def width(self) -> int:
        """How many features a row has."""
        return sum(column.width for column in self.columns)

    def describe(self) -> list[tuple[str, str, str]]:
        """Name, kind and treatment of each column, to be shown before training."""
        special = [(name, "label", self.notes.get(name, "")) for name in self.labels]
        special += [(self.id, "id", "")] if self.id else []
        return [*special, *(column.describe() for column in self.columns)]

    @classmethod
    def learn(
        cls,
        source: Source,
        *,
        label: str | Sequence[str] | None = None,
        id: str | None = None,
        kinds: Mapping[str, str] | None = None,
        size: int = CHUNK,
        start: int = 1,
        most: int | None = None,
    ) -> TableEncoder:
        """Learn from one pass over a table, chunk by chunk; the label column is not used.

        Errors and reports number its rows from `start` on. `most` bounds the numbers of a column
        that are held at once, see `Survey`.
        """
        surveys: dict[str, Survey] = {}
        asked = kinds or {}
        for name, kind in asked.items():
            if kind not in KINDS:
                raise DataError(f"kind of {name!r} must be one of {', '.join(KINDS)}, got {kind!r}")
        given, first = {**_given_kinds(source), **asked}, start
        special = [*_names(label), *([id] if id else [])]
        # A column's format is recognised by its first cells, which must not depend on `size`.
        for chunk in read_chunks(source, max(size, SAMPLE)):
            names = [n for n in chunk if n not in special]
            _same_columns(chunk, names, surveys, source, special)
            for name in names:
                survey = surveys.setdefault(name, Survey(name, given=given.get(name), most=most))
                survey.add(chunk[name], start)
            start += _rows_of(chunk)
        if start == first:
            raise DataError(f"{_name(source)}: has no rows")
        for name in asked:
            if name not in surveys:
                raise DataError(f"{_name(source)}: has no column {name!r} to give a kind")
        try:
            columns = tuple(s.column(asked.get(n)) for n, s in surveys.items())
        except DataError as error:
            raise DataError(f"{_name(source)}: {error}") from error
        encoder = cls(columns, label if isinstance(label, str | None) else tuple(label), id)
        if encoder.width == 0:
            reasons = "; ".join(f"{c.name}: {c.reason}" for c in columns)
            raise DataError(f"{_name(source)}: no column can be used ({reasons})")
        return encoder

    @classmethod
    def of_numbers(cls, rows: Array, names: Sequence[str], *, scale: bool = True) -> TableEncoder:
        """One column of numbers for each column of an array (n, p), none left out. O(n p)."""
        p = rows.shape[1]
        mean, deviation = np.zeros(p), np.ones(p)
        low, high = np.full(p, -LARGEST), np.full(p, LARGEST)
        if scale:
            mean, deviation, low, high = standardise(rows)
        missing = np.isnan(rows).sum(0).tolist()
        figures = zip(mean.tolist(), deviation.tolist(), low.tolist(), high.tolist(), strict=True)
        columns = [
            Column(
                name,
                "number",
                "a column of an array",
                gone,
                {
                    "mean": m,
                    "scale": s,
                    "low": first,
                    "high": last,
                    "flag": gone > 0,
                    "written": PLAIN,
                },
            )
            for name, gone, (m, s, first, last) in zip(names, missing, figures, strict=True)
        ]
        return cls(tuple(columns))

    def encode(self, source: Source, size: int = CHUNK, *, strict: bool = True) -> Any:
        """(n, width) float32: dense, or SciPy CSR where there is text; cells in chunks."""
        parts = [
            self.encode_chunk(c, start, source, strict=strict)
            for start, c in _numbered(source, size)
        ]
        if not parts:
            raise DataError(f"{_name(source)}: has no rows")
        return sparse.vstack(parts).tocsr() if sparse.issparse(parts[0]) else np.concatenate(parts)

    def encode_array(self, rows: Array) -> Array:
        """(m, width) float32 from an array (m, p) of numbers, NaN where missing. O(m p)."""
        out = np.empty((len(rows), self.width), np.float32)
        for start in range(0, len(rows), CHUNK):
            part = slice(start, start + CHUNK)
            out[part] = encode_numbers(rows[part], self.columns)
        return out

    def encode_chunk(
        self, chunk: Chunk, start: int = 1, source: Source = "the table", *, strict: bool = True
    ) -> Any:
        """Encode one chunk whose first row is row `start`; a missing column is an error.

        A cell that cannot be read is an error, or missing if not `strict`.
        """
        for column in self.columns:
            if column.name not in chunk:
                raise DataError(f"{_name(source)}: column {column.name!r} of training is missing")
        used = [c for c in self.columns if c.width]
        try:
            blocks = [c.encode(chunk[c.name], start, strict=strict) for c in used]
        except DataError as error:
            raise DataError(f"{_name(source)}: {error}") from error
        if any(sparse.issparse(b) for b in blocks):
            return sparse.hstack(blocks, format="csr").astype(np.float32)
        return np.hstack(blocks).astype(np.float32)

    def extra(self, chunk: Chunk) -> list[str]:
        """The columns of a chunk that training did not have; they are ignored."""
        known = {*(c.name for c in self.columns), *self.labels, self.id}
        return [name for name in chunk if name not in known]

    def to_json(self) -> str:
        """Everything learned, as JSON text."""
        columns = [c.to_json() for c in self.columns]
        record = {"version": VERSION, "label": self.label, "id": self.id, "columns": columns}
        return json.dumps({**record, "notes": dict(self.notes)})

    @classmethod
    def from_json(cls, text: str) -> TableEncoder:
        """Read what `to_json` wrote; DataError if it is not that."""
        try:
            record = json.loads(text)
            if record["version"] != VERSION:
                raise ValueError(f"version {record['version']}, not {VERSION}")
            columns = tuple(Column.from_json(c) for c in record["columns"])
            label, notes = record["label"], record.get("notes", {})
            label = tuple(label) if isinstance(label, list) else label
            return cls(columns, label, record["id"], {str(k): str(v) for k, v in notes.items()})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise DataError(f"not a table's description: {error}") from error


def read_table(
    nodes: Source,
    label: str | Sequence[str],
    *,
    id: str | None = None,
    edges: Source | None = None,
    task: str | None = None,
    kinds: Mapping[str, str] | None = None,
    unlabelled: Any = -1,
    size: int = CHUNK,
) -> Dataset:
    """Read a table (and edges between its rows) into a Dataset; three passes, chunk by chunk.

    Args:
        nodes: a CSV, JSON lines, Parquet or npz file, a data frame, or a mapping of columns.
        label: the column to predict; an empty cell is a row to predict. Several columns are
            predicted together: all yes or no (0 and 1, true and false) or all numbers.
        id: a column that names each row, for `edges`; without it the index of a data frame names
            them, and where that only numbers them, or there is none, their number from 0 on.
        edges: a file of two or three columns: source, target and optionally weight.
        task: "multiclass", "regression", or "multilabel" for several columns of yes or no; by
            default numbers that are not whole, or many of them, are regression.
        kinds: columns whose kind is given and not guessed: "number", "date", "category", "text" or
            "skip", which leaves a column out.
        unlabelled: the number that marks a row to predict where classes are numbers, as for the
            estimators; None if -1 is a class.

    >>> data = read_table({"size": [1, 2, 8, 9], "kind": ["ant", "ant", "cat", None]}, "kind")
    >>> data.class_names, data.y.tolist()
    (('ant', 'cat'), [0, 0, 1, -1])
    """
    wanted = _names(label)
    _check_labels(wanted, id)
    labels: dict[str, list[Any]] = {name: [] for name in wanted}
    ids: list[str] = []
    count = 0
    for _, chunk in _numbered(nodes, size):
        for column, what in (*((name, "label") for name in wanted), (id, "id")):
            if column is not None and column not in chunk:
                known = ", ".join(chunk)
                raise DataError(f"{_name(nodes)}: has no {what} column {column!r}; it has {known}")
        for name in wanted:
            labels[name] += [None if is_missing(v) else v for v in chunk[name]]
        ids += [cell_text(v) for v in chunk[id]] if id else []
        count += _rows_of(chunk)
    if id is None:
        ids = _index(nodes, needed=edges is not None)
    where = _row_of(ids or [str(row) for row in range(count)], _name(nodes), id)
    if len(wanted) == 1:
        label = wanted[0]
    encoder = TableEncoder.learn(nodes, label=label, id=id, kinds=kinds, size=size)
    features = encoder.encode(nodes, size, strict=False)
    read = [_Labels(cells, name, _name(nodes)) for name, cells in labels.items()]
    if len(read) == 1:
        y, task, names = _read_labels(read[0], task, unlabelled)
    else:
        y, task, names = _read_several(read, task)
    unknown = int((y < 0).sum()) if task == "multiclass" else None
    notes = {each.column: each.note(task, len(names), unknown) for each in read}
    encoder = replace(encoder, notes=notes)
    edge_index = weight = None
    if edges is not None:
        numbered = "" if ids else ": rows are numbered from 0, or name the column of their ids"
        edge_index, weight = read_edges(edges, where, hint=numbered)
    return Dataset(
        name=Path(nodes).stem if isinstance(nodes, str | Path) else "table",
        x=csr_tensor(features) if sparse.issparse(features) else torch.from_numpy(features),
        y=y,
        task=task,
        edge_index=edge_index,
        edge_weight=weight,
        class_names=names,
        source=_name(nodes),
        ids=tuple(ids),
        encoder=encoder,
    )


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
                found = where.get(cell_text(cell))
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


def read_pyg(path: str | Path) -> Dataset:
    """The one graph of a .pt file: a Data of PyG, a mapping of its tensors, or its saved dataset.

    Nothing in the file is executed: torch's safe loading may only build tensors, Data and the parts
        of Data.
    """
    from pickle import UnpicklingError

    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    parts: list[Any] = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    try:
        with torch.serialization.safe_globals(parts), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the protocol of a pickle
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
        if isinstance(found, tuple):  # the file of an InMemoryDataset: graphs, and their bounds
            whole = cast("tuple[Any, ...]", found)
            found = whole[0] if whole and whole[1:2] in ((), (None,)) else None
        if isinstance(found, Mapping):
            found = Data.from_dict(dict(cast("Mapping[str, Any]", found)))
        if not isinstance(found, Data):
            raise ValueError("it must hold one Data, or a mapping with x, y and edge_index")
        return from_pyg(found, path.stem)
    except UnpicklingError as error:
        raise DataError(
            f"{path}: holds more than tensors and a Data, which is not loaded: it could execute "
            f"code ({_first_line(error)})"
        ) from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, RuntimeError, ValueError, TypeError, AttributeError, KeyError, EOFError) as e:
        raise DataError(f"{path}: cannot be read ({_first_line(e)})") from e


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200] or "it is empty"


def _numbered(source: Source, size: int) -> Iterator[tuple[int, Chunk]]:
    start = 1
    for chunk in read_chunks(source, size):
        yield start, chunk
        start += _rows_of(chunk)


def _rows_of(chunk: Chunk) -> int:
    return len(next(iter(chunk.values()), []))


def _given_kinds(source: Source) -> dict[str, str]:
    """The kinds that follow from the types of a data frame's columns."""
    if not is_frame(source):
        return {}
    frame: Any = source
    types = {str(n): str(frame[n].dtype).lower() for n in frame.columns}
    kinds = {"category": "category", "categorical": "category", "enum": "category"}
    kinds |= {"bool": "category", "boolean": "category", "date": "date"}
    found = {name: kinds.get(kind.split("(")[0].split("[")[0]) for name, kind in types.items()}
    found |= {name: "date" for name, kind in types.items() if kind.startswith("datetime")}
    return {name: kind for name, kind in found.items() if kind is not None}


# --- labels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Labels:
    """The cells of the label column, None if empty, and how errors name them."""

    cells: Sequence[Any]
    column: str
    file: str
    rows: int | None = None  # rows with a label, where `cells` are distinct values only
    written: str = ""  # the format of numbers, where it is known already

    @cached_property
    def format(self) -> str:
        """How its numbers are written."""
        return self.written or format_of(self.cells, "number")

    @cached_property
    def _read(self) -> tuple[list[float | None], list[int]]:
        values, bad = read_numbers(self.cells, self.format)
        return [None if value != value else value for value in values.tolist()], bad

    @property
    def numbers(self) -> list[float | None]:
        """The cells as numbers, None where empty or no finite number."""
        return self._read[0]

    @property
    def bad(self) -> list[int]:
        """The places of cells that are not empty and no finite numbers."""
        return self._read[1]

    def where(self, place: int) -> str:
        """A cell as an error or a report names it."""
        return f"row {place + 1}, column {self.column!r}: {str(self.cells[place])[:40]!r}"

    def task(self) -> str:
        """Texts and few whole numbers are classes; other numbers are quantities.

        As in any column, a few cells among many different numbers may be none.
        """
        known = [cell for cell in self.cells if cell is not None]
        numbers = [number for number in self.numbers if number is not None]
        different = len(set(numbers))
        if self.bad and not (len(self.bad) <= BAD_SHARE * len(known) and different > FEW_NUMBERS):
            return "multiclass"
        whole = all(number == round(number) for number in numbers)
        rows = len(known) if self.rows is None else self.rows
        few = different <= min(MOST_CLASSES, max(2, rows // 2))
        return "multiclass" if whole and few else "regression"

    def note(self, task: str, classes: int, unknown: int | None = None) -> str:
        """What a person should know of how the column was read."""
        empty = sum(cell is None for cell in self.cells) if unknown is None else unknown
        found = [f"{empty} empty, to predict"] if empty else []
        if task == "regression":
            found.insert(0, "number" + ("" if self.format == PLAIN else f", written {self.format}"))
            if self.bad:
                first = ", ".join(f"row {i + 1}: {str(self.cells[i])[:40]!r}" for i in self.bad[:3])
                found.append(f"{len(self.bad)} not numbers, taken as empty ({first})")
        else:
            found.insert(0, f"{classes} classes" if task == "multiclass" else "yes or no")
        return "; ".join(found)


def _index(nodes: Source, *, needed: bool) -> list[str]:
    """The ids that a data frame's index gives; none where it only numbers the rows.

    One that repeats itself, as that of frames put together, names rows only where it must.
    """
    index = getattr(nodes, "index", None) if is_frame(nodes) else None
    if index is None or type(index).__name__ == "RangeIndex":
        return []
    names = [cell_text(name) for name in index]
    return names if needed or len(set(names)) == len(names) else []


def _read_labels(
    labels: _Labels, task: str | None, unlabelled: Any
) -> tuple[Tensor, str, tuple[str, ...]]:
    """The targets as a tensor, the task, and the names of the classes."""
    if task not in (None, "multiclass", "regression"):
        raise ValueError(f"task must be multiclass or regression, got {task!r}")
    if all(cell is None for cell in labels.cells):
        raise DataError(f"{labels.file}: the label column {labels.column!r} is empty in every row")
    task = task or labels.task()
    if task == "regression":
        return _quantities(labels), task, ()
    y, names = _classes(labels, unlabelled)
    return y, task, names


YES_OR_NO = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}


def _read_several(
    columns: Sequence[_Labels], task: str | None
) -> tuple[Tensor, str, tuple[str, ...]]:
    """Several label columns, (n, t) float with NaN where empty: all yes or no, or all numbers."""
    if task not in (None, "multilabel", "regression"):
        raise ValueError(f"task must be multilabel or regression for several labels, got {task!r}")
    for column in columns:
        if all(cell is None for cell in column.cells):
            raise DataError(f"{column.file}: the label column {column.column!r} is empty")
    if task is None:
        binary = all(
            _truth(c) is not None for column in columns for c in column.cells if c is not None
        )
        task = "multilabel" if binary else "regression"
    names = tuple(column.column for column in columns)
    if task == "regression":
        return torch.cat([_quantities(column) for column in columns], 1), task, ()
    return torch.stack([_truths(column) for column in columns], 1), task, names


@dataclass(frozen=True)
class LabelCoder:
    """How label cells become targets: learned from the distinct cells, applied chunk by chunk."""

    file: str
    columns: tuple[str, ...]
    task: str
    class_names: tuple[str, ...]
    codes: Mapping[str, int]  # of the cells of one column of classes
    written: tuple[str, ...] = ()  # how the numbers of each column are written

    @classmethod
    def learn(
        cls,
        distinct: Mapping[str, Sequence[Any]],
        rows: int,
        *,
        file: str,
        task: str | None = None,
        unlabelled: Any = -1,
    ) -> LabelCoder:
        """Learn from the distinct cells of each label column, and the number of labels.

        The task and the classes are those that `read_table` finds.
        """
        longest = max(len(each) for each in distinct.values())
        cells = {n: [*each, *[None] * (longest - len(each))] for n, each in distinct.items()}
        found = [_Labels(_known(each), name, file, rows) for name, each in cells.items()]
        if len(found) > 1:
            _, task, names = _read_several(found, task)
            return cls(file, tuple(distinct), task, names, {}, tuple(c.format for c in found))
        y, task, names = _read_labels(found[0], task, unlabelled)
        codes: dict[str, int] = {}
        if task == "multiclass":
            known = zip(found[0].cells, y.tolist(), strict=True)
            codes = {cell_text(cell): code for cell, code in known if cell is not None}
        return cls(file, tuple(distinct), task, names, codes, (found[0].format,))

    @property
    def outputs(self) -> int:
        """Classes, labels or targets."""
        return len(self.class_names) if self.task == "multiclass" else len(self.columns)

    def encode(self, chunk: Chunk) -> Array:
        """(m,) classes, -1 where empty, or (m, t) numbers, NaN where empty."""
        if self.task == "multiclass":
            different, place = _different(chunk[self.columns[0]])
            code = [-1 if c is None else self.codes[cell_text(c)] for c in _known(different)]
            return np.array(code, np.int64)[place]
        read = [
            _Labels(_known(chunk[name]), name, self.file, written=written)
            for name, written in zip(self.columns, self.written, strict=True)
        ]
        if self.task == "multilabel":
            return torch.stack([_truths(column) for column in read], 1).numpy()
        return torch.cat([_quantities(column, most_bad=1.0) for column in read], 1).numpy()


def _known(cells: Any) -> list[Any]:
    return [None if is_missing(cell) else cell for cell in cells]


def _different(cells: Any) -> tuple[Any, Array]:
    """The distinct cells, and the index of each cell among them."""
    if isinstance(cells, np.ndarray):
        return np.unique(cells, return_inverse=True)
    places: dict[Any, int] = {}
    place = [places.setdefault(cell, len(places)) for cell in cells]
    return list(places), np.array(place)


def _truths(labels: _Labels) -> Tensor:
    for row, cell in enumerate(labels.cells, 1):
        if cell is not None and _truth(cell) is None:
            where = f"{labels.file}: row {row}, column {labels.column!r}"
            raise DataError(f"{where}: {cell!r} must be yes or no (1 or 0, true or false)")
    values = [None if cell is None else _truth(cell) for cell in labels.cells]
    return torch.tensor([math.nan if value is None else value for value in values])


def _truth(cell: Any) -> float | None:
    number = None if isinstance(cell, str) else _as_number(cell)
    return YES_OR_NO.get(str(cell).strip().lower() if number is None else f"{number:g}")


def _names(label: str | Sequence[str] | None) -> tuple[str, ...]:
    if label is None:
        return ()
    return (label,) if isinstance(label, str) else tuple(label)


def _check_labels(names: Sequence[str], id: str | None) -> None:
    for name in names:
        if names.count(name) > 1 or name == id:
            raise ValueError(f"label must name columns once, and not the ids: {name!r}")
    if not names:
        raise ValueError("label must name at least one column")


def _quantities(labels: _Labels, *, most_bad: float = BAD_SHARE) -> Tensor:
    """(n, 1) numbers, NaN where empty or, up to a share of the labels, no number."""
    known = sum(cell is not None for cell in labels.cells)
    if len(labels.bad) > most_bad * known:
        raise DataError(f"{labels.file}: {labels.where(labels.bad[0])} is not a number")
    values = [math.nan if number is None else number for number in labels.numbers]
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 1)


def _classes(labels: _Labels, unlabelled: Any) -> tuple[Tensor, tuple[str, ...]]:
    """(n,) class numbers, -1 where unlabelled, and the names of the classes in order."""
    texts = [None if cell is None else cell_text(cell) for cell in labels.cells]
    marks = isinstance(unlabelled, int | float)
    if marks and all(n is not None for n, t in zip(labels.numbers, texts, strict=True) if t):
        texts = [None if n == unlabelled else t for n, t in zip(labels.numbers, texts, strict=True)]
    names = sorted({t for t in texts if t is not None}, key=lambda t: (_as_number(t) or 0.0, t))
    where = f"{labels.file}: the label column {labels.column!r}"
    if not names:
        raise DataError(f"{where} is empty in every row")
    if len(names) < 2:
        raise DataError(f"{where} has one class only: {names[0]!r}")
    code = {name: i for i, name in enumerate(names)}
    return torch.tensor([-1 if t is None else code[t] for t in texts]), tuple(names)


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
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
    special: Sequence[str],
) -> None:
    if surveys and list(surveys) != list(names):
        raise DataError(f"{_name(source)}: its columns change from chunk to chunk: {list(names)}")
    for name in special:
        if name not in chunk:
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

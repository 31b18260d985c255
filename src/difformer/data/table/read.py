"""Read a table into a Dataset: typed columns, label columns, ids, and a file of edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse

from difformer.data.dataset import Dataset, csr_tensor
from difformer.data.graphs import read_edges
from difformer.data.table.cells import (
    FORMATS,
    PLAIN,
    Array,
    Cells,
    are_numbers,
    as_number,
    bad_cells,
    cell_text,
    few_bad,
    format_of,
    is_missing,
    place,
    read_numbers,
    shown,
)
from difformer.data.table.encoder import TableEncoder, label_names
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
from difformer.errors import DataError

MOST_CLASSES = 50  # whole numbers with more distinct values are quantities
YES_OR_NO = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}


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


@dataclass(frozen=True)
class LabelCoder:
    """How label cells become targets: learned from all or the distinct cells, applied to chunks."""

    columns: tuple[str, ...]
    task: str
    class_names: tuple[str, ...]
    codes: Mapping[str, int]  # of the cells of one column of classes, -1 where unlabelled
    written: tuple[str, ...]  # how the numbers of each column are written
    notes: Mapping[str, str]  # how each column was read, for the table shown before training

    @classmethod
    def learn(
        cls,
        columns: Chunk,
        rows: int | None = None,
        *,
        file: str,
        task: str | None = None,
        unlabelled: Any = -1,
    ) -> LabelCoder:
        """Learn from one label column, or several that are all yes or no, or all numbers.

        Args:
            columns: all cells; or the distinct ones, with how many `rows` have a label.
            file: the table, as errors name it.
            task: "multiclass", "multilabel" or "regression", if it is known.
            unlabelled: the number that marks a row to predict among classes.
        """
        several = len(columns) > 1
        discrete, what = ("multilabel", " for several labels") if several else ("multiclass", "")
        if task not in (None, discrete, "regression"):
            raise ValueError(f"task must be {discrete} or regression{what}, got {task!r}")
        found = [_Labels(name, cells, file, rows) for name, cells in columns.items()]
        if task is None and several:
            truths = [_truth(cell) for column in found for cell in column.known]
            task = "regression" if None in truths else "multilabel"
        task = task or found[0].task()
        names, codes = tuple(columns), dict[str, int]()
        for column in found:
            if task == "regression":
                column.check_quantities(alone=not several)
            elif several:
                column.check_truths()
            else:
                names, codes = column.classes(unlabelled)
        notes = {column.name: column.note(task, len(names), codes) for column in found}
        written = tuple(column.written for column in found)
        return cls(
            tuple(columns), task, () if task == "regression" else names, codes, written, notes
        )

    @property
    def outputs(self) -> int:
        """Classes, labels or targets."""
        return len(self.class_names) if self.task == "multiclass" else len(self.columns)

    def encode(self, chunk: Chunk) -> Array:
        """(m,) classes, -1 where empty; or (m, t) numbers, NaN where empty or not a number."""
        columns = [chunk[name] for name in self.columns]
        if self.task == "multiclass":
            cells, place = columns[0], slice(None)
            if isinstance(cells, np.ndarray):  # of numbers: only the different ones are read
                cells, place = np.unique(cells, return_inverse=True)
            codes = [-1 if is_missing(cell) else self.codes[cell_text(cell)] for cell in cells]
            return np.array(codes, np.int64)[place]
        if self.task == "multilabel":
            truths = [
                [math.nan if is_missing(c) else _truth(c) for c in cells] for cells in columns
            ]
            return np.array(truths, np.float32).T
        # float64: times in seconds differ beyond 7 digits
        read = zip(columns, self.written, strict=True)
        return np.stack([read_numbers(cells, written)[0] for cells, written in read], 1)


class _Labels:
    """The cells of a label column, and how errors name them."""

    def __init__(self, name: str, cells: Cells, file: str, rows: int | None) -> None:
        self.name, self.file, self.rows = name, file, rows
        self.cells = [None if is_missing(cell) else cell for cell in cells]
        self.known = [cell for cell in self.cells if cell is not None]
        if not self.known:
            raise DataError(f"{file}: the label column {name!r} is empty in every row")
        self.written = format_of(self.cells, "number")
        self.values, self.bad = read_numbers(self.cells, self.written)
        read = FORMATS[self.written]
        self.infinite = [i for i in self.bad if math.isinf(read(self.cells[i]) or 0.0)]

    def where(self, i: int) -> str:
        """A cell as an error names it; distinct cells have no rows."""
        if self.rows is not None:
            return f"column {self.name!r}: {shown(self.cells[i])}"
        return place(i + 1, self.name, self.cells[i])

    def task(self) -> str:
        """Texts and few whole numbers are classes; other numbers are quantities.

        As in any column, a few cells among many different numbers may not be numbers. With more of
        them, or an infinite one, the column may be either: DataError asks.
        """
        numbers = np.unique(self.values[~np.isnan(self.values)])
        whole = np.array_equal(numbers, numbers.round())
        rows = len(self.known) if self.rows is None else self.rows
        few = len(numbers) <= min(MOST_CLASSES, max(2, rows // 2))
        found = "multiclass" if whole and few else "regression"
        readable = are_numbers(len(self.bad), len(self.known), len(numbers))
        mostly = 2 * (len(self.bad) - len(self.infinite)) < len(self.known)
        if mostly and (self.infinite or (not readable and found == "regression")):
            raise self._unreadable(alone=True)
        return found if readable else "multiclass"

    def check_quantities(self, *, alone: bool) -> None:
        """DataError unless all but a few cells are finite numbers.

        `alone` is whether the error may advise to take the cells as classes.
        """
        if self.infinite or not few_bad(len(self.bad), len(self.known)):
            raise self._unreadable(alone=alone)

    def check_truths(self) -> None:
        """DataError unless all cells are yes or no."""
        for i, cell in enumerate(self.cells):
            if cell is not None and _truth(cell) is None:
                raise DataError(
                    f"{self.file}: {self.where(i)} must be yes or no (1 or 0, true or false)"
                )

    def classes(self, unlabelled: Any) -> tuple[tuple[str, ...], dict[str, int]]:
        """The names of the classes in order, and the code of each text, -1 where unlabelled."""
        texts = {
            cell_text(cell): isinstance(unlabelled, int | float) and number == unlabelled
            for cell, number in zip(self.cells, self.values.tolist(), strict=True)
            if cell is not None
        }
        known = (text for text, marked in texts.items() if not marked)
        names = sorted(known, key=lambda text: (as_number(text) or 0.0, text))
        where = f"{self.file}: the label column {self.name!r}"
        if not names:
            raise DataError(f"{where} is empty in every row")
        if len(names) < 2:
            raise DataError(f"{where} has one class only: {names[0]!r}")
        code = {name: i for i, name in enumerate(names)}
        return tuple(names), {text: code.get(text, -1) for text in texts}

    def note(self, task: str, classes: int, codes: Mapping[str, int]) -> str:
        """How the column was read."""
        unknown = sum(cell is None or codes.get(cell_text(cell), 0) < 0 for cell in self.cells)
        found = [f"{unknown} empty, to predict"] if unknown else []
        if task != "regression":
            return "; ".join([f"{classes} classes" if codes else "yes or no", *found])
        found.insert(0, "number" + ("" if self.written == PLAIN else f", written {self.written}"))
        if self.bad:
            first = [f"row {i + 1}: {shown(self.cells[i])}" for i in self.bad[:3]]
            found.append(bad_cells(len(self.bad), "number", first))
        return "; ".join(found)

    def _unreadable(self, *, alone: bool) -> DataError:
        """The error that names cells which are not finite numbers, and says what to do."""
        bad = self.infinite or self.bad
        what = "a finite number" if self.infinite else "a number"
        rows = "" if self.rows is None else " different"
        named = f" ({'; '.join(map(self.where, bad[1:4]))})"
        more = f", nor are {len(bad) - 1} of the other {len(self.known) - 1}{rows} cells{named}"
        advice = ", or give the task (--task multiclass) if each is a class" if alone else ""
        return DataError(
            f"{self.file}: {self.where(bad[0])} is not {what}{more if bad[1:] else ''}: correct "
            f"the cells, or leave them empty{advice}"
        )


def _truth(cell: Any) -> float | None:
    number = None if isinstance(cell, str) else as_number(cell)
    return YES_OR_NO.get(str(cell).strip().lower() if number is None else f"{number:g}")

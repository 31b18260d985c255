"""Label columns: classes, yes or no, or quantities, recognised and turned into targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.table.cells import (
    FORMATS,
    PLAIN,
    Array,
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
from difformer.data.table.files import Chunk
from difformer.errors import DataError

MOST_CLASSES = 50  # whole numbers with more distinct values are quantities
YES_OR_NO = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, "no": 0.0, "yes": 1.0}


@dataclass(frozen=True)
class LabelColumn:
    """The cells of a label column, None where empty, and how errors name them."""

    cells: Sequence[Any]
    column: str
    file: str
    rows: int | None = None  # how many rows have a label, if `cells` are distinct values only
    written: str = ""  # the format of its numbers, if it is known already

    @cached_property
    def format(self) -> str:
        """How its numbers are written."""
        return self.written or format_of(self.cells, "number")

    @cached_property
    def known(self) -> int:
        """How many of the cells are not empty."""
        return sum(cell is not None for cell in self.cells)

    @cached_property
    def _read(self) -> tuple[Array, list[int]]:
        """The cells as numbers, NaN where empty or not finite, and the places of the latter."""
        return read_numbers(self.cells, self.format)

    @cached_property
    def _infinite(self) -> list[int]:
        """The places of numbers that are not finite."""
        read = FORMATS[self.format]
        return [i for i in self._read[1] if math.isinf(read(self.cells[i]) or 0.0)]

    def where(self, i: int) -> str:
        """A cell as an error names it; distinct cells have no rows."""
        if self.rows is not None:
            return f"{self.file}: column {self.column!r}: {shown(self.cells[i])}"
        return f"{self.file}: {place(i + 1, self.column, self.cells[i])}"

    def task(self) -> str:
        """Texts and few whole numbers are classes; other numbers are quantities.

        As in any column, a few cells among many different numbers may not be numbers. With more of
        them, or an infinite one, the column may be either: DataError asks.
        """
        values, bad = self._read
        numbers = np.unique(values[~np.isnan(values)])
        whole = np.array_equal(numbers, numbers.round())
        rows = self.known if self.rows is None else self.rows
        few = len(numbers) <= min(MOST_CLASSES, max(2, rows // 2))
        found = "multiclass" if whole and few else "regression"
        mostly = 2 * (len(bad) - len(self._infinite)) < self.known
        if mostly and self._infinite:
            raise self._unreadable(alone=True)
        if are_numbers(len(bad), self.known, len(numbers)):
            return found
        if mostly and found == "regression":
            raise self._unreadable(alone=True)
        return "multiclass"

    def _unreadable(self, *, alone: bool) -> DataError:
        """The error that names cells which are not finite numbers, and says what to do."""
        bad = self._infinite or self._read[1]
        what = "a finite number" if self._infinite else "a number"
        rows = "" if self.rows is None else " different"
        first = [self.where(i).removeprefix(f"{self.file}: ") for i in bad[1:4]]
        named = f" ({'; '.join(first)})" if first else ""
        more = f", nor are {len(bad) - 1} of the other {self.known - 1}{rows} cells{named}"
        advice = ", or give the task (--task multiclass) if each is a class" if alone else ""
        return DataError(
            f"{self.where(bad[0])} is not {what}{more if first else ''}: correct the cells, or "
            f"leave them empty{advice}"
        )

    def note(self, task: str, classes: int, unknown: int | None = None) -> str:
        """How the column was read, for the table shown before training."""
        empty = len(self.cells) - self.known if unknown is None else unknown
        found = [f"{empty} empty, to predict"] if empty else []
        if task == "regression":
            found.insert(0, "number" + ("" if self.format == PLAIN else f", written {self.format}"))
            if bad := self._read[1]:
                first = [f"row {i + 1}: {shown(self.cells[i])}" for i in bad[:3]]
                found.append(bad_cells(len(bad), "number", first))
        else:
            found.insert(0, f"{classes} classes" if task == "multiclass" else "yes or no")
        return "; ".join(found)

    def quantities(self, *, strict: bool = True, alone: bool = False) -> Tensor:
        """(n,) numbers, NaN where empty or not a number.

        If `strict`, the latter must be few, and none infinite. `alone` is whether the error may
        advise to take the cells as classes.
        """
        values, bad = self._read
        if strict and (self._infinite or not few_bad(len(bad), self.known)):
            raise self._unreadable(alone=alone)
        return torch.from_numpy(values)  # float64: times in seconds differ beyond 7 digits

    def truths(self) -> Tensor:
        """(n,) 1 for yes and 0 for no, NaN where empty."""
        values = [math.nan if cell is None else _truth(cell) for cell in self.cells]
        for i, value in enumerate(values):
            if value is None:
                raise DataError(f"{self.where(i)} must be yes or no (1 or 0, true or false)")
        return torch.tensor(values)

    def classes(self, unlabelled: Any) -> tuple[Tensor, tuple[str, ...]]:
        """(n,) class numbers, -1 where unlabelled, and the names of the classes in order."""
        texts = [None if cell is None else cell_text(cell) for cell in self.cells]
        values, _ = self._read
        if isinstance(unlabelled, int | float):
            pairs = zip(values.tolist(), texts, strict=True)
            texts = [None if number == unlabelled else text for number, text in pairs]
        names = sorted({t for t in texts if t is not None}, key=lambda t: (as_number(t) or 0.0, t))
        where = f"{self.file}: the label column {self.column!r}"
        if not names:
            raise DataError(f"{where} is empty in every row")
        if len(names) < 2:
            raise DataError(f"{where} has one class only: {names[0]!r}")
        code = {name: i for i, name in enumerate(names)}
        return torch.tensor([-1 if t is None else code[t] for t in texts]), tuple(names)


def read_targets(
    columns: Sequence[LabelColumn], task: str | None = None, unlabelled: Any = -1
) -> tuple[Tensor, str, tuple[str, ...]]:
    """Read one label column, or several that are all yes or no, or all numbers.

    (n,) classes or (n, t) numbers, the task, and the names of the classes.
    """
    several = len(columns) > 1
    discrete, what = ("multilabel", " for several labels") if several else ("multiclass", "")
    if task not in (None, discrete, "regression"):
        raise ValueError(f"task must be {discrete} or regression{what}, got {task!r}")
    for column in columns:
        if not column.known:
            raise DataError(
                f"{column.file}: the label column {column.column!r} is empty in every row"
            )
    if task is None and several:
        cells = (cell for column in columns for cell in column.cells if cell is not None)
        task = "multilabel" if all(_truth(cell) is not None for cell in cells) else "regression"
    task = task or columns[0].task()
    if task == "regression":
        return torch.stack([c.quantities(alone=not several) for c in columns], 1), task, ()
    if several:
        names = tuple(column.column for column in columns)
        return torch.stack([column.truths() for column in columns], 1), task, names
    y, names = columns[0].classes(unlabelled)
    return y, task, names


def label_names(label: str | Sequence[str] | None) -> tuple[str, ...]:
    """The label columns: none, one or several."""
    if label is None:
        return ()
    return (label,) if isinstance(label, str) else tuple(label)


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
    ) -> LabelCoder:
        """Learn from the distinct cells of each label column, and the number of labels.

        The task and the classes are those that `read_table` finds.
        """
        longest = max(len(each) for each in distinct.values())
        cells = {n: [*each, *[None] * (longest - len(each))] for n, each in distinct.items()}
        found = [LabelColumn(known_cells(each), name, file, rows) for name, each in cells.items()]
        y, task, names = read_targets(found, task)
        codes: dict[str, int] = {}
        if task == "multiclass":
            known = zip(found[0].cells, y.tolist(), strict=True)
            codes = {cell_text(cell): code for cell, code in known if cell is not None}
        return cls(file, tuple(distinct), task, names, codes, tuple(c.format for c in found))

    @property
    def outputs(self) -> int:
        """Classes, labels or targets."""
        return len(self.class_names) if self.task == "multiclass" else len(self.columns)

    def encode(self, chunk: Chunk) -> Array:
        """(m,) classes, -1 where empty, or (m, t) numbers, NaN where empty."""
        if self.task == "multiclass":
            different, place = _different(chunk[self.columns[0]])
            code = [-1 if c is None else self.codes[cell_text(c)] for c in known_cells(different)]
            return np.array(code, np.int64)[place]
        read = [
            LabelColumn(known_cells(chunk[name]), name, self.file, written=written)
            for name, written in zip(self.columns, self.written, strict=True)
        ]
        yes_no = self.task == "multilabel"
        values = [c.truths() if yes_no else c.quantities(strict=False) for c in read]
        return torch.stack(values, 1).numpy()


def known_cells(cells: Any) -> list[Any]:
    """The cells, None where they are missing."""
    return [None if is_missing(cell) else cell for cell in cells]


def _different(cells: Any) -> tuple[Any, Array]:
    """The distinct cells, and the index of each cell among them."""
    if isinstance(cells, np.ndarray):
        return np.unique(cells, return_inverse=True)
    places: dict[Any, int] = {}
    place = [places.setdefault(cell, len(places)) for cell in cells]
    return list(places), np.array(place)


def _truth(cell: Any) -> float | None:
    number = None if isinstance(cell, str) else as_number(cell)
    return YES_OR_NO.get(str(cell).strip().lower() if number is None else f"{number:g}")

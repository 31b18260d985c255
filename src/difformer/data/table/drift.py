"""What in new rows is unlike all rows of training: values, and how many are missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from difformer.data.table.cells import place
from difformer.data.table.columns import Away, Column
from difformer.data.table.encoder import TableEncoder

SHOWN = 3  # columns named in one line
ENOUGH = 20  # rows from which on a share of missing cells is judged
SURE = 4.0  # standard errors by which it must differ, and
MUCH = 0.1  # by how much


@dataclass
class Drift:
    """What `add` finds in the blocks of rows of one table; false if that is nothing."""

    rows: int = 0
    odd: int = 0  # rows with a cell unlike all of training
    cells: Counter[str] = field(default_factory=Counter[str])  # such cells of each column
    gone: Counter[str] = field(default_factory=Counter[str])  # missing cells of each column
    worst: dict[str, tuple[float, int | str, Any]] = field(default_factory=dict[str, Any])
    known: dict[str, Column] = field(default_factory=dict[str, Column])

    def add(
        self,
        encoder: TableEncoder,
        chunk: Mapping[str, Any],
        away: Away,
        rows: int,
        *,
        start: int = 1,
        names: Sequence[str] | None = None,
    ) -> None:
        """Take in a block of rows, the first of number `start`, and what encoding put into `away`.

        `names` are the ids of the rows; an empty one is no id.
        """
        self.rows += rows
        odd = np.zeros(rows, bool)
        for name in away:
            gone, far = np.isnan(away[name]), np.nan_to_num(away[name], posinf=math.inf)
            self.known[name] = next(c for c in encoder.columns if c.name == name)
            self.gone[name] += int(gone.sum())
            self.cells[name] += int((far > 0).sum())
            odd |= far > 0
            row = int(far.argmax())
            if far[row] > self.worst.get(name, (0.0,))[0]:
                value = chunk[name][row]
                value = value.item() if isinstance(value, np.generic) else value
                value = value if isinstance(value, str | int | float) else str(value)
                self.worst[name] = far[row], (names[row] if names else "") or start + row, value
        self.odd += int(odd.sum())

    @property
    def columns(self) -> list[dict[str, Any]]:
        """The columns with cells unlike all of training: the worst cell, the farthest first."""
        found = sorted(self.worst.items(), key=lambda item: -item[1][0])
        return [
            {
                "column": name,
                "cells": self.cells[name],
                "row": row,
                "value": value,
                "seen": _seen(self.known[name]),
            }
            for name, (_, row, value) in found
        ]

    @property
    def empty(self) -> list[dict[str, Any]]:
        """The columns that are missing far more often: their shares, now and in training."""
        found: list[dict[str, Any]] = []
        for name, gone in self.gone.items():
            column, m = self.known[name], self.rows
            n, before = column.rows, column.missing + int((column.bad or "0")[0])
            if m < ENOUGH or not n:
                continue
            both = (gone + before + 1) / (m + n + 2)
            error = math.sqrt(both * (1 - both) * (1 / m + 1 / n))
            if gone / m - before / n >= max(MUCH, SURE * error):
                found.append({"column": name, "share": gone / m, "seen": before / n})
        return found

    @property
    def lines(self) -> list[str]:
        """Sentences on the worst cells and on missing ones."""
        cells: list[str] = []
        for found in self.columns:
            row, name, count = found["row"], found["column"], found["cells"]
            where = place(repr(row) if isinstance(row, str) else row, name, found["value"])
            some = f" ({count} cells)" if count > 1 else ""
            cells.append(f"{where}, in training {_text(self.known[name])}{some}")
        gone = [
            f"column {found['column']!r} is empty in {100 * found['share']:.0f} % of the rows, "
            f"{100 * found['seen']:.0f} % in training"
            for found in self.empty
        ]
        return [*_first(cells), *_first(gone)]

    @property
    def line(self) -> str:
        """All in one line."""
        rows = f"{self.odd} of {self.rows} rows hold values unlike all of training"
        return f"{rows if self.odd else 'cells are missing'}: {'; '.join(self.lines)}"

    def __bool__(self) -> bool:
        return bool(self.odd or self.empty)

    def to_json(self) -> dict[str, Any]:
        """All in plain values."""
        return {"rows": self.rows, "odd": self.odd, "columns": self.columns, "empty": self.empty}


def _seen(column: Column) -> list[Any]:
    """The categories of a column, or its lowest and highest value."""
    if column.kind == "date":
        return [str(np.datetime64(int(day // 1), "D")) for day in column.seen[:2]]
    return list(column.seen[:2] or column.learned["values"])


def _text(column: Column) -> str:
    seen = [f"{v:g}" if isinstance(v, float) else v for v in _seen(column)]
    if column.seen:
        return " to ".join(seen)
    return ", ".join(map(repr, seen[:SHOWN])) + (", ..." if len(seen) > SHOWN else "")


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{more} more column{'s' * (more > 1)}"]

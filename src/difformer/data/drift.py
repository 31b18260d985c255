"""What in new rows is unlike all rows of training: values, and how many are missing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from difformer.data.cells import place
from difformer.data.columns import Away, Column
from difformer.data.encoder import TableEncoder

SHOWN = 3  # columns named in one line
ENOUGH = 20  # rows from which on a share of missing cells is judged
SURE = 4.0  # standard errors by which it must differ, and
MUCH = 0.1  # by how much

Worst = tuple[float, int | str, Any]
"""How far a cell is from all that was seen, the number or id of its row, and its value."""


@dataclass
class Drift:
    """What `add` finds in the blocks of rows of one table; false if that is nothing."""

    rows: int = 0
    odd: int = 0  # rows with a cell unlike all of training
    cells: Counter[str] = field(default_factory=Counter[str])  # such cells of each column
    worst: dict[str, Worst] = field(default_factory=dict[str, Worst])
    gone: Counter[str] = field(default_factory=Counter[str])  # missing cells of each column
    columns: dict[str, Column] = field(default_factory=dict[str, Column])

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
        """Take in a block of rows, and what its encoding put into `away`.

        Args:
            start: the number of the first row.
            names: the ids of the rows; an empty one is no id.
        """
        self.columns = self.columns or {column.name: column for column in encoder.columns}
        self.rows += rows
        odd = np.zeros(rows, bool)
        for name, found in away.items():
            self.gone[name] += int(np.isnan(found).sum())
            beyond = np.nan_to_num(found, posinf=math.inf)
            odd |= beyond > 0
            self.cells[name] += int((beyond > 0).sum())
            row = int(beyond.argmax())
            if beyond[row] > self.worst.get(name, (0.0, 0, None))[0]:
                value = chunk[name][row]
                value = value.item() if isinstance(value, np.generic) else value
                where = (names[row] if names else "") or start + row
                self.worst[name] = float(beyond[row]), where, value
        self.odd += int(odd.sum())

    @property
    def empty(self) -> dict[str, tuple[float, float]]:
        """The columns that are missing far more often: their shares, now and in training."""
        shares: dict[str, tuple[float, float]] = {}
        for name, gone in self.gone.items():
            column = self.columns[name]
            if self.rows < ENOUGH or not column.rows:
                continue
            before = column.missing + (int(column.bad[0]) if column.bad else 0)
            now, then = gone / self.rows, before / column.rows
            both = (gone + before + 1) / (self.rows + column.rows + 2)
            error = math.sqrt(both * (1 - both) * (1 / self.rows + 1 / column.rows))
            if now - then >= max(MUCH, SURE * error):
                shares[name] = now, then
        return shares

    @property
    def lines(self) -> list[str]:
        """Sentences on the worst cell of a column, the farthest first, and on missing cells."""
        cells: list[str] = []
        for name, (_, row, value) in self._ordered():
            where = place(repr(row) if isinstance(row, str) else row, name, value)
            some = f" ({self.cells[name]} cells)" if self.cells[name] > 1 else ""
            cells.append(f"{where}, in training {_text(self.columns[name])}{some}")
        gone = [
            f"column {name!r} is empty in {100 * now:.0f} % of the rows, "
            f"{100 * then:.0f} % in training"
            for name, (now, then) in self.empty.items()
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
        columns = [
            {
                "column": name,
                "cells": self.cells[name],
                "row": row,
                "value": value if isinstance(value, str | int | float) else str(value),
                "seen": _seen(self.columns[name]),
            }
            for name, (_, row, value) in self._ordered()
        ]
        empty = [
            {"column": name, "share": now, "seen": then} for name, (now, then) in self.empty.items()
        ]
        return {"rows": self.rows, "odd": self.odd, "columns": columns, "empty": empty}

    def _ordered(self) -> list[tuple[str, Worst]]:
        return sorted(self.worst.items(), key=lambda item: -item[1][0])


def _seen(column: Column) -> list[Any]:
    """The categories of a column, or its lowest and highest value."""
    if column.kind == "category":
        return list(column.learned["values"])
    if column.kind == "date":
        return [str(np.datetime64(int(day // 1), "D")) for day in column.seen[:2]]
    return list(column.seen[:2])


def _text(column: Column) -> str:
    seen = _seen(column)
    if column.kind == "category":
        return ", ".join(map(repr, seen[:SHOWN])) + (", ..." if len(seen) > SHOWN else "")
    low, high = seen if column.kind == "date" else (f"{value:g}" for value in seen)
    return f"{low} to {high}"


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - SHOWN
    return lines if more <= 0 else [*lines[:SHOWN], f"{more} more column{'s' * (more > 1)}"]

"""Rows of the nodes as the arrays of a part: learned from all of them, encoded in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.split import PARTS
from difformer.data.table.cells import is_missing
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.files import Chunk
from difformer.data.table.read import LabelCoder
from difformer.errors import DataError
from difformer.files import reading
from difformer.shards.engine import Files, named
from difformer.shards.partition import hashed
from difformer.shards.settings import ShardSettings

CHUNK = 32_768  # rows encoded together
MOST_NUMBERS = 1 << 16  # numbers of a column that are held to learn from, see `columns.Numbers`
MOST_LABELS = 10_000  # the most classes
SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}

Array = NDArray[Any]


@dataclass(frozen=True)
class RowEncoder:
    """What was learned about the nodes, and how their rows become arrays."""

    settings: ShardSettings
    coder: LabelCoder
    encoder: TableEncoder
    whole: bool  # the ids are whole numbers by their type
    name: str  # of the files, for errors

    @classmethod
    def learn(cls, settings: ShardSettings, nodes: Files) -> RowEncoder:
        """Learn the labels by queries, and the columns in one pass over the nodes."""
        coder = _learn_labels(settings, nodes)
        label = settings.label[0] if len(settings.label) == 1 else tuple(settings.label)
        kinds = dict(settings.kinds or {})
        if settings.split_column is not None:
            kinds[settings.split_column] = "skip"
        encoder = TableEncoder.learn(
            nodes,
            label=label,
            id=settings.id,
            kinds=kinds,
            size=CHUNK,
            most=MOST_NUMBERS,
        )
        text = next((c.name for c in encoder.columns if c.kind == "text"), None)
        if text is not None:
            raise DataError(
                f"{nodes}: column {text!r} is free text, which is not sharded: leave it out "
                f"(--kind {text}=skip), or turn it into numbers first (difformer features)"
            )
        whole = settings.id is not None and nodes.whole(settings.id)
        return cls(settings, coder, encoder, whole, str(nodes))

    @cached_property
    def more(self) -> list[Array]:
        """Features that an encoder of texts or images wrote, (n, p) each, mapped."""
        found: list[Array] = []
        for path in self.settings.features:
            with reading(Path(path), error=DataError):
                found.append(np.load(path, mmap_mode="r", allow_pickle=False))
            if found[-1].ndim != 2 or found[-1].dtype.kind != "f":
                raise DataError(f"{path} must hold one row of numbers per node")
        return found

    @property
    def width(self) -> int:
        """How many features a row has."""
        return self.encoder.width + sum(array.shape[1] for array in self.more)

    def check(self, rows: int) -> None:
        """DataError if a file of features does not have one row per node."""
        for path, array in zip(self.settings.features, self.more, strict=True):
            if len(array) != rows:
                raise DataError(f"{path} has {len(array):,} rows, the nodes have {rows:,}")

    def encode(self, chunk: Chunk, first: int) -> dict[str, Any]:
        """The arrays of a chunk that starts with row `first`; ids are "ids" or "texts"."""
        settings = self.settings
        x = self.encoder.encode_chunk(chunk, first + 1, self.name, strict=False)
        assert not sparse.issparse(x)
        if self.more:
            rows = slice(first, first + len(x))
            x = np.hstack([x, *(array[rows].astype(np.float32) for array in self.more)])
        y = self.coder.encode(chunk)
        row = np.arange(first, first + len(x))
        known = y >= 0 if y.ndim == 1 else ~np.isnan(y).all(1)
        found: dict[str, Any] = {
            "x": x,
            "y": y,
            "split": np.where(known, self._split(chunk, row), -1).astype(np.int8),
            "row": row,
        }
        if settings.id is not None and self.whole:
            found["ids"] = np.asarray(chunk[settings.id]).astype(np.int64)
        elif settings.id is not None:
            found["texts"] = [str(cell).strip().encode() for cell in chunk[settings.id]]
        return found

    def _split(self, chunk: Chunk, row: Array) -> Array:
        """0, 1, 2 or -1 for each row: drawn by its number, or read from its column."""
        column, ratios = self.settings.split_column, self.settings.ratios
        if column is not None:
            words = ["" if is_missing(c) else str(c).strip().lower() for c in chunk[column]]
            unknown = next((w for w in words if w and w not in SPLITS), None)
            if unknown is not None:
                raise DataError(
                    f"{self.name}: column {column!r} must say train, val or test, got {unknown!r}"
                )
            return np.array([SPLITS.get(word, -1) for word in words])
        assert ratios is not None
        drawn = hashed(row.astype(np.uint64), ratios[3] + 1) / 2.0**64
        bounds = np.cumsum(ratios[:3])
        bounds[-1] = np.inf if bounds[-1] > 1 - 1e-9 else bounds[-1]
        place = np.searchsorted(bounds, drawn, side="right")
        return np.where(place < len(PARTS), place, -1)


def _learn_labels(settings: ShardSettings, nodes: Files) -> LabelCoder:
    """From the distinct labels and how many rows have one, which DuckDB counts."""
    distinct: dict[str, list[Any]] = {}
    rows = 0
    for column in settings.label:
        query = (
            f"SELECT {named(column)}, count(*) FROM {nodes.sql} "
            f"WHERE {named(column)} IS NOT NULL GROUP BY 1 LIMIT {MOST_LABELS + 1}"
        )
        found = nodes.engine.run(query, "looking at labels")
        distinct[column] = [row[0] for row in found]
        rows = max(rows, sum(row[1] for row in found if not is_missing(row[0])))
        if not found:
            raise DataError(f"{nodes}: the label column {column!r} is empty in every row")
    task = settings.task
    if any(len(cells) > MOST_LABELS for cells in distinct.values()):
        task = task or "regression"
        if task != "regression":
            raise DataError(f"{nodes}: labels must be at most {MOST_LABELS:,} classes")
    return LabelCoder.learn(distinct, rows, file=str(nodes), task=task)

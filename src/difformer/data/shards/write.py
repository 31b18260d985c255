"""The files of parts: rows as they are encoded, then the edges that enter them, then a record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.cells import is_missing
from difformer.data.encoder import TableEncoder
from difformer.data.labels import LabelCoder
from difformer.data.rawtable import Chunk
from difformer.data.shards.arrays import ArrayWriter, map_array
from difformer.data.shards.edges import Sorted
from difformer.data.shards.manifest import ArrayRecord, PartRecord, part_folder
from difformer.data.shards.parts import hashed
from difformer.data.shards.settings import ShardSettings
from difformer.data.split import PARTS
from difformer.errors import DataError
from difformer.files import reading, write_atomic

__all__ = [
    "Layout",
    "PartEdges",
    "PartRows",
    "RowEncoder",
    "finish_part",
    "is_written",
    "part_array",
    "part_record",
    "read_coder",
]

SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}

Array = NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """Where each row goes: part by part, within a part in the order of the file."""

    part: Array | None  # (n,), None for ranges
    starts: Array  # (parts + 1,)

    @classmethod
    def make(cls, part: Array | None, rows: int, parts: int) -> Layout:
        if part is None:
            return cls(None, np.array([rows * k // parts for k in range(parts + 1)]))
        sizes = np.bincount(part, minlength=parts)
        if not sizes.all():
            empty = int(np.count_nonzero(sizes == 0))
            raise DataError(f"parts must be fewer, got {parts}: {empty} of them would have no row")
        return cls(part, np.cumsum([0, *sizes]))

    def new(self) -> Array:
        """(n,): the new number of each row."""
        assert self.part is not None
        order = np.argsort(self.part, kind="stable")
        new: Array = np.empty(len(order), np.int32)
        new[order] = np.arange(len(order), dtype=np.int32)
        return new

    def of(self, first: int, last: int) -> Array:
        """The parts of a range of the file's rows."""
        if self.part is not None:
            return self.part[first:last]
        return np.searchsorted(self.starts, np.arange(first, last), side="right") - 1


@dataclass(frozen=True)
class RowEncoder:
    """What was learned of the nodes, and how rows become the arrays of a part."""

    settings: ShardSettings
    coder: LabelCoder
    encoder: TableEncoder
    whole: bool  # ids are whole numbers by their type
    name: str  # of the files, for errors

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
        """DataError if a file of features has other rows than the nodes."""
        for path, array in zip(self.settings.features, self.more, strict=True):
            if len(array) != rows:
                raise DataError(f"{path} has {len(array):,} rows, the nodes have {rows:,}")

    def encode(self, chunk: Chunk, first: int) -> dict[str, Any]:
        """The arrays of some rows of the file, and the ids as texts or numbers."""
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
        """0, 1, 2 or -1 for each row: drawn by its number, or as its column says."""
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


class PartRows:
    """The files of one part's rows while they are written."""

    TYPES = (("x", np.float32), ("split", np.int8), ("row", np.int64))

    def __init__(self, place: Path, first: Mapping[str, Any]) -> None:
        self.place, self.rows = place, 0
        self._counts: Array = np.zeros(len(PARTS), np.int64)
        self._bytes = 0
        self._stack = ExitStack()
        types: list[tuple[str, Any]] = [*self.TYPES, ("y", first["y"].dtype)]
        types += [("ids", np.int64)] if "ids" in first else []
        types += [("ids", np.uint8), ("id_ends", np.int64)] if "texts" in first else []
        tails = {name: first[name].shape[1:] for name in ("x", "y")}
        self._files = {
            name: ArrayWriter(place / f"{name}.npy", dtype, tails.get(name, ()))
            for name, dtype in types
        }

    def __enter__(self) -> PartRows:
        for file in self._files.values():
            self._stack.enter_context(file)
        return self

    def append(self, encoded: Mapping[str, Any], rows: Array) -> None:
        """Add some rows of a chunk."""
        for name in ("x", "y", "split", "row"):
            self._files[name].append(encoded[name][rows])
        if "ids" in encoded:
            self._files["ids"].append(encoded["ids"][rows])
        if "texts" in encoded:
            texts = [encoded["texts"][i] for i in rows]
            self._files["ids"].append(np.frombuffer(b"".join(texts), np.uint8))
            ends = self._bytes + np.cumsum([len(text) for text in texts])
            self._files["id_ends"].append(ends)
            self._bytes = int(ends[-1])
        split = encoded["split"][rows]
        self._counts += np.bincount(split[split >= 0], minlength=len(PARTS))
        self.rows += len(rows)

    def finish(self) -> None:
        """Put the files in place, and then their record."""
        self._stack.close()
        files = {name: asdict(file.record) for name, file in self._files.items()}
        counts = dict(zip(PARTS, self._counts.tolist(), strict=True))
        record = {"rows": self.rows, **counts, "files": files}
        write_atomic(self.place / "rows.json", json.dumps(record), error=DataError)

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)


class PartEdges(ExitStack):
    """The edges of one part whose rows are there, while they are written; then its record."""

    def __init__(self, out: Path, part: int, bounds: tuple[int, int], weighted: bool) -> None:
        super().__init__()
        self.out, self.part, self.bounds = out, part, bounds
        place, types = part_folder(out, part), [("col", np.int32), ("crow", np.int64)]
        types += [("weight", np.float32)] if weighted else []
        self._files = {name: ArrayWriter(place / f"{name}.npy", dtype) for name, dtype in types}
        self._entering: Array = np.zeros(bounds[1] - bounds[0] + 1, np.int64)
        self._cut = self._repeated = 0

    def __enter__(self) -> PartEdges:
        for file in self._files.values():
            self.enter_context(file)
        return self

    def append(self, piece: Sorted) -> None:
        """Add the edges of the rows that come next."""
        low, high = self.bounds
        self._files["col"].append(piece.source)
        if piece.weight is not None:
            self._files["weight"].append(piece.weight)
        first = int(piece.target[0])
        counts = np.bincount(piece.target - first)
        self._entering[first - low + 1 : first - low + 1 + len(counts)] += counts
        self._cut += int(np.count_nonzero((piece.source < low) | (piece.source >= high)))
        self._repeated += piece.repeated

    def finish(self) -> None:
        """Put the files in place, and then the part's record."""
        self._files["crow"].append(np.cumsum(self._entering))
        self.close()
        files = {name: asdict(file.record) for name, file in self._files.items()}
        counts = {"edges": self._files["col"].rows, "cut": self._cut, "repeated": self._repeated}
        finish_part(self.out, self.part, files, counts)


def read_coder(record: Mapping[str, Any]) -> LabelCoder:
    """The coder of labels whose fields were written as JSON."""
    known: dict[str, Any] = dict(record)
    for name in ("columns", "class_names", "written"):
        known[name] = tuple(known[name])
    return LabelCoder(**known)


def finish_part(
    out: Path, part: int, files: Mapping[str, Any] | None = None, counts: Any = None
) -> None:
    """Write the record of a part: that of its rows, and of its edges if it has some."""
    place = part_folder(out, part)
    with reading(place / "rows.json", error=DataError):
        record = json.loads((place / "rows.json").read_text(encoding="utf-8"))
    record["files"] |= files or {}
    record |= counts or {"edges": 0, "cut": 0, "repeated": 0}
    write_atomic(place / "part.json", json.dumps(record), error=DataError)


def is_written(out: Path, part: int, what: str) -> bool:
    """Whether a part's "rows" are there, or all of the "part"."""
    return (part_folder(out, part) / f"{what}.json").exists()


def part_array(out: Path, part: int, name: str) -> Array:
    """An array of a part whose rows are written, mapped."""
    place = part_folder(out, part)
    with reading(place / "rows.json", error=DataError):
        record = json.loads((place / "rows.json").read_text(encoding="utf-8"))
        file = ArrayRecord.from_json(record["files"][name])
    return map_array(place / f"{name}.npy", file)


def part_record(out: Path, part: int) -> tuple[PartRecord, int]:
    """The record of a finished part, and the repeated edges found in it."""
    path = part_folder(out, part) / "part.json"
    with reading(path, error=DataError):
        record = json.loads(path.read_text(encoding="utf-8"))
        return PartRecord.from_json(record), int(record["repeated"])

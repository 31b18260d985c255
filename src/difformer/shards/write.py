"""Writing the files of a part: its rows, then the edges that enter them, then its record."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.split import PARTS
from difformer.errors import DataError
from difformer.files import read_json, reading, write_json
from difformer.shards.edges import Sorted
from difformer.shards.store import ArrayRecord, ArrayWriter, PartRecord, map_array, part_folder

WORK = ".work"

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

    @property
    def parts(self) -> range:
        """The numbers of the parts."""
        return range(len(self.starts) - 1)

    def new(self) -> Array | None:
        """(n,): the new number of each row; None for ranges, where it does not change."""
        if self.part is None:
            return None
        order = np.argsort(self.part, kind="stable")
        new: Array = np.empty(len(order), np.int32)
        new[order] = np.arange(len(order), dtype=np.int32)
        return new

    def of(self, first: int, last: int) -> Array:
        """The parts of a range of the file's rows."""
        if self.part is not None:
            return self.part[first:last]
        return np.searchsorted(self.starts, np.arange(first, last), side="right") - 1


class _PartFiles(ExitStack):
    """Arrays of one part while they are written; they appear when they are closed."""

    def __init__(self, out: Path, part: int) -> None:
        super().__init__()
        self.out, self.part = out, part
        self._files: dict[str, ArrayWriter] = {}

    def _open(self, name: str, dtype: Any, tail: tuple[int, ...] = ()) -> None:
        """Begin an array; `tail` is the shape of one row."""
        path = part_folder(self.out, self.part) / f"{name}.npy"
        self._files[name] = self.enter_context(ArrayWriter(path, dtype, tail))

    def _closed(self) -> dict[str, Any]:
        """Put the arrays in place; the record of each."""
        self.close()
        return {name: asdict(file.record) for name, file in self._files.items()}


class PartRows(_PartFiles):
    """The rows of one part while they are written."""

    def __init__(self, out: Path, part: int) -> None:
        super().__init__(out, part)
        self.rows = self._bytes = 0
        self._counts: Array = np.zeros(len(PARTS), np.int64)

    def append(self, encoded: Mapping[str, Any], rows: Array) -> None:
        """Add some rows of an encoded chunk."""
        if not self._files:
            self._begin(encoded)
        for name in {"x", "y", "split", "row", "ids"} & encoded.keys():
            self._files[name].append(encoded[name][rows])
        if "texts" in encoded:
            texts = [encoded["texts"][i] for i in rows]
            self._files["ids"].append(np.frombuffer(b"".join(texts), np.uint8))
            ends = self._bytes + np.cumsum([len(text) for text in texts])
            self._files["id_ends"].append(ends)
            self._bytes = int(ends[-1])
        split = encoded["split"][rows]
        self._counts += np.bincount(split[split >= 0], minlength=len(PARTS))
        self.rows += len(rows)

    def _begin(self, encoded: Mapping[str, Any]) -> None:
        """Begin the arrays that a chunk has."""
        self._open("x", np.float32, encoded["x"].shape[1:])
        self._open("split", np.int8)
        self._open("row", np.int64)
        self._open("y", encoded["y"].dtype, encoded["y"].shape[1:])
        if "ids" in encoded:
            self._open("ids", np.int64)
        if "texts" in encoded:
            self._open("ids", np.uint8)
            self._open("id_ends", np.int64)

    def finish(self) -> None:
        """Put the arrays in place, and then their record."""
        files = self._closed()
        counts = dict(zip(PARTS, self._counts.tolist(), strict=True))
        _write_record(self.out, self.part, "rows", {"rows": self.rows, **counts, "files": files})


class PartEdges(_PartFiles):
    """The edges of one part, whose rows are written, while they are written; then its record."""

    def __init__(self, out: Path, part: int, bounds: tuple[int, int], weighted: bool) -> None:
        super().__init__(out, part)
        self.bounds, self.weighted = bounds, weighted
        self._entering: Array = np.zeros(bounds[1] - bounds[0] + 1, np.int64)
        self._cut = self._repeated = 0

    def __enter__(self) -> PartEdges:
        self._open("col", np.int32)
        self._open("crow", np.int64)
        if self.weighted:
            self._open("weight", np.float32)
        return self

    def append(self, piece: Sorted) -> None:
        """Add the edges of the next rows."""
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
        """Put the arrays in place, and then the record of the part."""
        self._files["crow"].append(np.cumsum(self._entering))
        edges = self._files["col"].rows
        finish_part(self.out, self.part, self._closed(), edges, self._cut, self._repeated)


def finish_part(
    out: Path,
    part: int,
    files: Mapping[str, Any] | None = None,
    edges: int = 0,
    cut: int = 0,
    repeated: int = 0,
) -> None:
    """Write the record of a part: that of its rows, and of its edges if it has some."""
    with reading(_record(out, part, "rows"), error=DataError):
        record = read_json(_record(out, part, "rows"))
        record["files"] |= files or {}
    _write_record(out, part, "part", {**record, "edges": edges, "cut": cut, "repeated": repeated})


def is_written(out: Path, part: int, what: str) -> bool:
    """Whether a part's "rows" are written, or the whole "part"."""
    return _record(out, part, what).exists()


def part_array(out: Path, part: int, name: str) -> Array:
    """An array of a part whose rows are written, mapped."""
    with reading(_record(out, part, "rows"), error=DataError):
        file = ArrayRecord.from_json(read_json(_record(out, part, "rows"))["files"][name])
    return map_array(part_folder(out, part) / f"{name}.npy", file)


def part_record(out: Path, part: int) -> tuple[PartRecord, int]:
    """The record of a finished part, and how many edges in it repeat another."""
    with reading(_record(out, part, "part"), error=DataError):
        record = read_json(_record(out, part, "part"))
        return PartRecord.from_json(record), int(record["repeated"])


def _record(out: Path, part: int, what: str) -> Path:
    """Not beside the arrays: once the manifest has all records, these go with the work folder."""
    return out / WORK / f"{part_folder(out, part).name}-{what}.json"


def _write_record(out: Path, part: int, what: str, record: Mapping[str, Any]) -> None:
    write_json(_record(out, part, what), record, error=DataError)

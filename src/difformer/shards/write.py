"""Writing the files of a part: its rows, then the edges that enter them, then its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


class PartRows(ExitStack):
    """The rows of one part while they are written; its arrays appear when they are finished."""

    def __init__(self, out: Path, part: int) -> None:
        super().__init__()
        self.out, self.part = out, part
        self.rows = self._bytes = 0
        self._files: dict[str, ArrayWriter] = {}
        self._counts: Array = np.zeros(len(PARTS), np.int64)

    def append(self, encoded: Mapping[str, Any], rows: Array) -> None:
        """Add some rows of an encoded chunk."""
        for name in ("x", "split", "row", "y", "ids"):  # the order in the manifest
            if name in encoded:
                self._add(name, encoded[name][rows])
        if "texts" in encoded:
            texts = [encoded["texts"][i] for i in rows]
            ends = self._bytes + np.cumsum([len(text) for text in texts])
            self._bytes = int(ends[-1])
            self._add("ids", np.frombuffer(b"".join(texts), np.uint8))
            self._add("id_ends", ends)
        split = encoded["split"][rows]
        self._counts += np.bincount(split[split >= 0], minlength=len(PARTS))
        self.rows += len(rows)

    def _add(self, name: str, values: Array) -> None:
        if name not in self._files:
            path = part_folder(self.out, self.part) / f"{name}.npy"
            writer = ArrayWriter(path, values.dtype, values.shape[1:])
            self._files[name] = self.enter_context(writer)
        self._files[name].append(values)

    def finish(self) -> None:
        """Put the arrays in place, and then their record."""
        self.close()
        files = {name: asdict(file.record) for name, file in self._files.items()}
        counts = dict(zip(PARTS, self._counts.tolist(), strict=True))
        _write_record(self.out, self.part, "rows", {"rows": self.rows, **counts, "files": files})


def write_edges(
    out: Path, part: int, bounds: tuple[int, int], pieces: Iterable[Sorted], weighted: bool
) -> None:
    """Write the edges that enter the rows of a part, which are written; then its record."""
    low, high = bounds
    entering: Array = np.zeros(high - low + 1, np.int64)
    cut = repeated = 0
    dtypes = {"col": np.int32, "crow": np.int64} | ({"weight": np.float32} if weighted else {})
    with ExitStack() as stack:
        folder = part_folder(out, part)
        files = {
            name: stack.enter_context(ArrayWriter(folder / f"{name}.npy", dtype))
            for name, dtype in dtypes.items()
        }
        for piece in pieces:
            files["col"].append(piece.source)
            if piece.weight is not None:
                files["weight"].append(piece.weight)
            first = int(piece.target[0])
            counts = np.bincount(piece.target - first)
            entering[first - low + 1 : first - low + 1 + len(counts)] += counts
            cut += int(np.count_nonzero((piece.source < low) | (piece.source >= high)))
            repeated += piece.repeated
        files["crow"].append(np.cumsum(entering))
    records = {name: asdict(file.record) for name, file in files.items()}
    finish_part(out, part, records, edges=files["col"].rows, cut=cut, repeated=repeated)


def finish_part(
    out: Path, part: int, files: Mapping[str, Any], *, edges: int, cut: int, repeated: int
) -> None:
    """Write the record of a part: that of its rows, and of its edges."""
    with reading(_record(out, part, "rows"), error=DataError):
        record = read_json(_record(out, part, "rows"))
        record["files"] |= files
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

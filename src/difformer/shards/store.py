"""Files of a sharded dataset: one manifest with checksums, and memory-mapped arrays."""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from difformer.errors import DataError
from difformer.files import counted, json_text, replacing, write_json
from difformer.shards.remote import is_url, read_text, url_exists

MANIFEST, FORMAT, VERSION = "manifest.json", "difformer shards", 1


@dataclass(frozen=True)
class ArrayRecord:
    """What one .npy file must hold; the checksum is that of its numbers."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ArrayRecord:
        shape = tuple(record["shape"])
        if any(type(size) is not int or size < 0 for size in shape):
            raise ValueError(f"the shape of an array must be whole numbers from 0 on, got {shape}")
        return cls(str(record["dtype"]), shape, str(record["sha256"]))


@dataclass(frozen=True)
class PartRecord:
    """How many rows and entering edges a part has, and its files."""

    rows: int
    edges: int
    cut: int  # edges that come from another part
    train: int
    val: int
    test: int
    files: Mapping[str, ArrayRecord]

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> PartRecord:
        names = ("rows", "edges", "cut", "train", "val", "test")
        counts: dict[str, int] = {name: record[name] for name in names}
        if any(type(count) is not int or count < 0 for count in counts.values()):
            raise ValueError(f"counts must be whole numbers from 0 on, got {counts}")
        files = {str(n): ArrayRecord.from_json(file) for n, file in record["files"].items()}
        return cls(**counts, files=files)


@dataclass(frozen=True)
class Manifest:
    """Everything known about a sharded dataset without opening a part."""

    name: str
    task: str
    features: int
    outputs: int
    parts: tuple[PartRecord, ...]
    partition: str = "range"
    class_names: tuple[str, ...] = ()
    split: str = ""  # how the rows were split
    graph: bool = True
    encoder: str = ""  # `TableEncoder.to_json` of the table; empty where there was no table
    found: Mapping[str, int] = field(default_factory=dict[str, int])
    """Counts made while sharding: edges read, and how many are dangling, loops or repeated."""

    @property
    def starts(self) -> list[int]:
        """The first row of each part, and the number of rows."""
        return list(accumulate((part.rows for part in self.parts), initial=0))

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def edges(self) -> int:
        """Directed edges, each undirected one twice and one loop per row."""
        return sum(part.edges for part in self.parts)

    @property
    def cut(self) -> float:
        """The share of the edges, loops excluded, whose ends lie in different parts."""
        between = self.edges - self.rows
        return sum(part.cut for part in self.parts) / between if between > 0 else 0.0

    def size(self, part: str) -> int:
        """How many rows are in "train", "val" or "test"."""
        return sum(getattr(record, part) for record in self.parts)

    def describe(self) -> str:
        """One line for a person to read."""
        edges = (
            f"{counted(self.edges, 'directed edge')}, {self.cut:.1%} cut"
            if self.graph
            else "no graph"
        )
        return (
            f"{self.name}: {counted(self.rows, 'row')}; {counted(self.features, 'feature')}; "
            f"{counted(self.outputs, 'output')} ({self.task}); {edges}; "
            f"{counted(len(self.parts), 'part')} by {self.partition}"
        )

    @property
    def checksum(self) -> str:
        """SHA-256 of the content, by which a run recognises its data."""
        return hashlib.sha256(json_text(asdict(self), sort_keys=True).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write the file that makes a folder a dataset; all parts must be written before."""
        record = {"format": FORMAT, "version": VERSION, **asdict(self), "checksum": self.checksum}
        write_json(folder / MANIFEST, record, error=DataError, indent=1)

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read the manifest of a folder or URL; DataError if there is none or it is damaged."""
        if not is_shards(folder):
            raise DataError(f"{folder} is not a sharded dataset: it has no {MANIFEST}")
        path = _manifest(folder)
        try:
            text = read_text(path) if isinstance(path, str) else path.read_text(encoding="utf-8")
            record = json.loads(text)
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']!r}, not {FORMAT!r}")
            if record["version"] != VERSION:
                raise ValueError(f"format version {record['version']}, this reads {VERSION}")
            known = {name: record[name] for name in cls.__dataclass_fields__}
            known |= {
                "parts": tuple(PartRecord.from_json(part) for part in record["parts"]),
                "class_names": tuple(record["class_names"]),
            }
            manifest = cls(**known)
            if record["checksum"] != manifest.checksum:
                raise ValueError("changed after it was written: its checksum does not fit")
            return manifest
        except KeyError as error:
            raise DataError(f"{path}: not a manifest of shards: it has no {error}") from error
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path}: not a manifest of shards: {error}") from error


def part_folder(folder: Path, number: int) -> Path:
    """Where a part's files are."""
    return folder / f"part-{number:05d}"


def is_shards(name: str | Path) -> bool:
    """Whether a folder or URL holds a finished sharded dataset."""
    path = _manifest(name)
    return url_exists(path) if isinstance(path, str) else path.is_file()


def _manifest(folder: str | Path) -> str | Path:
    return f"{str(folder).rstrip('/')}/{MANIFEST}" if is_url(folder) else Path(folder) / MANIFEST


Array = NDArray[Any]
BLOCK = 1 << 24  # bytes read together
GAP = 1 << 16  # bytes that one page fault maps


class ArrayWriter(AbstractContextManager["ArrayWriter"]):
    """A .npy file written piece by piece in O(1) memory; it appears when the block succeeds."""

    def __init__(self, path: Path, dtype: Any, tail: tuple[int, ...] = ()) -> None:
        """`tail` is the shape of one row."""
        self.dtype, self.tail, self.rows = np.dtype(dtype), tail, 0
        self._digest = hashlib.sha256()
        self._place = replacing(path, error=DataError)
        self._file: BinaryIO | None = None

    def __enter__(self) -> ArrayWriter:
        part = self._place.__enter__()
        self._file = part.open("wb")
        self._file.write(self._header())
        return self

    def append(self, values: Array) -> None:
        """Add rows."""
        assert self._file is not None
        block = np.ascontiguousarray(values, self.dtype)
        if block.shape[1:] != self.tail:
            raise ValueError(f"values must be (rows, *{self.tail}), got {block.shape}")
        data = block.reshape(-1).view(np.uint8).data
        self._digest.update(data)
        self._file.write(data)
        self.rows += len(block)

    @property
    def record(self) -> ArrayRecord:
        """What the file holds so far."""
        return ArrayRecord(self.dtype.str, (self.rows, *self.tail), self._digest.hexdigest())

    def __exit__(self, *error: Any) -> bool | None:
        if self._file is not None:
            try:
                self._file.seek(0)
                self._file.write(self._header())
                self._file.close()
            except OSError as problem:
                if error[0] is None:
                    error = (type(problem), problem, problem.__traceback__)
        return self._place.__exit__(*error)

    def _header(self) -> bytes:
        return _header(self.dtype, (self.rows, *self.tail))


def _header(dtype: Any, shape: tuple[int, ...]) -> bytes:
    """The .npy header; numpy pads it, so that its length is the same for any number of rows."""
    text = io.BytesIO()
    described: Any = {
        "descr": npy.dtype_to_descr(dtype),
        "fortran_order": False,
        "shape": shape,
    }
    npy.write_array_header_1_0(text, described)
    return text.getvalue()


def npy_size(record: ArrayRecord) -> int:
    """The bytes of the file of an array."""
    dtype = np.dtype(record.dtype)
    return len(_header(dtype, record.shape)) + dtype.itemsize * math.prod(record.shape)


def map_array(path: Path, record: ArrayRecord) -> Array:
    """The array of a file, memory-mapped; DataError if it does not match its record."""
    try:
        if not np.prod(record.shape):  # an empty file cannot be mapped
            found = np.load(path, allow_pickle=False)
        else:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}") from error
    if found.shape != record.shape or found.dtype.str != record.dtype:
        raise DataError(
            f"{path} must hold {record.shape} {record.dtype}, it holds {found.shape} "
            f"{found.dtype.str}"
        )
    return found


def whole_array(array: Array) -> Array:
    """A mapped array that a tensor can share: mapped again, because torch wants it writable."""
    if not isinstance(array, np.memmap):
        return array
    # Mode c: the tensor reads from the file and cannot write to it.
    again: Any = array
    return np.memmap(again.filename, again.dtype, "c", again.offset, again.shape)


def take_rows(array: Array, rows: Array) -> Array:
    """Some rows of a mapped array, by sorted numbers, in O(BLOCK) memory beside them.

    Rows that lie close together are taken from the mapping, whose pages are given back at once.
    Where they are far apart each run of neighbours is read by itself: a mapping would load much
    around it.
    """
    if not isinstance(array, np.memmap) or not len(rows):
        return np.array(array[rows])
    out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    size = array.dtype.itemsize * int(np.prod(array.shape[1:]))
    starts = np.append(0, np.flatnonzero(np.diff(rows) > 1) + 1)
    close = int(rows[-1] - rows[0]) * size <= GAP * (len(starts) - 1)
    try:
        with Path(str(array.filename)).open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size < array.offset + array.nbytes:
                raise DataError(f"{array.filename} was cut short while it was read")
            if close:
                _take_mapped(array, rows, out, max(1, BLOCK // size))
                return out
            data = out.reshape(-1).view(np.uint8).data
            offsets, ends = array.offset + rows[starts] * size, [*starts[1:].tolist(), len(rows)]
            for offset, first, last in zip(offsets.tolist(), starts.tolist(), ends, strict=True):
                file.seek(offset)
                _read_into(file, data[first * size : last * size])
    except OSError as error:
        raise DataError(f"{array.filename} cannot be read: {error.strerror or error}") from error
    return out


def _read_into(file: Any, left: memoryview) -> None:
    """Fill a buffer with what comes next in a file."""
    while (count := file.readinto(left)) < len(left):
        if not count:
            raise DataError(f"{file.name} was cut short while it was read")
        left = left[count:]


def _take_mapped(array: Any, rows: Array, out: Array, block: int) -> None:
    """Take rows from the mapping, a block of the file at a time."""
    bounds = np.searchsorted(rows, np.arange(int(rows[0]), int(rows[-1]) + 1, block))
    plain = array.view(np.ndarray)
    for first, last in pairwise([*bounds.tolist(), len(rows)]):
        if last > first:
            # Numbers are in range; mode "raise" would take them into a buffer first.
            np.take(plain, rows[first:last], axis=0, out=out[first:last], mode="clip")
            let_go(array)


def let_go(array: Array) -> None:
    """Release the memory of a mapped file; it is read again when needed."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def check_array(path: Path, record: ArrayRecord) -> None:
    """Raise a DataError if the numbers of a file have changed. O(bytes)."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            npy.read_magic(file)
            npy.read_array_header_1_0(file)
            while block := file.read(BLOCK):
                digest.update(block)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path} cannot be read: {reason}") from error
    if digest.hexdigest() != record.sha256:
        raise DataError(f"{path} changed after it was written: its checksum does not fit")

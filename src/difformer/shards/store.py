"""Files of a sharded dataset, here or at a URL: a manifest with checksums, and mapped arrays."""

from __future__ import annotations

import hashlib
import io
import json
import math
import mmap
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from difformer.data.fetch import cache_dir
from difformer.errors import DataError
from difformer.files import (
    MISREAD,
    cannot_write,
    give_name,
    json_text,
    one_line,
    reading,
    replacing,
    write_json,
)

MANIFEST, FORMAT, VERSION = "manifest.json", "difformer shards", 1
BLOCK = 1 << 24  # bytes read together
GAP = 1 << 16  # bytes that one page fault maps

Array = NDArray[Any]


@dataclass(frozen=True)
class ArrayRecord:
    """What one .npy file must hold; the checksum is that of its numbers."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str

    @property
    def bytes(self) -> int:
        """The size of the file."""
        dtype = np.dtype(self.dtype)
        return len(_header(dtype, self.shape)) + dtype.itemsize * math.prod(self.shape)


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
        """Read what `asdict` made; what else the record holds is left out."""
        known = {name: record[name] for name in cls.__dataclass_fields__}
        files = {
            str(name): ArrayRecord(str(file["dtype"]), tuple(file["shape"]), str(file["sha256"]))
            for name, file in known.pop("files").items()
        }
        for number in (*known.values(), *(size for file in files.values() for size in file.shape)):
            if type(number) is not int or number < 0:
                raise ValueError(f"counts and shapes must be whole numbers, got {number!r}")
        return cls(**known, files=files)


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
        path = place_of(folder, MANIFEST)
        try:
            if isinstance(path, str):
                with _remote(path) as (system, name):
                    text = system.cat_file(name).decode("utf-8")
            else:
                text = path.read_text(encoding="utf-8")
            record = json.loads(text)
            if record["format"] != FORMAT:
                raise ValueError(f"its format is {record['format']!r}, not {FORMAT!r}")
            if record["version"] != VERSION:
                raise ValueError(f"format version {record['version']}, this reads {VERSION}")
            known = {name: record[name] for name in cls.__dataclass_fields__}
            known["parts"] = tuple(map(PartRecord.from_json, record["parts"]))
            known["class_names"] = tuple(record["class_names"])
            manifest = cls(**known)
            if record["checksum"] != manifest.checksum:
                raise ValueError("changed after it was written: its checksum does not fit")
            return manifest
        except KeyError as error:
            raise DataError(f"{path}: not a manifest of shards: it has no {error}") from error
        except MISREAD as error:
            raise DataError(f"{path}: not a manifest of shards: {error}") from error


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL such as s3://bucket/parts and not a folder."""
    return re.match(r"[a-z][a-z0-9+.-]*://", str(name)) is not None


def place_of(folder: str | Path, name: str) -> str | Path:
    """Where a file of a folder or URL is."""
    return f"{str(folder).rstrip('/')}/{name}" if is_url(folder) else Path(folder) / name


def is_shards(folder: str | Path) -> bool:
    """Whether a folder or URL holds a finished sharded dataset."""
    path = place_of(folder, MANIFEST)
    if isinstance(path, Path):
        return path.is_file()
    with _remote(path) as (system, name):
        return bool(system.exists(name))


def part_folder(folder: Path, number: int) -> Path:
    """Where a part's files are."""
    return folder / f"part-{number:05d}"


@contextmanager
def _remote(url: str) -> Generator[tuple[Any, str], None, None]:
    """The file system of a URL, and the file's name there; any error of it in one line."""
    try:
        import fsspec

        yield fsspec.core.url_to_fs(url)
    except Exception as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else None
        raise DataError(f"{url} cannot be read: {reason or one_line(error)}") from error


def copied(url: str, name: str, record: ArrayRecord) -> Path:
    """The verified local copy of an array's file, made unless the cache has it.

    A copy that is interrupted, or that differs from its record, leaves nothing behind.
    """
    # Named by its checksum, because a dataset that is made again has other files.
    path = cache_dir() / "shards" / f"{record.sha256[:32]}-{name}.npy"
    if path.is_file() and path.stat().st_size == record.bytes:
        return path
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # others may copy the same file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _remote(url) as (system, there):
            system.get_file(there, str(part))
        if (size := part.stat().st_size) != record.bytes:
            raise DataError(f"{url} must have {record.bytes:,} bytes, {size:,} came")
        try:
            check_array(part, record)
        except DataError as error:
            raise DataError(f"{url} changed after it was written: {error}") from error
        give_name(part, path)
    except OSError as error:
        raise cannot_write(path, error, DataError) from error
    finally:
        part.unlink(missing_ok=True)
    return path


class ArrayWriter:
    """A .npy file in writing, piece by piece in O(1) memory; see `array_writer`."""

    def __init__(self, file: BinaryIO, dtype: Any, tail: tuple[int, ...]) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.dtype, self.tail, self.rows = np.dtype(dtype), tail, 0

    def append(self, values: Array) -> None:
        """Add rows."""
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


@contextmanager
def array_writer(
    path: Path, dtype: Any, tail: tuple[int, ...] = ()
) -> Generator[ArrayWriter, None, None]:
    """An array in writing, whose rows have the shape `tail`; it appears if the block succeeds."""
    with replacing(path, error=DataError) as part, part.open("wb") as file:
        writer = ArrayWriter(file, dtype, tail)
        file.write(_header(writer.dtype, (0, *tail)))
        yield writer
        file.seek(0)
        file.write(_header(writer.dtype, (writer.rows, *tail)))


def _header(dtype: Any, shape: tuple[int, ...]) -> bytes:
    """The .npy header; numpy pads it, so that its length is the same for any number of rows."""
    text = io.BytesIO()
    described: Any = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(text, described)
    return text.getvalue()


def map_array(path: Path, record: ArrayRecord) -> Array:
    """The array of a file, memory-mapped; DataError if it does not match its record."""
    with reading(path, error=DataError):  # an empty file cannot be mapped
        mode = "r" if math.prod(record.shape) else None
        found = np.load(path, mmap_mode=mode, allow_pickle=False)
    if found.shape != record.shape or found.dtype.str != record.dtype:
        raise DataError(
            f"{path} must hold {record.shape} {record.dtype}, it holds {found.shape} "
            f"{found.dtype.str}"
        )
    return found


def check_array(path: Path, record: ArrayRecord) -> None:
    """Raise a DataError if the numbers of a file have changed. O(bytes)."""
    digest = hashlib.sha256()
    with reading(path, error=DataError), path.open("rb") as file:
        npy.read_magic(file)
        npy.read_array_header_1_0(file)
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest() != record.sha256:
        raise DataError(f"{path} changed after it was written: its checksum does not fit")


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
    path, out = Path(str(array.filename)), np.empty((len(rows), *array.shape[1:]), array.dtype)
    size = array.dtype.itemsize * math.prod(array.shape[1:])
    starts = np.append(0, np.flatnonzero(np.diff(rows) > 1) + 1)
    close = int(rows[-1] - rows[0]) * size <= GAP * (len(starts) - 1)
    with reading(path, error=DataError), path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size >= array.offset + array.nbytes
        if whole and close:
            _take_mapped(array, rows, out, max(1, BLOCK // size))
        elif whole:
            data, ends = out.reshape(-1).view(np.uint8).data, [*starts[1:].tolist(), len(rows)]
            offsets = (array.offset + rows[starts] * size).tolist()
            for offset, first, last in zip(offsets, starts.tolist(), ends, strict=True):
                file.seek(offset)
                piece = data[first * size : last * size]
                whole = whole and file.readinto(piece) == len(piece)
    if not whole:
        raise DataError(f"{path} was cut short while it was read")
    return out


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

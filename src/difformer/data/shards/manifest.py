"""The manifest of a sharded dataset: one JSON file with the parts and checksums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from difformer.data.shards.remote import is_url, read_text, url_exists
from difformer.errors import DataError
from difformer.files import counted, json_text, write_json

__all__ = ["MANIFEST", "ArrayRecord", "Manifest", "PartRecord", "is_shards", "part_folder"]

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

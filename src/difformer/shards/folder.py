"""The parts of a sharded dataset: written one by one, and mapped by the process that holds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.data.split import PARTS
from difformer.errors import DataError
from difformer.files import read_json, reading, write_json
from difformer.shards.store import (
    ArrayRecord,
    ArrayWriter,
    Manifest,
    array_writer,
    check_array,
    copied,
    is_url,
    let_go,
    map_array,
    part_folder,
    place_of,
    take_rows,
    whole_array,
)

if TYPE_CHECKING:
    from difformer.shards.edges import Sorted

WORK = ".work"  # the folder of what is kept until the manifest is written

Array = NDArray[Any]


class ShardFolder:
    """A sharded dataset in a folder or at a URL. Opening it reads only the manifest.

    Parts at a URL are copied to the user's cache when they are held.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = str(folder).rstrip("/") if is_url(folder) else Path(folder)
        self.manifest = Manifest.read(self.path)

    def hold(self, first: int, last: int) -> Held:
        """Map the parts `first` to `last` (exclusive), after reading each file once.

        Raises:
            DataError: a file is missing, cut short or changed.
        """
        parts = tuple(
            {name: self._array(k, name, file) for name, file in each.files.items()}
            for k, each in enumerate(self.manifest.parts[first:last], first)
        )
        return Held(self.manifest.starts[first], parts)

    def _array(self, part: int, name: str, record: ArrayRecord) -> Array:
        path = place_of(self.path, f"{part_folder(Path(), part)}/{name}.npy")
        path = copied(path, name, record) if isinstance(path, str) else path
        array = map_array(path, record)
        check_array(path, record)
        return array

    def share(self, rank: int, size: int) -> tuple[int, int]:
        """The range of parts that process `rank` of `size` holds."""
        count = len(self.manifest.parts)
        if size > count:
            raise DataError(
                f"{self.path} has {count} parts, too few for {size} processes: "
                f"start at most {count}, or shard it again with --parts {size} or more"
            )
        return count * rank // size, count * (rank + 1) // size

    def starts(self, size: int) -> tuple[int, ...]:
        """The first row that each of `size` processes holds, and the number of rows."""
        bounds = [self.share(rank, size)[0] for rank in range(size)]
        starts = self.manifest.starts
        return (*(starts[bound] for bound in bounds), starts[-1])


@dataclass(frozen=True, eq=False)
class Held:
    """Consecutive parts of a dataset, mapped or in memory; data is read on demand."""

    start: int  # the first row held
    parts: tuple[dict[str, Array], ...]

    @cached_property
    def starts(self) -> Array:
        """Where each part begins among the rows held, and the number of these."""
        return np.cumsum([0, *(len(part["row"]) for part in self.parts)])

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    @property
    def joined(self) -> bool:
        """Whether there are edges."""
        return "col" in self.parts[0]

    @property
    def x(self) -> Tensor:
        """(rows, p): mapped where one part is held, else joined in memory."""
        return self._joined("x")

    @cached_property
    def y(self) -> Tensor:
        return self._joined("y")

    @cached_property
    def split(self) -> Tensor:
        return self._joined("split")

    @cached_property
    def crow(self) -> Tensor:
        """(rows + 1,): where the edges that enter each row begin among those held."""
        counts = [np.diff(part["crow"]) for part in self.parts]
        return torch.from_numpy(np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts])))

    @property
    def col(self) -> Tensor:
        """(edges,): the row that each edge comes from, among all rows of the dataset."""
        return self._joined("col").long()

    @property
    def weight(self) -> Tensor | None:
        return self._joined("weight") if "weight" in self.parts[0] else None

    def features(self, rows: Tensor) -> Tensor:
        """(m, p): the features of rows by their sorted places among those held; reads only them."""
        found = [take_rows(part["x"], inside) for part, inside, _ in self._by_part(rows)]
        if not found:
            return torch.from_numpy(np.array(self.parts[0]["x"][:0]))
        return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))

    def splits(self, rows: Tensor) -> Tensor:
        """The split of rows by their sorted places among those held."""
        return self.split[rows]

    def entering(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Sources (among all rows), targets (places in `rows`) and weights of the edges into them.

        Only these edges are read, in O(their number). Sorted by target, then source.
        """
        sources, targets, weights = list[Array](), list[Array](), list[Array]()
        for part, inside, first in self._by_part(rows):
            begin, end = (take_rows(part["crow"], inside + i) for i in (0, 1))
            counts = end - begin
            ends = np.cumsum(counts)
            positions = np.arange(int(ends[-1])) + np.repeat(begin - (ends - counts), counts)
            sources.append(take_rows(part["col"], positions))
            targets.append(np.repeat(np.arange(first, first + len(inside)), counts))
            if "weight" in part:
                weights.append(take_rows(part["weight"], positions))
        none = np.zeros(0, np.int64)
        source, target = (np.concatenate([none, *each]) for each in (sources, targets))
        weight = None
        if "weight" in self.parts[0]:
            weight = torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *weights]))
        return torch.from_numpy(source), torch.from_numpy(target), weight

    def ids(self) -> list[str]:
        """The ids of the rows held; their numbers in the table if they have none."""
        found: list[str] = []
        for part in self.parts:
            if "id_ends" not in part:
                found += [str(i) for i in part.get("ids", part["row"]).tolist()]
                continue
            text, ends = part["ids"].tobytes(), part["id_ends"].tolist()
            starts = [0, *ends[:-1]]
            found += [text[a:b].decode() for a, b in zip(starts, ends, strict=True)]
        return found

    def _by_part(self, rows: Tensor) -> list[tuple[dict[str, Array], Array, int]]:
        """Each part that has some of the rows, their places in it, and the first in `rows`."""
        places: Array = rows.numpy()
        if len(places) and not 0 <= int(places[0]) <= int(places[-1]) < self.rows:
            raise DataError(f"rows must lie in 0..{self.rows - 1}")
        bounds = pairwise(np.searchsorted(places, self.starts).tolist())
        return [
            (part, places[a:b] - begin, a)
            for part, begin, (a, b) in zip(self.parts, self.starts, bounds, strict=False)
            if b > a
        ]

    def _joined(self, name: str) -> Tensor:
        arrays = [part[name] for part in self.parts]
        if len(arrays) == 1:
            return torch.from_numpy(whole_array(arrays[0]))
        lengths = [len(array) for array in arrays]
        joined = np.empty((sum(lengths), *arrays[0].shape[1:]), arrays[0].dtype)
        for array, end in zip(arrays, np.cumsum(lengths), strict=True):
            joined[end - len(array) : end] = array
            let_go(array)
        return torch.from_numpy(joined)


def record_of(out: Path, part: int) -> dict[str, Any]:
    """What is written of a part: nothing, its rows, or also its edges, and the files of these."""
    path = _record(out, part)
    if not path.exists():
        return {}
    with reading(path, error=DataError):
        return read_json(path)


def _record(out: Path, part: int) -> Path:
    """Not beside the arrays: once the manifest has all records, these go with the work folder."""
    return out / WORK / f"{part_folder(out, part).name}.json"


def _add_record(out: Path, part: int, files: Mapping[str, ArrayWriter], **counts: int) -> None:
    """Say what is written now, which makes it count."""
    before = record_of(out, part)
    made = {name: asdict(file.record) for name, file in files.items()}
    record = {**before, **counts, "files": {**before.get("files", {}), **made}}
    write_json(_record(out, part), record, error=DataError)


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
        for name in ("x", "split", "row", "y"):  # the order in the manifest
            self._add(name, encoded[name][rows])
        ids = encoded["ids"][rows] if "ids" in encoded else None
        if ids is not None and ids.dtype == object:
            ends = self._bytes + np.cumsum([len(text) for text in ids])
            self._bytes = int(ends[-1])
            self._add("ids", np.frombuffer(b"".join(ids), np.uint8))
            self._add("id_ends", ends)
        elif ids is not None:
            self._add("ids", ids)
        split = encoded["split"][rows]
        self._counts += np.bincount(split[split >= 0], minlength=len(PARTS))
        self.rows += len(rows)

    def _add(self, name: str, values: Array) -> None:
        if name not in self._files:
            path = part_folder(self.out, self.part) / f"{name}.npy"
            writer = array_writer(path, values.dtype, values.shape[1:])
            self._files[name] = self.enter_context(writer)
        self._files[name].append(values)

    def finish(self) -> None:
        """Put the arrays in place, and then their record."""
        self.close()
        counts = dict(zip(PARTS, self._counts.tolist(), strict=True))
        _add_record(self.out, self.part, self._files, rows=self.rows, **counts)


def write_edges(
    out: Path, part: int, bounds: tuple[int, int], pieces: Iterable[Sorted], weighted: bool
) -> None:
    """Write the edges that enter the rows of a part, which are written."""
    low, high = bounds
    entering: Array = np.zeros(high - low + 1, np.int64)
    cut = read = loops = repeated = 0
    dtypes = {"col": np.int32, "crow": np.int64} | ({"weight": np.float32} if weighted else {})
    with ExitStack() as stack:
        folder = part_folder(out, part)
        files = {
            name: stack.enter_context(array_writer(folder / f"{name}.npy", dtype))
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
            read, loops = read + piece.read, loops + piece.loops
            repeated += piece.repeated
        files["crow"].append(np.cumsum(entering))
    made = {"edges": files["col"].rows, "cut": cut}
    _add_record(out, part, files, **made, read=read, loops=loops, repeated=repeated)

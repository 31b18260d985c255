"""Reading a sharded dataset: a process maps only the parts it holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.split import PARTS, Split
from difformer.errors import DataError
from difformer.shards.remote import copied, is_url
from difformer.shards.store import (
    ArrayRecord,
    Manifest,
    check_array,
    let_go,
    map_array,
    npy_size,
    part_folder,
    take_rows,
    whole_array,
)

Array = NDArray[Any]


class ShardFolder:
    """A sharded dataset in a folder or at a URL. Opening it reads only the manifest.

    Parts at a URL are copied to the user's cache when they are held.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = str(folder).rstrip("/") if is_url(folder) else Path(folder)
        self.manifest = Manifest.read(self.path)

    def hold(self, first: int, last: int, *, verify: bool = True) -> Held:
        """Map the parts `first` to `last` (exclusive); `verify` reads each file once.

        Raises:
            DataError: a file is missing, cut short or changed.
        """
        parts: list[dict[str, Array]] = []
        for number in range(first, last):
            arrays: dict[str, Array] = {}
            for name, file in self.manifest.parts[number].files.items():
                path = self._file(number, name, file)
                arrays[name] = map_array(path, file)
                if verify:
                    check_array(path, file)
            parts.append(arrays)
        start = self.manifest.starts[first]
        return Held(start, tuple(parts))

    def _file(self, part: int, name: str, record: ArrayRecord) -> Path:
        """The file of an array on this machine."""
        if isinstance(self.path, Path):
            return part_folder(self.path, part) / f"{name}.npy"
        place = f"{part_folder(Path(), part)}/{name}.npy"
        # Named by its checksum, because a dataset that is made again has other files.
        kept = f"{record.sha256[:32]}-{name}.npy"
        check = partial(check_array, record=record)
        return copied(f"{self.path}/{place}", kept, npy_size(record), check)

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

    def dataset(self) -> Dataset:
        """The whole dataset in memory, with its split under the name "given"."""
        manifest = self.manifest
        held = self.hold(0, len(manifest.parts))
        train, val, test = (torch.nonzero(held.split == i).flatten() for i in range(len(PARTS)))
        edge_index = weight = None
        if manifest.graph:
            target = torch.repeat_interleave(torch.arange(manifest.rows), held.crow.diff())
            edge_index, weight = torch.stack([held.col, target]), held.weight
        splits = {"given": Split("given", train, val, test)} if manifest.size("train") else {}
        return Dataset(
            manifest.name,
            held.x,
            held.y,
            manifest.task,
            edge_index,
            weight,
            class_names=manifest.class_names,
            splits=splits,
            source=str(self.path),
            ids=tuple(held.ids()),
        )


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
    def row(self) -> Tensor:
        """(rows,): the number of each row in the table it came from."""
        return self._joined("row")

    @cached_property
    def crow(self) -> Tensor:
        """(rows + 1,): where the edges that enter each row begin among those held."""
        ends, total = [np.zeros(1, np.int64)], 0
        for part in self.parts:
            ends.append(np.asarray(part["crow"][1:]) + total)
            total = int(ends[-1][-1]) if len(ends[-1]) else total
        return torch.from_numpy(np.concatenate(ends))

    @property
    def col(self) -> Tensor:
        """(edges,): the row that each edge comes from, among all rows of the dataset."""
        return self._joined("col").long()

    @property
    def weight(self) -> Tensor | None:
        return self._joined("weight") if "weight" in self.parts[0] else None

    def features(self, rows: Tensor) -> Tensor:
        """(m, p): the features of rows by their sorted places among those held; reads only them."""
        return self._taken("x", rows)

    def splits(self, rows: Tensor) -> Tensor:
        """The split of rows by their sorted places among those held."""
        return self._taken("split", rows)

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
        if self.parts and "weight" in self.parts[0]:
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
        bounds = np.searchsorted(places, self.starts)
        return [
            (part, places[a:b] - begin, int(a))
            for part, begin, a, b in zip(
                self.parts, self.starts, bounds[:-1], bounds[1:], strict=False
            )
            if b > a
        ]

    def _taken(self, name: str, rows: Tensor) -> Tensor:
        found = [take_rows(part[name], inside) for part, inside, _ in self._by_part(rows)]
        if not found:
            return torch.from_numpy(np.array(self.parts[0][name][:0]))
        return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))

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

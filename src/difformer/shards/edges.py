"""Edges sorted by the row they enter, larger than memory: spread over buckets, each sorted at once.

    key = target · 2³² + source · 2 + backwards

One 64-bit number is one directed edge: keys sort as (target, source) does, and the last bit
separates an edge of the file from the reverse edge added to it, so that repeated edges can be
counted. A bucket is a range of targets whose keys are sorted in memory; one pass over the edges
appends each key to the file of its bucket.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError
from difformer.files import cannot_write, open_scratch, read_json, reading, write_json
from difformer.shards.partition import Block

MOST_ROWS = 2**31
ROW = 2**32
BUCKET = 1 << 21  # keys sorted together, about: they and the sort's work space fit the outer cache
MOST_BUCKETS = 512  # files that are open at once
THREADS = 2  # threads that sort or spread keys; each holds a bucket or a batch

Array = NDArray[Any]
Given = TypeVar("Given")
Made = TypeVar("Made")


class Pairs(NamedTuple):
    """Edges of the file by the numbers of their rows."""

    source: Array
    target: Array
    weight: Array | None

    def renumbered(self, new: Array) -> Pairs:
        """The same edges where row i has the number new[i]."""
        source, target = new[self.source].astype(np.int64), new[self.target].astype(np.int64)
        return Pairs(source, target, self.weight)


@dataclass(frozen=True)
class Sorted:
    """The edges of some rows, sorted, each pair once: (edges,) targets, sources and weights."""

    target: Array
    source: Array
    weight: Array | None
    repeated: int  # how many edges of the file repeat another


@dataclass(frozen=True)
class _State:
    """What is known about a table of edges; written after all its buckets."""

    rows: int
    weighted: bool
    shift: int  # a bucket is 2^shift rows
    kept: int = 0  # edges of the file that were taken in, loops included
    loops: int = 0


class EdgeTable:
    """The edges between rows by their numbers, both ways and one loop per row, in a folder."""

    def __init__(self, folder: Path, state: _State) -> None:
        self.folder, self.state = folder, state
        self.rows, self.weighted = state.rows, state.weighted
        self.buckets = (state.rows - 1 >> state.shift) + 1

    @classmethod
    def spread(
        cls, folder: Path, rows: int, pairs: Iterable[Pairs], edges: int, weighted: bool
    ) -> EdgeTable:
        """Store the edges of a file, at most `edges` of them, both ways. O(edges), in batches."""
        if rows >= MOST_ROWS:
            raise DataError(f"rows must be fewer than {MOST_ROWS:,}, got {rows:,}")
        table = cls._begun(folder, _State(rows, weighted, _shift(rows, 2 * edges + rows)))
        kept, loops = table._store(ahead(table._both_ways, pairs))
        return table._written(replace(table.state, kept=kept, loops=loops))

    @classmethod
    def read(cls, folder: Path) -> EdgeTable | None:
        """The table that an earlier call finished, or None."""
        path = folder / "table.json"
        if not path.exists():
            return None
        with reading(path, error=DataError):
            return cls(folder, _State(**read_json(path)))

    def renumbered(self, new: Array, folder: Path) -> EdgeTable:
        """The same edges where row i has the number new[i]."""
        table = self._begun(folder, self.state)

        def moved(k: int) -> _Spread:
            keys, weights = self._read(k)
            target, source = new[keys >> 32], new[(keys & (ROW - 1)) >> 1]
            return table._by_bucket(_keys(source, target) + (keys & 1), weights)

        table._store(ahead(moved, range(self.buckets)))
        return table._written(self.state)

    def between(self, bounds: Sequence[int]) -> Iterator[tuple[int, Sorted]]:
        """The edges that enter the rows from bounds[k] to bounds[k + 1], with k, in order.

        Every row has a loop, so every k occurs.
        """
        for bucket in self._sorted(bounds[0], bounds[-1]):
            ends = np.searchsorted(bucket.target, bounds).tolist()
            repeated = bucket.repeated
            for place, (low, high) in enumerate(pairwise(ends)):
                if high > low:
                    weight = None if bucket.weight is None else bucket.weight[low:high]
                    rows = bucket.target[low:high], bucket.source[low:high]
                    yield place, Sorted(*rows, weight, repeated)
                    repeated = 0

    def blocks(self) -> Iterator[Block]:
        """Compressed rows without loops, in order; rows without edges too."""
        for k, bucket in enumerate(self._sorted(0, self.rows)):
            first, last = self._range(k)
            keep = bucket.target != bucket.source
            ends = np.cumsum(np.bincount(bucket.target[keep] - first, minlength=last - first))
            yield first, ends, bucket.source[keep]

    def remove(self) -> None:
        """Delete its files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    def _begun(cls, folder: Path, state: _State) -> EdgeTable:
        """A table in an empty folder."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return cls(folder, state)

    def _written(self, state: _State) -> EdgeTable:
        write_json(self.folder / "table.json", asdict(state), error=DataError)
        return EdgeTable(self.folder, state)

    def _range(self, bucket: int) -> tuple[int, int]:
        """The rows of a bucket."""
        size = 1 << self.state.shift
        return bucket * size, min(bucket * size + size, self.rows)

    def path(self, bucket: int, what: str) -> Path:
        """The file of a bucket's keys or weights."""
        return self.folder / f"{bucket:05d}.{what}"

    def _both_ways(self, pairs: Pairs) -> _Spread:
        """The keys of a batch by bucket."""
        keys, weights = both_ways(*pairs)
        loops = len(pairs.source) - len(keys) // 2
        return self._by_bucket(keys, weights)._replace(kept=len(pairs.source), loops=loops)

    def _store(self, spreads: Iterable[_Spread]) -> tuple[int, int]:
        """Append batches to the files of the buckets; how many edges and loops they have.

        DataError where the disk is full.
        """
        names = ("keys", "weights") if self.weighted else ("keys",)
        kept = loops = 0
        try:
            with ExitStack() as stack:
                files = [
                    [
                        stack.enter_context(open_scratch(self.path(k, n)))
                        for k in range(self.buckets)
                    ]
                    for n in names
                ]
                for spread in spreads:
                    starts = np.concatenate([[0], spread.ends[:-1]])
                    for each, array in zip(files, (spread.keys, spread.weights), strict=False):
                        for k in np.flatnonzero(spread.ends > starts).tolist():
                            piece = array[starts[k] : spread.ends[k]].view(np.uint8).data
                            while len(piece):  # a write may take a part of it only
                                piece = piece[each[k].write(piece) :]
                    kept, loops = kept + spread.kept, loops + spread.loops
        except OSError as problem:
            raise cannot_write(self.folder, problem, DataError) from problem
        return kept, loops

    def _by_bucket(self, keys: Array, weights: Array | None) -> _Spread:
        of = (keys >> (32 + self.state.shift)).astype(np.uint16)
        order = np.argsort(of, kind="stable")
        ends = np.cumsum(np.bincount(of, minlength=self.buckets))
        return _Spread(keys[order], None if weights is None else weights[order], ends)

    def _sorted(self, first: int, last: int) -> Iterator[Sorted]:
        """The buckets that hold a range of rows, sorted, some in advance by other threads."""
        low, high = first >> self.state.shift, (last - 1 >> self.state.shift) + 1
        return ahead(self._bucket, range(low, high))

    def _bucket(self, k: int) -> Sorted:
        return merged(*sorted_keys(*with_loops(*self._read(k), *self._range(k))))

    def _read(self, k: int) -> tuple[Array, Array | None]:
        """The keys and weights of a bucket as they came."""
        with reading(self.path(k, "keys"), error=DataError):
            keys = np.fromfile(self.path(k, "keys"), np.int64)
            return keys, np.fromfile(self.path(k, "weights"), np.float32) if self.weighted else None


class _Spread(NamedTuple):
    """Keys (and weights) by bucket, where each ends, and how many edges and loops they are."""

    keys: Array
    weights: Any  # an array, or None
    ends: Array
    kept: int = 0
    loops: int = 0


def _keys(source: Array, target: Array) -> Array:
    return target.astype(np.int64) * ROW + source.astype(np.int64) * 2


def both_ways(source: Array, target: Array, weight: Array | None) -> tuple[Array, Array | None]:
    """The keys of edges and of their reverses, and the weights of both; loops are left out."""
    straight = source != target
    if not straight.all():
        source, target = source[straight], target[straight]
        weight = None if weight is None else weight[straight]
    keys: Array = np.empty(2 * len(source), np.int64)
    forward, backward = keys[: len(source)], keys[len(source) :]
    for out, a, b in ((forward, target, source), (backward, source, target)):
        np.left_shift(a, 32, out=out)
        out += b
        out += b
    backward += 1
    return keys, None if weight is None else np.concatenate([weight, weight])


def with_loops(
    keys: Array, weights: Array | None, first: int, last: int
) -> tuple[Array, Array | None]:
    """Keys and weights with a loop of weight 1 added to each row from `first` to `last`."""
    keys = np.concatenate([keys, np.arange(first, last, dtype=np.int64) * (ROW + 2)])
    if weights is not None:
        weights = np.concatenate([weights, np.ones(last - first, np.float32)])
    return keys, weights


def _shift(rows: int, keys: int) -> int:
    """The size of buckets, 2^shift rows, that have about `BUCKET` keys each."""
    wanted = min(MOST_BUCKETS, -(-keys // BUCKET))
    return (-(-rows // wanted) - 1).bit_length()


def sorted_keys(keys: Array, weights: Array | None) -> tuple[Array, Array | None]:
    """Keys in order, equal ones by weight: the order of the file does not matter. O(keys)."""
    import torch  # here, because a task that only spreads keys does not need it

    if weights is None:
        return torch.sort(torch.from_numpy(keys)).values.numpy(), None
    by_weight = np.argsort(weights, kind="stable")
    keys, weights = keys[by_weight], weights[by_weight]
    found, order = torch.sort(torch.from_numpy(keys), stable=True)
    return found.numpy(), weights[order.numpy()]


def merged(keys: Array, weights: Array | None) -> Sorted:
    """Each pair once; weights are combined as in `Graph.from_edges`."""
    new = np.empty(len(keys), bool)
    new[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    repeated = 0
    if not new.all():
        repeated = int(np.count_nonzero(~new & (keys & 1 == 0)))
    pair = new & np.concatenate([[True], (keys[1:] ^ keys[:-1]) != 1])
    if weights is not None:
        added = np.add.reduceat(weights, np.flatnonzero(new))
        weights = np.maximum.reduceat(added, np.flatnonzero(pair[new]))
    kept = keys if pair.all() else keys[pair]
    return Sorted(kept >> 32, (kept & (ROW - 1)) >> 1, weights, repeated)


def ahead(work: Callable[[Given], Made], items: Iterable[Given]) -> Iterator[Made]:
    """`map`, in order, with threads that compute a few results in advance."""
    waiting: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(THREADS, "difformer-edges", initializer=_alone) as workers:
        try:
            for item in items:
                waiting.append(workers.submit(work, item))
                if len(waiting) > THREADS:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _alone() -> None:
    import torch

    torch.get_num_threads()  # a thread must read the common number before it can set its own
    torch.set_num_threads(1)

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
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError, missing_extra
from difformer.files import cannot_write, open_scratch, reading, write_atomic
from difformer.shards.partition import Block
from difformer.shards.store import let_go

MOST_ROWS = 2**31
ROW = 2**32
BUCKET = 1 << 21  # keys sorted together, about: they and the sort's work space fit the outer cache
MOST_BUCKETS = 512  # files that are open at once
THREADS = 2  # threads that sort or spread keys; each holds a bucket or a batch
SHARE = 0.1  # share of the memory that one block of rows takes whose neighbours are looked for

Array = NDArray[Any]
Given = TypeVar("Given")
Made = TypeVar("Made")


class Pairs(NamedTuple):
    """Edges of the file by the numbers of their rows."""

    source: Array
    target: Array
    weight: Array | None

    def renumbered(self, new: Array | None) -> Pairs:
        """The same edges where row i has the number new[i]."""
        if new is None:
            return self
        source, target = new[self.source].astype(np.int64), new[self.target].astype(np.int64)
        return Pairs(source, target, self.weight)


class Sorted(NamedTuple):
    """The edges into some rows, sorted, each pair once, both ways, and one loop per row."""

    target: Array
    source: Array
    weight: Array | None
    read: int  # edges of the file that enter these rows
    loops: int  # those of them that are loops
    repeated: int  # those that repeat another


class EdgeTable:
    """The edges between rows by their numbers, both ways and one loop per row, in a folder."""

    def __init__(self, folder: Path, rows: int, edges: int, weighted: bool) -> None:
        """For at most so many edges of a file."""
        if rows >= MOST_ROWS:
            raise DataError(f"rows must be fewer than {MOST_ROWS:,}, got {rows:,}")
        self.folder, self.weighted = folder, weighted
        wanted = min(MOST_BUCKETS, -(-(2 * edges + rows) // BUCKET))
        self._shift = (-(-rows // wanted) - 1).bit_length()  # a bucket is 2^shift rows
        self._bounds = [*range(0, rows, 1 << self._shift), rows]

    def fill(self, pairs: Iterable[Pairs]) -> EdgeTable:
        """Store the edges of a file, unless an earlier call has. O(edges), in batches."""
        done = self.folder / "done"
        if done.exists():
            return self
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        try:
            self._store(ahead(self._by_bucket, pairs))
        except OSError as problem:
            raise cannot_write(self.folder, problem, DataError) from problem
        write_atomic(done, "", error=DataError)
        return self

    @property
    def size(self) -> int:
        """How many directed edges there are, with repeated ones, without added loops."""
        return sum(file.stat().st_size for file in self.folder.glob("*.keys")) // 8

    def pairs(self) -> Iterator[Pairs]:
        """The edges of the file again."""
        for k in range(len(self._bounds) - 1):
            keys, weights = self._read(k)
            straight = keys & 1 == 0
            keys = keys[straight]
            weights = None if weights is None else weights[straight]
            yield Pairs((keys & (ROW - 1)) >> 1, keys >> 32, weights)

    def between(self, bounds: Sequence[int]) -> Iterator[tuple[int, Sorted]]:
        """The edges that enter the rows from bounds[k] to bounds[k + 1], with k, in order.

        Every row has a loop, so every k occurs. Threads sort some buckets in advance.
        """
        buckets = range(bounds[0] >> self._shift, (bounds[-1] - 1 >> self._shift) + 1)
        for found in ahead(partial(self._pieces, bounds), buckets):
            yield from found

    def blocks(self) -> Iterator[Block]:
        """Compressed rows without loops, in order; rows without edges too."""
        for k, found in self.between(self._bounds):
            first, last = self._bounds[k : k + 2]
            keep = found.target != found.source
            ends = np.cumsum(np.bincount(found.target[keep] - first, minlength=last - first))
            yield first, ends, found.source[keep]

    def path(self, bucket: int, what: str) -> Path:
        """The file of a bucket's keys or weights."""
        return self.folder / f"{bucket:05d}.{what}"

    def _by_bucket(self, pairs: Pairs) -> tuple[Any, ...]:
        """The keys and the weights of a batch by bucket, and where each bucket ends."""
        keys, weights = keys_of(pairs)
        of = (keys >> (32 + self._shift)).astype(np.uint16)
        order = np.argsort(of, kind="stable")
        ends = np.cumsum(np.bincount(of, minlength=len(self._bounds) - 1))
        return keys[order], None if weights is None else weights[order], ends

    def _store(self, batches: Iterable[Any]) -> None:
        """Append batches to the files of the buckets."""
        names = ("keys", "weights") if self.weighted else ("keys",)
        buckets = range(len(self._bounds) - 1)
        with ExitStack() as stack:
            files = [
                [stack.enter_context(open_scratch(self.path(k, name))) for k in buckets]
                for name in names
            ]
            for *arrays, ends in batches:
                starts = np.concatenate([[0], ends[:-1]])
                for each, array in zip(files, arrays, strict=False):
                    for k in np.flatnonzero(ends > starts).tolist():
                        piece = array[starts[k] : ends[k]].view(np.uint8).data
                        while len(piece):  # a write may take a part of it only
                            piece = piece[each[k].write(piece) :]

    def _pieces(self, bounds: Sequence[int], bucket: int) -> list[tuple[int, Sorted]]:
        """The sorted edges of a bucket, by the range of `bounds` that they enter."""
        first, last = self._bounds[bucket : bucket + 2]
        keys, weights = sorted_keys(*self._read(bucket), first, last)
        within = np.clip(np.array(bounds, np.int64), first, last)
        ends = np.searchsorted(keys, within * ROW).tolist()
        return [
            (k, merged(keys[a:b], None if weights is None else weights[a:b], int(size)))
            for k, ((a, b), size) in enumerate(zip(pairwise(ends), np.diff(within), strict=True))
            if size
        ]

    def _read(self, bucket: int) -> tuple[Array, Array | None]:
        """The keys and weights of a bucket as they came."""
        keys, weights = self.path(bucket, "keys"), self.path(bucket, "weights")
        with reading(keys, error=DataError):
            found = np.fromfile(weights, np.float32) if self.weighted else None
            return np.fromfile(keys, np.int64), found


def keys_of(pairs: Pairs) -> tuple[Array, Array | None]:
    """The keys of edges and of their reverses, loops once, and their weights, of loops 0."""
    source, target, weight = pairs
    count, straight = len(source), source != target
    keys: Array = np.empty(2 * count, np.int64)
    for out, a, b in ((keys[:count], target, source), (keys[count:], source, target)):
        np.left_shift(a, 32, out=out)
        out += b
        out += b
    keys[count:] += 1
    weights = None if weight is None else np.concatenate([weight * straight, weight])
    if straight.all():
        return keys, weights
    once = np.concatenate([np.ones(count, bool), straight])
    return keys[once], None if weights is None else weights[once]


def sorted_keys(
    keys: Array, weights: Array | None, first: int, last: int
) -> tuple[Array, Array | None]:
    """Keys in order, with a loop of weight 1 for each row from `first` to `last`. O(keys).

    Equal ones are sorted by weight: the order of the file does not matter.
    """
    import torch  # here, because a task that only spreads keys does not need it

    keys = np.concatenate([keys, np.arange(first, last, dtype=np.int64) * (ROW + 2)])
    if weights is None:
        return torch.sort(torch.from_numpy(keys)).values.numpy(), None
    weights = np.concatenate([weights, np.ones(last - first, np.float32)])
    by_weight = np.argsort(weights, kind="stable")
    keys, weights = keys[by_weight], weights[by_weight]
    found, order = torch.sort(torch.from_numpy(keys), stable=True)
    return found.numpy(), weights[order.numpy()]


def merged(keys: Array, weights: Array | None, rows: int) -> Sorted:
    """Each pair of the sorted keys into some rows once, weights as `Graph.from_edges` has them."""
    new = np.empty(len(keys), bool)
    new[:1] = True
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    again = keys[~new]
    loops = int(np.count_nonzero(again >> 32 == (again & (ROW - 1)) >> 1))
    repeated = int(np.count_nonzero(again & 1 == 0)) - loops
    read = int(np.count_nonzero(keys & 1 == 0)) - rows
    pair = new & np.concatenate([[True], (keys[1:] ^ keys[:-1]) != 1])
    if weights is not None:
        added = np.add.reduceat(weights, np.flatnonzero(new))
        weights = np.maximum.reduceat(added, np.flatnonzero(pair[new]))
    kept = keys if pair.all() else keys[pair]
    return Sorted(kept >> 32, (kept & (ROW - 1)) >> 1, weights, read, loops, repeated)


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


def nearest_pairs(
    parts: list[Array], k: int, memory: int, tell: Callable[[float], None]
) -> Iterator[Pairs]:
    """Edges to each row from its k nearest others by cosine, exact, with two blocks in memory.

    faiss compares every block of rows with every other, and the nearest found so far are kept:
    O(n² p) time. Blocks are as large as the memory allows.

    Args:
        parts: the features of each part, (rows, p), mapped; a row's number runs through them.
        tell: called with the share that is done.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing_extra("a graph of nearest neighbours", "knn") from error
    rows, size = sum(map(len, parts)), max(1, int(SHARE * memory) // (4 * parts[0].shape[1] or 1))
    for start, queries in _blocks(parts, size):
        target = np.arange(start, start + len(queries))
        near: Array = np.empty((len(queries), 0), np.float32)
        found: Array = np.empty((len(queries), 0), np.int64)
        for first, known in _blocks(parts, size):
            index: Any = faiss.IndexFlatIP(queries.shape[1])
            index.add(known)
            # One more than k, because a row finds itself, which is then ranked last.
            score, place = index.search(queries, min(k + 1, len(known)))
            place = place + first
            score = np.where(place == target[:, None], -np.inf, score)
            near, found = np.hstack([near, score]), np.hstack([found, place])
            # Of equally near rows the first are kept, whichever blocks they are in.
            order = np.lexsort((found, -near), axis=1)[:, :k]
            near = np.take_along_axis(near, order, 1)
            found = np.take_along_axis(found, order, 1)
            tell((start + len(queries) * first / rows) / rows)
        yield Pairs(found.reshape(-1), np.repeat(target, found.shape[1]), None)


def _blocks(parts: list[Array], size: int) -> Iterator[tuple[int, Array]]:
    """Blocks of rows with the number of the first, scaled to length one: products are cosines."""
    start = 0
    for part in parts:
        for first in range(0, len(part), size):
            rows: Array = np.array(part[first : first + size], np.float32)
            let_go(part)
            norm = np.linalg.norm(rows, axis=1, keepdims=True)
            yield start + first, rows / np.maximum(norm, np.finfo(np.float32).tiny)
        start += len(part)

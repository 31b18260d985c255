"""What is asked of `shard`, and which part each row goes to. No torch here.

By ranges of the file, by the hash of a row, by METIS, or by a stream of the graph. The last two
read the graph as blocks of compressed rows, in order, as often as they need, and hold a few bytes
per row; only METIS holds all edges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError, missing_extra

PARTITIONERS = ("range", "hash", "metis", "streaming")
MOST_OPEN = 128  # parts that can be written at the same time: each has a few open files
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
METIS_BYTES = 60  # bytes of memory that METIS takes per directed edge, about
SLACK = 1.05  # how much larger than the mean a part may become
PASSES = 3  # passes in which rows are placed: from the second on, all neighbours have a part
TOGETHER = 512  # rows placed at once: they do not see each other's parts

Array = NDArray[Any]
Block = tuple[int, Array, Array]
"""The first row, where the edges of each row end (from 0 on), and the rows they come from."""
Blocks = Callable[[], Iterable[Block]]
"""A symmetric graph without loops; each call passes over all of it."""


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """What to shard, and how."""

    nodes: Sequence[str]
    label: Sequence[str]
    id: str | None = None
    edges: Sequence[str] = ()
    task: str | None = None
    kinds: Mapping[str, str] | None = None
    split: str = "ratio:0.5/0.25/0.25:0"
    parts: int = 16
    partition: str = "range"
    memory: str = "4GB"
    features: Sequence[str] = ()  # .npy files with more features, one row per node
    header: bool = True  # False: the first line of each .csv file is a row already
    neighbours: int = 0  # without edges: how many nearest rows each row is joined to

    def __post_init__(self) -> None:
        memory_bytes(self.memory)
        if self.partition not in PARTITIONERS:
            known = ", ".join(PARTITIONERS)
            raise ValueError(f"partition must be one of {known}, got {self.partition!r}")
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, got {self.parts}")
        if self.partition != "range" and self.parts > MOST_OPEN:
            raise ValueError(
                f"parts must be at most {MOST_OPEN} by {self.partition}, got {self.parts}: "
                "use range for more"
            )
        if self.partition in ("metis", "streaming") and not self.edges:
            raise ValueError(f"partition must be range or hash without edges, not {self.partition}")
        if self.neighbours < 0 or (self.neighbours and self.edges):
            raise ValueError(
                f"neighbours must be 0 or more, and 0 with edges, got {self.neighbours}"
            )
        if not self.label:
            raise ValueError("label must name at least one column")
        if not self.split.startswith("column:") and self.ratios is None:
            raise ValueError(f"split must be ratio:A/B/C[:SEED] or column:NAME, got {self.split!r}")

    @cached_property
    def ratios(self) -> tuple[float, float, float, int] | None:
        """The shares of train, val and test, and the seed; None where a column has the split."""
        match = re.fullmatch(r"ratio:([\d.]+)/([\d.]+)/([\d.]+)(?::(\d+))?", self.split)
        if match is None:
            return None
        a, b, c = (float(match[i]) for i in (1, 2, 3))
        if not 0 < a <= 1 or a + b + c > 1 + 1e-9:
            raise ValueError(
                f"split must have a train share above 0 and a sum of at most 1, got {self.split!r}"
            )
        return a, b, c, int(match[4] or 0)

    @property
    def split_column(self) -> str | None:
        return self.split.removeprefix("column:") if self.ratios is None else None


def memory_bytes(text: str) -> int:
    """The number of bytes of a size such as 4GB or 512MB.

    >>> memory_bytes("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)\s*", text.upper())
    if match is None:
        raise ValueError(f"memory must be a size such as 4GB or 512MB, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


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


def hashed(numbers: Array, seed: int = 0) -> Array:
    """Evenly spread 64-bit numbers that depend on the row and the seed alone (SplitMix64)."""
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def metis_parts(blocks: Blocks, rows: int, parts: int) -> Array:
    """The parts that METIS finds, with all edges in memory: `METIS_BYTES` per edge."""
    try:
        import pymetis
    except ImportError as error:
        raise missing_extra("partition 'metis'", "scale") from error
    counts, sources = list[Array](), list[Array]()
    for _, ends, near in blocks():
        counts.append(np.diff(ends, prepend=0))
        sources.append(near)
    starts = np.cumsum(np.concatenate([[0], *counts]))
    adjacency = pymetis.CSRAdjacency(starts, np.concatenate(sources))
    return np.asarray(pymetis.part_graph(parts, adjacency=adjacency)[1], dtype=np.int32)


def stream_parts(blocks: Blocks, rows: int, parts: int) -> Array:
    """Linear deterministic greedy, several passes: O(edges) per pass, 8 bytes per row.

        part(i) = argmax_p |neighbours of i in p| · (1 − |p| / capacity)

    (Stanton and Kliot, KDD 2012; several passes as in Nishimura and Ugander, KDD 2013.) Rows are
    placed `TOGETHER` at a time, so that a block is one matrix of counts. After the first pass, the
    ranges of the file replace its result if they cut fewer edges: in many files, rows that belong
    together are next to each other, which a stream finds late.
    """
    capacity = max(1, int(np.ceil(SLACK * rows / parts)))
    together = max(1, min(TOGETHER, rows // (4 * parts)))

    def placed(part: Array) -> Array:
        size = np.bincount(part[part >= 0], minlength=parts)
        for first, ends, sources in blocks():
            begins = np.concatenate([[0], ends[:-1]])
            for at in range(0, len(ends), together):
                low, high = at, min(at + together, len(ends))
                near = sources[begins[low] : ends[high - 1]]
                counts = ends[low:high] - begins[low:high]
                _place(part, size, first + low, counts, near, capacity)
        return part

    found = placed(np.full(rows, -1, dtype=np.int32))
    ranges: Array = (np.arange(rows) * parts // rows).astype(np.int32)
    ours, theirs = _cuts(blocks(), found, ranges)
    part = ranges if theirs < ours else found
    for _ in range(PASSES - 1):
        part = placed(part)
    return part


def _cuts(blocks: Iterable[Block], *choices: Array) -> list[int]:
    """How many edges each choice of parts cuts, in one pass."""
    cut = [0] * len(choices)
    for first, ends, sources in blocks:
        target = np.repeat(np.arange(first, first + len(ends)), np.diff(ends, prepend=0))
        for k, part in enumerate(choices):
            cut[k] += int(np.count_nonzero(part[target] != part[sources]))
    return cut


def _place(part: Array, size: Array, first: int, counts: Array, near: Array, room: int) -> None:
    """Assign rows to parts; `near` are their neighbours, `counts` how many each row has."""
    rows, parts = len(counts), len(size)
    own = slice(first, first + rows)
    before = part[own]
    size -= np.bincount(before[before >= 0], minlength=parts)
    part[own] = -1
    of = part[near]
    row = np.repeat(np.arange(rows), counts)
    known = of >= 0
    links = np.bincount(row[known] * parts + of[known], minlength=rows * parts)
    # One is added everywhere: rows without a placed neighbour go where there is most room.
    score = (links.reshape(rows, parts) + 1e-3) * (1.0 - size / room)
    left: Array = np.arange(rows)
    while len(left):
        chosen = score[left].argmax(1)
        for p in np.unique(chosen):
            here = left[chosen == p]
            free = room - int(size[p])
            if len(here) > free:  # those with the highest score stay
                here = here[np.argsort(-score[here, p], kind="stable")[: max(free, 0)]]
                score[:, p] = -np.inf
            part[first + here] = p
            size[p] += len(here)
        left = left[part[first + left] < 0]

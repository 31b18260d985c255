"""Which part each row goes to: by its hash, by METIS, or by a stream of the graph.

A partitioner reads the graph as blocks of compressed rows, in order, as often as it needs, and
holds a few bytes per row; only METIS holds all edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import missing_extra

PARTITIONERS = ("range", "hash", "metis", "streaming")
METIS_BYTES = 60  # bytes of memory that METIS takes per directed edge, about
SLACK = 1.05  # how much larger than the mean a part may become
PASSES = 3  # passes in which rows are placed: from the second on, all neighbours have a part
TOGETHER = 512  # rows placed at once: they do not see each other's parts

Array = NDArray[Any]
Block = tuple[int, Array, Array]
"""The first row, where the edges of each row end (from 0 on), and the rows they come from."""
Blocks = Callable[[], Iterable[Block]]
"""A symmetric graph without loops; each call passes over all of it."""


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

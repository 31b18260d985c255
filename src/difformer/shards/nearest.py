"""Exact nearest neighbours of rows in parts, by faiss, with two blocks of rows in memory.

Every block of rows is compared with every other, and the nearest found so far are kept: O(n² p)
time. Blocks are as large as the memory allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import missing_extra
from difformer.shards.edges import Pairs
from difformer.shards.store import take_rows

Array = NDArray[Any]
SHARE = 0.1  # share of the memory that the rows of one block may take


def nearest_pairs(
    parts: list[Array], k: int, memory: int, tell: Callable[[float], None]
) -> Iterator[Pairs]:
    """Edges to each row from its k nearest others by cosine, block by block.

    Args:
        parts: the features of each part, (rows, p), mapped; a row's number runs through them.
        tell: called with the share that is done.
    """
    try:
        import faiss
    except ImportError as error:
        raise missing_extra("a graph of nearest neighbours", "knn") from error
    blocks = _blocks(parts, max(1, int(SHARE * memory)))
    for number, (part, first, last, start) in enumerate(blocks):
        queries = _unit(parts[part], first, last)
        near: Array = np.empty((len(queries), 0), np.float32)
        found: Array = np.empty((len(queries), 0), np.int64)
        for other, (its, low, high, its_start) in enumerate(blocks):
            index: Any = faiss.IndexFlatIP(queries.shape[1])
            index.add(_unit(parts[its], low, high))
            # One more than k, because a row finds itself, which is then ranked last.
            score, place = index.search(queries, min(k + 1, high - low))
            place = place + its_start
            own = place == np.arange(start, start + len(queries))[:, None]
            score = np.where(own, -np.inf, score)
            near, found = np.hstack([near, score]), np.hstack([found, place])
            # Of equally near rows the first are kept, whichever blocks they are in.
            order = np.lexsort((found, -near), axis=1)[:, :k]
            near = np.take_along_axis(near, order, 1)
            found = np.take_along_axis(found, order, 1)
            tell((number + other / len(blocks)) / len(blocks))
        target = np.repeat(np.arange(start, start + len(queries)), found.shape[1])
        yield Pairs(found.reshape(-1), target, None)


def _blocks(parts: list[Array], room: int) -> list[tuple[int, int, int, int]]:
    """Blocks of rows: their part, their range in it, and the number of the first row."""
    found: list[tuple[int, int, int, int]] = []
    start = 0
    for number, part in enumerate(parts):
        size = max(1, room // max(1, part.shape[1] * 4))
        for first in range(0, len(part), size):
            last = min(first + size, len(part))
            found.append((number, first, last, start + first))
        start += len(part)
    return found


def _unit(part: Array, first: int, last: int) -> Array:
    """Rows scaled to length one: their product is the cosine."""
    rows = np.ascontiguousarray(take_rows(part, np.arange(first, last)), np.float32)
    norm = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(norm, np.finfo(np.float32).tiny)

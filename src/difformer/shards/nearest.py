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
from difformer.shards.store import let_go

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

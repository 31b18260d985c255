"""Edges sorted bucket by bucket: those of a dictionary, in whatever order they come."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.errors import DataError
from difformer.shards.edges import EdgeTable, Pairs

Edges = list[tuple[int, int, float]]


def some_edges(rows: int, count: int) -> Edges:
    rng = np.random.default_rng(rows)
    ends = rng.integers(rows, size=(count, 2))
    ends[: count // 4] = ends[-(count // 4) :]  # repeated, and some of them loops
    ends[5] = ends[5, 0]
    return [(int(s), int(t), float(w)) for (s, t), w in zip(ends, rng.random(count), strict=True)]


def pairs_of(edges: Edges, weighted: bool, size: int = 17) -> list[Pairs]:
    found: list[Pairs] = []
    for first in range(0, len(edges), size):
        s, t, w = zip(*edges[first : first + size], strict=True)
        weight = np.array(w, np.float32) if weighted else None
        found.append(Pairs(np.array(s, np.int64), np.array(t, np.int64), weight))
    return found


def expected(rows: int, edges: Edges) -> tuple[dict[tuple[int, int], float], int]:
    """(target, source) -> weight by the slow way, and how many edges were repeated."""
    forward: dict[tuple[int, int], float] = {}
    repeated = 0
    for s, t, w in edges:
        if s != t:
            repeated += (t, s) in forward
            forward[t, s] = forward.get((t, s), 0.0) + w
    both = {(i, i): 1.0 for i in range(rows)}
    for t, s in forward:
        both[t, s] = both[s, t] = max(forward[t, s], forward.get((s, t), 0.0))
    return both, repeated


def read(table: EdgeTable, bounds: list[int]) -> tuple[dict[tuple[int, int], Any], list[int]]:
    found: dict[tuple[int, int], Any] = {}
    counts, before = np.zeros(3, int), (-1, -1)
    for place, piece in table.between(bounds):
        weights = [None] * len(piece.target) if piece.weight is None else piece.weight.tolist()
        for t, s, w in zip(piece.target.tolist(), piece.source.tolist(), weights, strict=True):
            assert bounds[place] <= t < bounds[place + 1]
            assert before < (t, s)
            before = t, s
            found[t, s] = w
        counts += [piece.read, piece.loops, piece.repeated]
    return found, counts.tolist()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("rows", "count"), [(2, 9), (63, 400), (257, 1000)])
def test_edges_come_back_sorted_each_pair_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, count: int, weighted: bool
) -> None:
    monkeypatch.setattr("difformer.shards.edges.BUCKET", 60)
    edges = some_edges(rows, count)
    loops = sum(s == t for s, t, _ in edges)
    want, repeated = expected(rows, edges)
    tables = [
        EdgeTable(tmp_path / name, rows, count, weighted).fill(pairs_of(order, weighted))
        for name, order in (("a", edges), ("b", edges[::-1]))
    ]
    bounds = [0, 1, rows // 2, rows]
    answers = [read(table, bounds) for table in tables]
    assert answers[0] == answers[1]  # whatever the order, to the last bit
    found, counted = answers[0]
    assert counted == [count, loops, repeated]
    assert found.keys() == want.keys()
    if weighted:
        for pair, weight in found.items():
            assert weight == pytest.approx(want[pair], rel=1e-6)
    # By other numbers.
    new = np.random.default_rng(1).permutation(rows).astype(np.int32)
    pairs = (pairs.renumbered(new) for pairs in tables[0].pairs())
    moved = EdgeTable(tmp_path / "moved", rows, count, weighted).fill(pairs)
    renamed = {(int(new[t]), int(new[s])): w for (t, s), w in found.items()}
    assert read(moved, bounds) == (renamed, counted)


def test_blocks_are_compressed_rows_without_loops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("difformer.shards.edges.BUCKET", 10)
    edges: Edges = [(0, 5, 1.0), (7, 7, 1.0), (5, 2, 1.0)]
    table = EdgeTable(tmp_path / "t", 9, 3, False).fill(pairs_of(edges, False))
    rows: list[list[int]] = []
    for first, ends, sources in table.blocks():
        assert first == len(rows)
        rows += [part.tolist() for part in np.split(sources, ends[:-1])]
    assert rows == [[5], [], [5], [], [], [0, 2], [], [], []]


def test_a_table_that_was_cut_off_is_filled_anew(tmp_path: Path) -> None:
    def stops() -> Any:
        yield from pairs_of([(0, 1, 1.0)], False)
        raise KeyboardInterrupt

    table = EdgeTable(tmp_path / "t", 3, 5, False)
    with pytest.raises(KeyboardInterrupt):
        table.fill(stops())
    assert dict(table.fill(pairs_of([(1, 2, 1.0)], False)).between([0, 3]))[0].read == 1
    assert dict(table.fill(stops()).between([0, 3]))[0].read == 1  # finished: not read again


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EdgeTable, "path", lambda *_: Path("/dev/full"))
    with pytest.raises(DataError, match="cannot write .*: No space left on device") as caught:
        EdgeTable(tmp_path / "t", 3, 5, False).fill(pairs_of([(0, 1, 1.0)], False))
    assert "\n" not in str(caught.value)

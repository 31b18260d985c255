"""Training from parts is training on the whole, in memory that the processes share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from difformer.core.graph import Graph

# What is freed goes back to the system at once, so that what is held can be seen.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
Script = Callable[..., None]


@pytest.fixture(scope="module")
def answers(script: Script, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Losses, predictions and metrics by world and rank, and of the whole without parts."""
    folder = tmp_path_factory.mktemp("equal")
    script("parts.py", "equal", folder, 1, 2, 4)
    return {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}


def close(one: Any, other: Any, name: str) -> None:
    a, b = (torch.tensor(each, dtype=torch.float64) for each in (one, other))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-9, msg=lambda text: f"{name}: {text}")


@pytest.mark.parametrize("world", [1, 2, 4])
def test_losses_and_predictions_are_those_of_one_process_without_parts(
    answers: dict[str, Any], world: int
) -> None:
    alone, mine = answers["alone"], answers[f"{world}-0"]
    assert len(mine) > 5
    for name, answer in mine.items():
        close(answer["losses"], alone[name]["losses"], name)
        close(answer["predictions"], alone[name]["predictions"], name)
        if "batches" not in name:  # those are evaluated in batches too
            for part, metrics in answer["metrics"].items():
                expected = pytest.approx(alone[name]["metrics"][part], abs=1e-9, nan_ok=True)
                assert metrics == expected, name


@pytest.mark.parametrize("world", [2, 4])
def test_outputs_and_metrics_do_not_depend_on_the_number_of_processes(
    answers: dict[str, Any], world: int
) -> None:
    for name, lead in answers[f"{world}-0"].items():
        joined: list[Any] = []
        for rank in range(world):
            joined += answers[f"{world}-{rank}"][name]["outputs"]
            assert answers[f"{world}-{rank}"][name]["metrics"] == lead["metrics"]
        one = answers["1-0"][name]
        close(joined, one["outputs"], name)
        for part, metrics in one["metrics"].items():
            assert lead["metrics"][part] == pytest.approx(metrics, abs=1e-9, nan_ok=True), name


def test_the_memory_of_a_process_is_its_share_of_the_data_and_a_step(
    script: Script, tmp_path: Path
) -> None:
    script("parts.py", "memory", tmp_path, **RETURNED)

    def most(world: int, batch_size: int | None = None) -> int:
        files = (tmp_path / f"{world}-{rank}-{batch_size}.txt" for rank in range(world))
        return max(int(file.read_text()) for file in files)

    one, two, four = (most(world) for world in (1, 2, 4))
    features = sum(file.stat().st_size for file in tmp_path.glob("part-*/x.npy"))
    assert one > features
    # A step over processes keeps queries, keys and values, which one process alone does not.
    assert two < 0.75 * one
    assert four < 0.55 * two
    assert most(1, 5000) < 0.4 * features  # streamed: some batches, and the labels


def test_the_runs_that_are_drawn_make_whole_batches(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from parts import BOUNDS, model_of, problem, write_parts
    finally:
        sys.path.pop(0)
    from difformer.train.parts import Parts
    from difformer.train.processes import Comm

    dataset, split, graph = problem({"graph": True})
    shards = write_parts(tmp_path, dataset, split, graph, BOUNDS)
    source = Parts.on_disk(shards, model_of({}), Comm(), batch_size=12, runs=14)  # runs of 3 rows
    assert graph is not None
    dense = Graph.from_edges(graph.edge_index, graph.num_nodes).adjacency.csr.to_dense() > 0
    seen: list[int] = []
    for read in source._batches(3):
        rows, batch = read.mine, read.batch
        seen += rows.tolist()
        assert rows.numel() <= 12
        for row in rows.tolist():  # its run is whole
            first = row - row % 3
            assert set(range(first, min(first + 3, 41))) <= set(rows.tolist())
        torch.testing.assert_close(batch.x, dataset.x[rows])
        assert batch.size == int(torch.isin(rows, split.train).sum())
        assert torch.equal(batch.graph.adjacency.csr.to_dense() > 0, dense[rows][:, rows])
    assert sorted(seen) == list(range(41))
    again = [read.mine.tolist() for read in source._batches(3)]
    assert [row for rows in again for row in rows] == seen

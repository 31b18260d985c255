"""Snapshots and the three files they are read from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.data.registry import load_dataset
from difformer.data.snapshots import (
    TemporalDataset,
    complete_edges,
    from_windows,
    neighbour_edges,
    time_split,
)
from difformer.errors import DataError
from difformer_paper.datasets.temporal import read_file


def wiki_file(folder: Path, **changes: Any) -> Path:
    """A small file of WikiMath's layout: 20 days, 3 pages, 4 links."""
    counts = np.random.default_rng(0).integers(0, 100, (20, 3))
    content: dict[str, Any] = {
        "edges": [[0, 1], [1, 2], [2, 0], [0, 0]],
        "weights": [1, 2, 3, 1],
        "node_ids": {"algebra": 0, "set": 1, "topology": 2},
        "time_periods": 20,
    }
    content |= {str(t): {"index": t, "y": row.tolist()} for t, row in enumerate(counts)}
    path = folder / "wikivital_mathematics.json"
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def test_chickenpox_is_read_as_the_library_reads_it(data_root: Path) -> None:
    data = load_dataset("chickenpox", data_root)
    assert isinstance(data, TemporalDataset)
    raw = json.loads((data_root / "temporal" / "chickenpox.json").read_text())
    series = np.array(raw["FX"])
    assert (data.num_snapshots, data.num_nodes, data.num_features) == (517, 20, 4)
    assert len(data.edges) == 1
    assert data.edges[0][0].shape == (2, 102)
    x = data.x.reshape(517, 20, 4)
    np.testing.assert_allclose(x[100], series[100:104].T, rtol=1e-6)
    np.testing.assert_allclose(data.y.reshape(517, 20)[100], series[104], rtol=1e-6)
    sizes = [getattr(data.split("time"), part).numel() // 20 for part in ("train", "val", "test")]
    assert sizes == [103, 103, 311]
    assert data.node_names[0] == "BACS"
    assert "517 snapshots of 20 nodes; 4 lags; one graph" in data.describe()


def test_covid_has_a_graph_a_day_and_is_standardised_a_node(data_root: Path) -> None:
    data = load_dataset("covid", data_root)
    assert isinstance(data, TemporalDataset)
    raw = json.loads((data_root / "temporal" / "england_covid.json").read_text())
    series = np.array(raw["y"], dtype=float)
    series = (series - series.mean(0)) / (series.std(0) + 1e-10)
    assert (data.num_snapshots, data.num_nodes, data.num_features) == (53, 129, 8)
    assert len(data.edges) == 53
    index, weight = data.edges[7]
    assert weight is not None
    assert index.T.tolist() == raw["edge_mapping"]["edge_index"]["7"]
    assert weight.tolist() == raw["edge_mapping"]["edge_weight"]["7"]
    np.testing.assert_allclose(data.y.reshape(53, 129)[7], series[15], rtol=1e-5, atol=1e-6)
    sizes = [getattr(data.split("time"), part).numel() // 129 for part in ("train", "val", "test")]
    assert sizes == [10, 10, 33]


def test_wikimath_is_read_from_a_file_of_its_layout(tmp_path: Path) -> None:
    path = wiki_file(tmp_path)
    data = read_file(path, "wikimath", lags=14)
    assert (data.num_snapshots, data.num_nodes, data.num_features) == (6, 3, 14)
    raw = json.loads(path.read_text())
    series = np.array([raw[str(t)]["y"] for t in range(20)], dtype=float)
    series = (series - series.mean(0)) / series.std(0)
    np.testing.assert_allclose(data.y.reshape(6, 3)[2], series[16], rtol=1e-5)
    assert data.edges[0][1] is not None
    assert data.edges[0][1].tolist() == [1, 2, 3, 1]
    assert data.node_names == ("algebra", "set", "topology")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": [1, 2]}, r"edge_weight must be \(4,\)"),
        ({"edges": [[0, 3]], "weights": [1]}, r"must lie in 0\.\.2, not 0\.\.3"),
        ({"time_periods": 21}, "it lacks '20'"),
        ({"5": {"y": [1, 2]}}, "inhomogeneous"),
    ],
)
def test_a_damaged_file_is_named_with_the_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    path = wiki_file(tmp_path, **changes)
    with pytest.raises((DataError, ValueError), match=reason):
        read_file(path, "wikimath", lags=14)


def test_a_time_split_takes_whole_snapshots_in_order() -> None:
    split = time_split(11, 3)
    assert split.train.tolist() == list(range(6))
    assert split.val.tolist() == list(range(6, 12))
    assert split.test.tolist() == list(range(12, 33))
    with pytest.raises(ValueError, match="none to train on"):
        time_split(4, 3)
    with pytest.raises(ValueError, match="ratios must be 0 or more"):
        time_split(10, 3, (0.5, 0.6, 0.2))


def test_stacked_edges_are_the_blocks_of_their_snapshots() -> None:
    one = (torch.tensor([[0, 1], [1, 1]]), None)
    two = (torch.tensor([[1], [0]]), torch.tensor([5.0]))
    data = from_windows("toy", torch.randn(7, 2), 2, (one, two, one, two, one))
    stacked = data.stacked_edges([1, 0])
    assert stacked is not None
    assert stacked[0].tolist() == [[1, 2, 3], [0, 3, 3]]
    assert stacked[1] is not None
    assert stacked[1].tolist() == [5, 1, 1]
    with pytest.raises(ValueError, match="one for each of the 5 snapshots, got 3"):
        from_windows("toy", torch.randn(7, 2), 2, (one,) * 3)
    with pytest.raises(ValueError, match="lags must be fewer than the 12 steps .*, got 12"):
        from_windows("toy", torch.randn(12, 2), 12)


def test_neighbours_are_the_most_alike_of_the_same_snapshot() -> None:
    data = from_windows("toy", torch.randn(12, 6), 5)
    near = neighbour_edges(data, k=3)
    assert len(near.edges) == data.num_snapshots
    source, target = near.edges[4][0]
    x = data.x.reshape(-1, 6, 5)[4]
    cosine = torch.nn.functional.cosine_similarity(x.unsqueeze(1), x.unsqueeze(0), dim=-1)
    for node in range(6):
        mine = source[target == node]
        assert node in mine
        assert set(mine.tolist()) == set(cosine[node].topk(3).indices.tolist())
    assert complete_edges(data).edges[0][0].shape == (2, 36)

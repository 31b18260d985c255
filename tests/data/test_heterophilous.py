from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.data.registry import load_dataset
from difformer.errors import DataError
from difformer_paper.datasets.heterophilous import read_npz

COUNTS = {
    "actor": (7600, 26659, 932),
    "chameleon": (2277, 31371, 2325),
    "squirrel": (5201, 198353, 2089),
    "chameleon-filtered": (890, 8854, 2325),
    "squirrel-filtered": (2223, 46998, 2089),
}


def write_tiny(path: Path, **changes: Any) -> None:
    masks = np.eye(3, dtype=bool)
    arrays: dict[str, Any] = {
        "node_features": np.array([[1, 3], [0, 0], [2, 0]], dtype=np.float32),
        "node_labels": np.array([0, 1, 0]),
        "edges": np.array([[0, 1], [1, 2]]),
        "train_masks": masks[[0, 1]],
        "val_masks": masks[[1, 2]],
        "test_masks": masks[[2, 0]],
    }
    np.savez(path, **(arrays | changes))


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_those_of_the_source(name: str, data_root: Path) -> None:
    rows, edges, features = COUNTS[name]
    data = load_dataset(name, data_root)
    assert (data.num_rows, data.num_features, data.num_outputs) == (rows, features, 5)
    assert data.edge_index is not None
    assert data.edge_index.shape == (2, 2 * edges)
    assert list(data.splits) == [f"given:{i}" for i in range(10)]
    for split in data.splits.values():
        assert split.train.numel() + split.val.numel() + split.test.numel() == rows


def test_tiny_file_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    write_tiny(path)
    data = read_npz(path, "tiny")
    assert data.x.to_dense().tolist() == [[0.25, 0.75], [0, 0], [1, 0]]
    assert read_npz(path, "tiny", normalize=False).x.to_dense().tolist() == [[1, 3], [0, 0], [2, 0]]
    assert data.edge_index is not None
    assert data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert data.split("given:1").describe() == "given:1: 1 train, 1 val, 1 test"
    assert data.split("given:1").test.tolist() == [0]


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    write_tiny(path, node_labels=np.array([{}, 1, 0], dtype=object))
    with pytest.raises(DataError, match=r"tiny\.npz cannot be read: .*pickle"):
        read_npz(path, "tiny")

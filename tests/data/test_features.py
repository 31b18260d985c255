"""Feature files: written whole, read back equal, and refused by name where they do not match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from difformer.data.features import FeatureFile, read_features, standardize, write_features
from difformer.errors import DataError


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    given = FeatureFile(
        torch.randn(4, 3), torch.tensor([0, 1, -1, 0]), ("a", "b"), ("w", "x", "y", "z"), "by hand"
    )
    path = write_features(tmp_path / "deep/er/f.npz", given)
    read = read_features(path)
    assert torch.equal(read.x, given.x)
    assert read.y is not None
    assert read.y.tolist() == [0, 1, -1, 0]
    assert (read.class_names, read.names, read.made) == (
        ("a", "b"),
        ("w", "x", "y", "z"),
        "by hand",
    )
    assert [p.name for p in path.parent.iterdir()] == ["f.npz"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 2))}, "has no array 'features'; it has x"),
        ({"features": np.zeros(4)}, r"features must be \(rows, columns\) numbers"),
        ({"features": np.zeros((0, 4))}, r"features must be \(rows, columns\) numbers"),
        ({"features": np.array([["a", "b"]])}, r"features must be \(rows, columns\) numbers"),
        ({"features": np.array([[1, np.nan], [1, 2]])}, "must be finite, 1 of 2 rows are not"),
        ({"features": np.zeros((2, 2)), "labels": np.zeros(3, int)}, "2 rows of .*, but 3 labels"),
        ({"features": np.zeros((2, 2)), "labels": np.zeros(2)}, r"labels must be \(rows,\) whole"),
        (
            {"features": np.zeros((2, 2)), "labels": np.array([0, 2]), "classes": np.array(["a"])},
            "names 1 classes, but has label 2",
        ),
        ({"features": np.zeros((2, 2)), "classes": np.zeros(2)}, "classes must be a list of text"),
    ],
)
def test_what_does_not_match_is_named(tmp_path: Path, arrays: Any, message: str) -> None:
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_features(tmp_path / "f.npz")


def test_damaged_pickled_and_absent_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.npz"
    np.savez(path, features=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="is not a feature file: .*pickle"):
        read_features(path)
    np.savez(path, features=np.zeros((50, 50)))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(DataError, match="is not a feature file"):
        read_features(path)
    with pytest.raises(DataError, match="nowhere.npz does not exist"):
        read_features(tmp_path / "nowhere.npz")


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="cannot write"):
        write_features(tmp_path / "file/f.npz", FeatureFile(torch.zeros(1, 1)))
    (tmp_path / "taken.npz").mkdir()
    with pytest.raises(DataError, match="cannot write"):
        write_features(tmp_path / "taken.npz", FeatureFile(torch.zeros(1, 1)))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "taken.npz"]


def test_standardized_columns_have_mean_0_and_deviation_1_or_0() -> None:
    x = standardize(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert torch.equal(x, torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))

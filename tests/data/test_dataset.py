from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import torch

from difformer.data.dataset import Dataset
from difformer.data.split import Split


def make(**changes: Any) -> Dataset:
    fields: dict[str, Any] = {
        "name": "tiny",
        "x": torch.zeros(4, 2),
        "y": torch.tensor([0, 1, 2, -1]),
        "edge_index": torch.tensor([[0, 1], [1, 0]]),
        "splits": {"public": Split("public", [0], [1], [2])},
    }
    return Dataset(**(fields | changes))


def test_sizes_follow_from_the_tensors() -> None:
    data = make()
    assert (data.num_rows, data.num_features, data.num_outputs) == (4, 2, 3)
    assert make(class_names=("a", "b", "c", "d")).num_outputs == 4
    assert make(task="regression", y=torch.zeros(4)).num_outputs == 1
    assert make(task="multilabel", y=torch.zeros(4, 5)).num_outputs == 5


def test_a_dataset_cannot_be_changed() -> None:
    data = make()
    with pytest.raises(FrozenInstanceError):
        data.name = "other"  # pyright: ignore
    with pytest.raises(TypeError):
        data.splits["mine"] = data.splits["public"]  # pyright: ignore


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "ranking"}, "task must be one of multiclass, multilabel, regression"),
        ({"x": torch.zeros(4)}, r"x must be \(rows, features\), not of shape \(4,\)"),
        ({"y": torch.zeros(3, dtype=torch.int64)}, "label for each of the 4 rows, not 3"),
        ({"y": torch.zeros(4)}, r"int64 for multiclass, not \(4,\) float32"),
        ({"task": "multilabel"}, r"floating for multilabel, not \(4,\) int64"),
        ({"edge_index": torch.zeros(3, 2).long()}, r"edge_index must be \(2, edges\)"),
        ({"edge_index": torch.tensor([[0], [4]])}, r"edge_index must lie in 0\.\.3, not 0\.\.4"),
        ({"edge_weight": torch.ones(3)}, r"edge_weight must be \(2,\)"),
        ({"edge_index": None, "edge_weight": torch.ones(2)}, "edge_weight needs edge_index"),
        ({"splits": {"public": Split("public", [0], [1], [9])}}, "test names row 9"),
    ],
)
def test_wrong_parts_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_split_reads_names_and_checks_objects() -> None:
    data = make()
    assert data.split("public") is data.splits["public"]
    assert data.split("ratio:0.5/0.5/0").train.numel() == 1  # half of the three labelled rows
    with pytest.raises(ValueError, match="test names row 9"):
        data.split(Split("mine", [0], [1], [9]))


def test_the_description_names_the_sizes() -> None:
    text = "tiny: 4 rows; 2 features; 3 outputs (multiclass); 2 directed edges; splits public"
    assert make().describe() == text
    assert "no graph" in make(edge_index=None).describe()
    assert text in repr(make())

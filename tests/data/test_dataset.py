"""A dataset checks its parts; matrices and pairs become its tensors."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from difformer.data.dataset import Dataset, csr_tensor, undirected
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


def test_the_description_names_the_sizes() -> None:
    text = "tiny: 4 rows; 2 features; 3 outputs (multiclass); 2 directed edges; splits public"
    assert make().describe() == text
    assert "no graph" in make(edge_index=None).describe()
    assert text in repr(make())


def test_csr_tensor_is_the_matrix_with_duplicates_summed_and_without_zeros() -> None:
    matrix = sp.coo_matrix((np.array([1.0, 2.0, 0.0]), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    tensor = csr_tensor(matrix)
    assert tensor.layout == torch.sparse_csr
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor.to_dense(), torch.from_numpy(matrix.toarray()).float())
    assert tensor.values().tolist() == [3.0]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30))
def test_undirected_edges_are_symmetric_unique_and_without_loops(
    pairs: list[tuple[int, int]],
) -> None:
    found = list(map(tuple, undirected(pairs, 9).T.tolist()))
    assert found == sorted({p for a, b in pairs if a != b for p in [(a, b), (b, a)]})

    with pytest.raises(ValueError, match=r"edges must lie in 0\.\.8, not 0\.\.9"):
        undirected([(0, 9)], 9)

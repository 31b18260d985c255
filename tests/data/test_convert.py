from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from difformer.data.dataset import csr_tensor, normalize_rows, undirected


def test_csr_tensor_equals_the_matrix() -> None:
    dense = np.array([[0, 2, 0], [0, 0, 0], [1, 0, 3]], dtype=np.float64)
    tensor = csr_tensor(sp.coo_matrix(dense))
    assert tensor.layout == torch.sparse_csr
    assert tensor.dtype == torch.float32
    assert torch.equal(tensor.to_dense(), torch.from_numpy(dense).float())


def test_csr_tensor_sums_duplicates_and_drops_zeros() -> None:
    matrix = sp.coo_matrix((np.array([1.0, 2.0, 0.0]), ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    tensor = csr_tensor(matrix)
    assert tensor.values().tolist() == [3.0]


def test_normalized_rows_sum_to_one_and_zero_rows_stay() -> None:
    matrix = sp.csr_matrix(np.array([[1, 3], [0, 0]], dtype=np.float32))
    assert normalize_rows(matrix).toarray().tolist() == [[0.25, 0.75], [0, 0]]
    assert matrix.toarray().tolist() == [[1, 3], [0, 0]]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=30))
def test_undirected_edges_are_symmetric_unique_and_without_loops(
    pairs: list[tuple[int, int]],
) -> None:
    found = list(map(tuple, undirected(pairs, 9).T.tolist()))
    assert found == sorted({p for a, b in pairs if a != b for p in [(a, b), (b, a)]})


def test_an_edge_outside_is_refused() -> None:
    with pytest.raises(ValueError, match=r"edges must lie in 0\.\.2, not 0\.\.3"):
        undirected([(0, 3)], 3)

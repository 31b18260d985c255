"""Constant sparse matrices: dropout wherever the matrix came from, and chunks by device."""

import pytest
import torch

from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import row_tiles


@pytest.mark.parametrize("way", ["fresh", "moved", "moved late", "dropped", "moved and dropped"])
def test_dropout_keeps_the_transpose_whatever_was_done_before(way):
    torch.manual_seed(0)
    dense = torch.rand(9, 5) * (torch.rand(9, 5) < 0.6)
    matrix = SparseMatrix.from_csr(dense.to_sparse_csr())
    if way == "moved late":
        assert matrix.transpose is not None
    if "moved" in way:
        matrix = matrix.to(torch.empty(0, dtype=torch.float64))
    if way != "fresh" and "dropped" in way:
        matrix = matrix.dropout(0.5)
    if way == "moved and dropped":
        matrix = matrix.dropout(0.2).to(torch.empty(0))
    dropped = matrix.dropout(0.5)
    torch.testing.assert_close(dropped.transpose.to_dense(), dropped.csr.to_dense().T)
    zero = dense == 0
    assert (dropped.csr.to_dense()[zero] == 0).all()


def test_chunks_of_rows_are_small_for_a_cpu_only():
    many = (2**20, 64)
    assert len(list(row_tiles(torch.empty(many, device="meta")))) == 1
    assert len(list(row_tiles(torch.empty(2**14, 64)))) == 2

"""From scipy's sparse matrices to torch's."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor


def csr_tensor(matrix: Any) -> Tensor:
    """A scipy sparse matrix as a float32 CSR tensor, duplicates summed, columns sorted. O(nnz)."""
    csr = matrix.tocsr()
    csr.sum_duplicates()
    with warnings.catch_warnings():
        # Said once a process by torch of every CSR tensor; nothing a user could act on.
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(csr.indptr).to(torch.int64),
            torch.from_numpy(csr.indices).to(torch.int64),
            torch.from_numpy(csr.data).to(torch.float32),
            size=csr.shape,
            check_invariants=True,
        )

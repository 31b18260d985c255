"""From the arrays of a data file to the tensors of a Dataset."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def csr_tensor(matrix: Any) -> Tensor:
    """A scipy sparse matrix as a float32 CSR tensor, duplicates summed, columns sorted. O(nnz)."""
    csr = matrix.tocsr().astype(np.float32)
    csr.sum_duplicates()
    csr.eliminate_zeros()
    with warnings.catch_warnings():
        # torch warns once per process about every CSR tensor; users cannot act on it.
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        return torch.sparse_csr_tensor(
            torch.from_numpy(csr.indptr).to(torch.int64),
            torch.from_numpy(csr.indices).to(torch.int64),
            torch.from_numpy(csr.data),
            size=csr.shape,
            check_invariants=True,
        )


def scipy_csr(x: Tensor) -> Any:
    """A matrix tensor of any layout as a scipy CSR matrix; a CSR tensor shares its memory."""
    from scipy.sparse import csr_matrix

    csr = x.detach().cpu()
    csr = csr if csr.layout == torch.sparse_csr else csr.to_sparse_csr()
    parts = (csr.values().numpy(), csr.col_indices().numpy(), csr.crow_indices().numpy())
    return csr_matrix(parts, shape=tuple(x.shape))


def normalize_rows(matrix: Any) -> Any:
    """A scipy sparse matrix whose rows sum to one; a row of zeros stays so. O(nnz)."""
    csr = matrix.tocsr().astype(np.float32)
    sums = np.asarray(csr.sum(axis=1), dtype=np.float32).ravel()
    sums[sums == 0] = 1
    csr.data = csr.data / np.repeat(sums, np.diff(csr.indptr))
    return csr


def undirected(pairs: Any, num_nodes: int) -> Tensor:
    """(e, 2) pairs as a (2, 2e') edge_index: both ways, no loops, no duplicates. O(e log e).

    >>> undirected([(0, 1), (1, 0), (2, 2), (2, 1)], 3)
    tensor([[0, 1, 1, 2],
            [1, 0, 2, 1]])
    """
    edges = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    if edges.size and not (edges.min() >= 0 and edges.max() < num_nodes):
        raise ValueError(f"edges must lie in 0..{num_nodes - 1}, not {edges.min()}..{edges.max()}")
    edges = edges[edges[:, 0] != edges[:, 1]]
    both = np.concatenate([edges, edges[:, ::-1]])
    keys = np.unique(both[:, 0] * num_nodes + both[:, 1])
    return torch.from_numpy(np.stack([keys // num_nodes, keys % num_nodes]))

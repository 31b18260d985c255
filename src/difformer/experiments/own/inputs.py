"""The tensors of a dataset as the estimators take them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.data.dataset import Dataset

__all__ = ["as_rows", "given_graph"]


def as_rows(x: Tensor) -> Any:
    """Features as the estimators take them."""
    if x.layout == torch.strided:
        return x.numpy()
    from scipy.sparse import csr_matrix

    parts = (x.values().numpy(), x.col_indices().numpy(), x.crow_indices().numpy())
    return csr_matrix(parts, shape=tuple(x.shape))


def given_graph(data: Dataset) -> Any:
    """The table's own edges as the estimators take them; None where it has none."""
    if data.edge_index is None or data.edge_weight is None:
        return data.edge_index
    from scipy.sparse import coo_matrix

    source, target = data.edge_index.numpy()
    n = data.num_rows
    return coo_matrix((data.edge_weight.numpy(), (source, target)), shape=(n, n))

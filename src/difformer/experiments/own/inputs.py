"""The tensors of a dataset as the estimators take them."""

from __future__ import annotations

from typing import Any

from difformer.data.dataset import Dataset

__all__ = ["given_graph"]


def given_graph(data: Dataset) -> Any:
    """The table's own edges as the estimators take them; None where it has none."""
    if data.edge_index is None or data.edge_weight is None:
        return data.edge_index
    from scipy.sparse import coo_matrix

    source, target = data.edge_index.numpy()
    n = data.num_rows
    return coo_matrix((data.edge_weight.numpy(), (source, target)), shape=(n, n))

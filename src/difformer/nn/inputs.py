"""Checks of what a model is given: features, a Graph, or a Data of PyTorch Geometric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.core.checks import check_finite, check_within
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix

__all__ = ["check_features", "check_graph", "of_data"]


def check_features(x: Tensor, width: int, dtype: torch.dtype) -> Tensor | SparseMatrix:
    """Features (n, width) for a model of this dtype, or a ValueError that says what is wrong."""
    if x.dim() != 2 or x.shape[1] != width:
        raise ValueError(f"x must have shape (n, {width}), got {tuple(x.shape)}")
    if x.shape[0] == 0:
        raise ValueError("x must have at least one row, got none")
    if not x.dtype.is_floating_point:
        raise ValueError(f"x must be of a floating-point type, got {x.dtype}")
    check_finite("x", x)
    # Squares of states, in LayerNorm and in norms, and their sums must not overflow.
    check_within("x", x, torch.finfo(dtype).max ** 0.5 / 2**10)
    return x if x.layout == torch.strided else SparseMatrix.from_csr(x)


def check_graph(graph: Graph, edge_weight: Tensor | None, num_rows: int) -> None:
    """Raise if a Graph was given with weights, or for another number of rows."""
    if edge_weight is not None:
        raise ValueError("edge_weight must be None with a Graph: it holds its own weights")
    if graph.num_nodes != num_rows:
        raise ValueError(f"edge_index is a Graph of {graph.num_nodes} rows, x has {num_rows}")


def of_data(data: Any, *given: Any) -> tuple[Tensor, Any, Any, Any]:
    """The arguments of `forward` from a Data of PyTorch Geometric."""
    x = getattr(data, "x", None)
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, or a Data with x, got {type(data).__name__}")
    if any(each is not None for each in given):
        raise ValueError(
            "edge_index, edge_weight and batch must be left out with a Data: it has them"
        )
    edge_index, edge_weight, batch = (
        getattr(data, name, None) for name in ("edge_index", "edge_weight", "batch")
    )
    return x, edge_index, edge_weight, batch

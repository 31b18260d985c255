"""What several systems share: a linear layer that takes sparse features, and edges as PyG wants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.remembered import Remembered

__all__ = ["Edges", "FeatureLinear", "PreparedEdges", "drop_features", "edges_of", "no_batch"]

Edges = Tensor | Graph | None


@dataclass(frozen=True)
class PreparedEdges:
    """(2, e) source above target, and (e,) weights or None; the tensors stay the same objects."""

    index: Tensor
    weight: Tensor | None


def edges_of(
    edge_index: Edges, edge_weight: Tensor | None, n: int, *, system: str
) -> PreparedEdges:
    """The raw edges of a graph or an edge list, not copied; ValueError where there are none."""
    if edge_index is None:
        raise ValueError(f"edge_index must be given: {system} needs a graph")
    if isinstance(edge_index, Graph):
        if edge_index.num_nodes != n:
            raise ValueError(f"the graph must have x's {n} rows, it has {edge_index.num_nodes}")
        return PreparedEdges(edge_index.edge_index, edge_index.edge_weight)
    return PreparedEdges(edge_index, edge_weight)


def no_batch(batch: Tensor | None, system: str) -> None:
    """Refuse a batch of several graphs where rows of different graphs would meet."""
    if batch is not None and batch.numel() and bool((batch != batch[0]).any()):
        raise ValueError(f"batch must be None: {system} takes one graph at a time")


class FeatureLinear(nn.Module):
    """x W + b for dense or sparse CSR x, in O(nonzeros · width); dropout on the features first.

    Dropout of a sparse x keeps its zeros: the stored values are dropped, which is the same law.
    """

    def __init__(self, inputs: int, outputs: int, *, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.dropout, self.biased = dropout, bias
        self._matrix: Remembered[SparseMatrix] = Remembered()

    def forward(self, x: Tensor) -> Tensor:
        if x.layout == torch.strided:
            return self.linear(F.dropout(x, self.dropout, self.training))
        matrix = self._matrix.get((x,), None, lambda: SparseMatrix.from_csr(x))
        if self.training and self.dropout:
            matrix = drop_features(matrix, self.dropout)
        out = matrix.matmul(self.linear.weight.T)
        return out + self.linear.bias if self.biased else out


def drop_features(matrix: SparseMatrix, rate: float) -> SparseMatrix:
    """The matrix with stored values dropped at a rate and the rest scaled up, O(nonzeros)."""
    # The transpose is dropped by the same mask, by way of the stored order, so nothing is sorted.
    keep = F.dropout(torch.ones_like(matrix.values), rate)
    order = _transpose_order(matrix)
    csr, transpose = matrix.csr, matrix.transpose
    size, other = matrix.shape, (matrix.shape[1], matrix.shape[0])
    return SparseMatrix(
        torch.sparse_csr_tensor(
            csr.crow_indices(),
            csr.col_indices(),
            csr.values() * keep,
            size=size,
            check_invariants=False,
        ),
        torch.sparse_csr_tensor(
            transpose.crow_indices(),
            transpose.col_indices(),
            transpose.values() * keep[order],
            size=other,
            check_invariants=False,
        ),
    )


_ORDERS: dict[int, tuple[SparseMatrix, Tensor]] = {}


def _transpose_order(matrix: SparseMatrix) -> Tensor:
    """Where each stored value of the transpose stands in the matrix itself."""
    kept = _ORDERS.get(id(matrix))
    if kept is None or kept[0] is not matrix:
        row, col, _ = matrix.coo
        _ORDERS.clear()  # one dataset at a time
        kept = _ORDERS[id(matrix)] = (matrix, torch.argsort(col * matrix.shape[0] + row))
    return kept[1]

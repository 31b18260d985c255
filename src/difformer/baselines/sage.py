"""GraphSAGE (Hamilton, Ying and Leskovec 2017): one weight for a row itself, one for its mean."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from difformer.baselines.gcn import GCN
from difformer.baselines.registry.stack import Convolutions
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.remembered import Remembered

__all__ = ["GraphSAGE"]


class GraphSAGE(GCN):
    """GraphSAGE with the mean of all neighbours, O(e d + n d²) per layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ R_k + D^-1 A H⁽ᵏ⁾ W_k)))              (algorithm 1, mean)

    That is a GCN's stack on another matrix, with its residual always there. A has no loops: a row
    has its own weight. Left out: sampled neighbours (all are taken) and rows of unit length.
    """

    title = "GraphSAGE"

    def __init__(self, in_channels: int, out_channels: int, config: Convolutions) -> None:
        super().__init__(in_channels, out_channels, replace(config, residual=True))
        self._mean: Remembered[SparseMatrix] = Remembered()

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        like = next(self.parameters())
        mean = self._mean.get((graph.adjacency.csr,), like.dtype, lambda: mean_matrix(graph, like))
        return self.stack(x, mean.csr)


def mean_matrix(graph: Graph, like: Tensor) -> SparseMatrix:
    """D^-1 A without loops: each row's product is the weighted mean of its neighbours, or zero."""
    source, target = graph.edge_index
    away = source != target
    source, target = source[away], target[away]
    weight = torch.ones(source.shape) if graph.edge_weight is None else graph.edge_weight[away]
    weight = weight.to(like)
    total = weight.new_zeros(graph.num_nodes).index_add(0, target, weight)
    size = (graph.num_nodes, graph.num_nodes)
    return SparseMatrix.from_coo(target, source, weight / total[target], size)

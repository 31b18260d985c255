"""GraphSAGE (Hamilton, Ying and Leskovec 2017): one weight for a row itself, one for its mean."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from difformer.baselines.gcn import GCN
from difformer.baselines.registry.stack import Convolutions
from difformer.core.graph import Graph

__all__ = ["GraphSAGE"]


class GraphSAGE(GCN):
    """GraphSAGE with the mean of all neighbours, O(e d + n d²) per layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ R_k + D^-1 A H⁽ᵏ⁾ W_k)))              (algorithm 1, mean)

    That is a GCN's stack with another matrix and a residual that is always on. A has no loops: a
    row has its own weight. Left out: sampled neighbours (all are taken) and rows of unit length.
    """

    title = "GraphSAGE"

    def __init__(self, in_channels: int, out_channels: int, config: Convolutions) -> None:
        super().__init__(in_channels, out_channels, replace(config, residual=True))

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        return super().run(x, graph.neighbours_mean, batch)

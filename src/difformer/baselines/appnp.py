"""APPNP (Klicpera, Bojchevski and Gunnemann 2019): predict, then propagate by PageRank."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.baselines.layers import GraphModel
from difformer.baselines.mlp import MLP
from difformer.baselines.registry.labels import APPNPConfig
from difformer.core.graph import Graph

__all__ = ["APPNP"]


class APPNP(GraphModel):
    """A perceptron whose outputs go K steps of personalised PageRank, O(n d² + K e c).

        Z⁽⁰⁾ = H = MLP(x),   Z⁽ᵏ⁺¹⁾ = (1 − α) D^-1/2 (A + I) D^-1/2 Z⁽ᵏ⁾ + α H            (eq. 4)

    Left out: dropout on the adjacency.
    """

    title = "APPNP"

    def __init__(self, in_channels: int, out_channels: int, config: APPNPConfig) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        self.steps, self.alpha = config.steps, config.alpha

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        first = self.mlp(x)
        graph, z = graph.to(first), first
        for _ in range(self.steps):
            z = torch.lerp(graph.propagate(z), first, self.alpha)
        return z

"""A perceptron per row, alone (MLP) and with its predictions propagated (APPNP)."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.data.dataset import Batch
from difformer.systems.families import APPNPConfig
from difformer.systems.layers import FeatureLinear, GraphModel, make_norm
from difformer.systems.system import Perceptron


class MLP(nn.Module):
    """A multi-layer perceptron, O(n d²) per layer; the graph is ignored.

        H⁽⁰⁾ = x,   H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ W_k + b_k))),   the last layer is linear.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    def __init__(self, in_channels: int, out_channels: int, config: Perceptron) -> None:
        super().__init__()
        widths = [config.hidden_channels] * (config.num_layers - 1) + [out_channels]
        self.first = FeatureLinear(
            in_channels, widths[0], dropout=config.input_dropout, standardised=config.standardise
        )
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(make_norm(config.norm, width) for width in widths[:-1])
        self.dropout = config.dropout

    def observe(self, batch: Batch) -> None:
        """Measure the features, where they are to be standardised."""
        self.first.measure(batch.x)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        h = self.first(x)
        for norm, linear in zip(self.norms, self.rest, strict=True):
            h = linear(F.dropout(F.relu(norm(h)), self.dropout, self.training))
        return h


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

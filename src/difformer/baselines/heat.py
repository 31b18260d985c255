"""GraphHeat (Xu et al. 2019): a GCN whose filter is the heat kernel of the graph."""

from __future__ import annotations

import itertools
import math

from torch import Tensor, nn
from torch.nn import functional as F

from difformer.baselines.layers import FeatureLinear, GraphModel
from difformer.baselines.registry.diffusions import HeatConfig
from difformer.core.graph import Graph

__all__ = ["GraphHeat", "heat_kernel"]


class GraphHeat(GraphModel):
    """Heat-kernel convolutions, O(r e d) per layer for a series of r terms.

        H⁽ᵏ⁺¹⁾ = ReLU(e^(−s L) H⁽ᵏ⁾ W_k),   L = I − D^-1/2 A D^-1/2                (eqs. 6, 10)

    The kernel is never formed: its Taylor series is applied, to machine precision. Left out: the
    paper's threshold that makes the kernel sparse, which the series does not need, and a step
    s for each feature.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    title = "GraphHeat"

    def __init__(self, in_channels: int, out_channels: int, config: HeatConfig) -> None:
        super().__init__()
        hidden, layers = config.hidden_channels, config.num_layers
        widths = [hidden] * (layers - 1) + [out_channels]
        self.first = FeatureLinear(
            in_channels, widths[0], dropout=config.input_dropout, bias=False, init="glorot"
        )
        self.rest = nn.ModuleList(
            FeatureLinear(a, b, bias=False, init="glorot") for a, b in itertools.pairwise(widths)
        )
        self.scale, self.dropout = config.scale, config.dropout

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        graph = graph.to(self.first.linear.weight)
        h = heat_kernel(graph, self.first(x), self.scale)
        for linear in self.rest:
            h = F.dropout(F.relu(h), self.dropout, self.training)
            h = heat_kernel(graph, linear(h), self.scale)
        return h


def heat_kernel(graph: Graph, value: Tensor, scale: float, tolerance: float = 1e-7) -> Tensor:
    """e^(−s (I − Ã)) V = e^−s Σ_r s^r/r! Ã^r V; ‖Ã‖ ≤ 1, so the remainder is below tolerance."""
    term = value * math.exp(-scale)
    total, weight, left, r = term, math.exp(-scale), 1.0 - math.exp(-scale), 0
    while left > tolerance and r < 1000:
        r += 1
        term = graph.propagate(term) * (scale / r)
        total = total + term
        weight *= scale / r
        left -= weight
    return total

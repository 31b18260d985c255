"""GraphHeat (Xu et al. 2019): a GCN whose filter is the heat kernel of the graph."""

from __future__ import annotations

import math

from torch import Tensor

from difformer.baselines.convolutions import FilteredStack
from difformer.baselines.registry.diffusions import HeatConfig
from difformer.core.graph import Graph

__all__ = ["GraphHeat", "heat_kernel"]


class GraphHeat(FilteredStack):
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
        self.add_layers(in_channels, out_channels, config)
        self.scale = config.scale

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        graph = graph.to(self.first.linear.weight)
        return self.filtered(x, lambda h: heat_kernel(graph, h, self.scale))


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

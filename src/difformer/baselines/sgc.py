"""SGC (Wu et al. 2019): K propagations without non-linearity, then a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import SGConv

from difformer.baselines.configs import SGCConfig
from difformer.baselines.propagated import PropagatedLinear
from difformer.core.graph import Graph

__all__ = ["SGC", "build"]


class SGC(PropagatedLinear):
    """Simplified graph convolution, O(K e p) once and O(n p c) an epoch.

        y = S^K x W + b,   S = D^-1/2 (A + I) D^-1/2                                  (eq. 8)

    The propagation is PyTorch Geometric's SGConv with its linear layer taken off. Left out:
    the paper trains by L-BFGS in one of its versions; here it is the loop's Adam.
    """

    title = "SGC"

    def __init__(self, in_channels: int, out_channels: int, config: SGCConfig) -> None:
        super().__init__(in_channels, out_channels)
        self.steps = config.steps

    def options(self) -> tuple[object, ...]:
        return (self.steps,)

    def propagate(self, x: Tensor, graph: Graph) -> Tensor:
        layer = SGConv(1, 1, K=self.steps)
        setattr(layer, "lin", nn.Identity())  # noqa: B010 - another type than the library's
        with torch.no_grad():
            return layer(x, graph.edge_index, graph.edge_weight)


def build(config: SGCConfig, in_channels: int, out_channels: int) -> SGC:
    return SGC(in_channels, out_channels, config)

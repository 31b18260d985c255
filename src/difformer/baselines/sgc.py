"""SGC (Wu et al. 2019): K propagations without non-linearity, then a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.baselines.propagated import PropagatedLinear
from difformer.baselines.registry.diffusions import SGCConfig
from difformer.core.graph import Graph

__all__ = ["SGC"]


class SGC(PropagatedLinear):
    """Simplified graph convolution, O(K e p) once and O(n p c) per epoch.

        y = S^K x W + b,   S = D^-1/2 (A + I) D^-1/2                                  (eq. 8)

    Left out: the paper trains by L-BFGS in one of its versions; here it is the loop's Adam.
    """

    title = "SGC"

    def __init__(self, in_channels: int, out_channels: int, config: SGCConfig) -> None:
        super().__init__(in_channels, out_channels)
        self.steps = config.steps

    def options(self) -> tuple[object, ...]:
        return (self.steps,)

    def propagate(self, x: Tensor, graph: Graph) -> Tensor:
        with torch.no_grad():
            for _ in range(self.steps):
                x = graph.propagate(x)
        return x

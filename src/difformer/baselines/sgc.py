"""SGC (Wu et al. 2019): K propagations without non-linearity, then a linear layer."""

from __future__ import annotations

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
    config: SGCConfig

    def propagate(self, x: Tensor, graph: Graph) -> Tensor:
        for _ in range(self.config.steps):
            x = graph.propagate(x)
        return x

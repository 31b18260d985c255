"""DGC-Euler (Wang et al. 2021): the graph heat equation by forward Euler, then a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.baselines.propagated import PropagatedLinear
from difformer.baselines.registry.diffusions import DGCConfig
from difformer.core.graph import Graph

__all__ = ["DGC"]


class DGC(PropagatedLinear):
    """Decoupled graph convolution, O(K e p) once and O(n p c) per epoch.

        y = [(1 − T/K) I + (T/K) S]^K x W + b,   S = D^-1/2 (A + I) D^-1/2           (eq. 12)

    As K grows the bracket tends to e^(−T L). Left out: the Runge-Kutta variant (DGC-RK) and the
    two augmented normalisations of its appendix.
    """

    title = "DGC-Euler"
    config: DGCConfig

    def propagate(self, x: Tensor, graph: Graph) -> Tensor:
        for _ in range(self.config.steps):
            x = torch.lerp(x, graph.propagate(x), self.config.time / self.config.steps)
        return x

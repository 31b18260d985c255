"""Linear models on features that are propagated once: the base of SGC and DGC."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from difformer.baselines.layers import GraphModel, dense_features
from difformer.core.graph import Graph
from difformer.nn.remembered import Remembered

__all__ = ["PropagatedLinear"]

# Shared by all models, so that several seeds on one graph propagate its features once.
_PROPAGATED: Remembered[Tensor] = Remembered()


class PropagatedLinear(GraphModel):
    """y = P(x, graph) W + b with a fixed P, computed once; only W and b are trained."""

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.config = config

    def propagate(self, x: Tensor, graph: Graph) -> Tensor:
        """P(x, graph) (n, in_channels)."""
        raise NotImplementedError

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        graph = graph.to(self.linear.weight)
        with torch.no_grad():
            made = _PROPAGATED.get(
                (x, graph.edge_index),
                self.config,
                lambda: self.propagate(dense_features(x), graph),
            )
        return self.linear(made)

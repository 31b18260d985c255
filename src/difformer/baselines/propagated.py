"""Linear models on features propagated once: what SGC and DGC have in common."""

from __future__ import annotations

from torch import Tensor, nn

from difformer.baselines.layers import GraphModel, dense_features
from difformer.core.graph import Graph
from difformer.nn.remembered import Remembered

__all__ = ["PropagatedLinear"]

# Shared by all models of a process: several seeds on one graph propagate its features once.
_PROPAGATED: Remembered[Tensor] = Remembered()


class PropagatedLinear(GraphModel):
    """y = P(x, graph) W + b with a fixed P, computed once; only W and b are trained."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def options(self) -> tuple[object, ...]:
        """What P depends on besides x and the graph."""
        raise NotImplementedError

    def propagate(self, x: Tensor, graph: Graph) -> Tensor:
        """P(x, graph) (n, in_channels)."""
        raise NotImplementedError

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        graph = graph.to(self.linear.weight)
        made = _PROPAGATED.get(
            (x, graph.edge_index),
            (type(self).__name__, *self.options()),
            lambda: self.propagate(dense_features(x), graph),
        )
        return self.linear(made)

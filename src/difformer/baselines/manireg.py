"""ManiReg (Belkin, Niyogi and Sindhwani 2006): a perceptron whose output is smooth on the graph."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from difformer.baselines.layers import GraphModel
from difformer.baselines.mlp import MLP
from difformer.baselines.registry.labels import ManiRegConfig
from difformer.core.graph import Graph
from difformer.data.batch import Prediction

__all__ = ["ManiReg"]


class ManiReg(GraphModel):
    """Manifold regularisation, O(n d² + e c).

        loss + λ / Σ w · Σ_{i→j} w_ij ‖s_i − s_j‖²,   s = softmax(f(x))                    (eq. 4)

    which is 2 λ tr(Sᵀ L S) / Σ w. Prediction needs no graph. Left out: the reproducing kernel of
    the paper, which the same MLP as in the other systems replaces; the penalty is on class
    probabilities, because logits can shrink it without becoming smooth.
    """

    title = "ManiReg"

    def __init__(self, in_channels: int, out_channels: int, config: ManiRegConfig) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        self.penalty = config.penalty
        self.classes = config.classes and out_channels > 1

    @property
    def needs_graph(self) -> bool:
        return self.training

    def run(self, x: Tensor, graph: Graph | None, batch: Tensor | None) -> Tensor | Prediction:
        output = self.mlp(x)
        if graph is None or not self.training:
            return output
        smooth = F.softmax(output, 1) if self.classes else output
        return Prediction(output, self.penalty * self.roughness(smooth, graph))

    @staticmethod
    def roughness(value: Tensor, graph: Graph) -> Tensor:
        """The mean of ‖v_i − v_j‖² over edges, weighted: 2 tr(Vᵀ L V) / Σ w."""
        source, target = graph.edge_index
        weight = graph.edge_weight
        each = (value[source] - value[target]).square().sum(1)
        return each.mean() if weight is None else (each * weight).sum() / weight.sum()

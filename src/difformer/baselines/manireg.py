"""ManiReg (Belkin, Niyogi and Sindhwani 2006): a perceptron whose output is smooth on the graph."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from difformer.baselines.configs import ManiRegConfig
from difformer.baselines.layers import Edges, GraphModel
from difformer.baselines.mlp import MLP
from difformer.data.batch import Prediction

__all__ = ["ManiReg", "build"]


class ManiReg(GraphModel):
    """Manifold regularisation, O(n d² + e c).

        loss + λ / Σ w · Σ_{i→j} w_ij ‖s_i − s_j‖²,   s = softmax(f(x))                    (eq. 4)

    which is 2 λ tr(Sᵀ L S) / Σ w. Prediction needs no graph. Left out: the reproducing kernel
    of the paper, in whose place stands the MLP that everything else here has; the penalty is on
    class probabilities, for logits can shrink it without becoming smooth.
    """

    title = "ManiReg"

    def __init__(self, in_channels: int, out_channels: int, config: ManiRegConfig) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        self.penalty = config.penalty
        self.classes = config.classes and out_channels > 1

    def forward(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor | Prediction:
        output = self.mlp(x)
        if not self.training:
            return output
        graph = self.graph(edge_index, edge_weight, x)
        smooth = F.softmax(output, 1) if self.classes else output
        return Prediction(output, self.penalty * self.roughness(smooth, graph))

    @staticmethod
    def roughness(value: Tensor, graph: object) -> Tensor:
        """The mean of ‖v_i − v_j‖² over edges, weighted: 2 tr(Vᵀ L V) / Σ w."""
        source, target = graph.edge_index  # type: ignore[attr-defined]
        weight: Tensor | None = graph.edge_weight  # type: ignore[attr-defined]
        each = (value[source] - value[target]).square().sum(1)
        return each.mean() if weight is None else (each * weight).sum() / weight.sum()


def build(config: ManiRegConfig, in_channels: int, out_channels: int) -> ManiReg:
    return ManiReg(in_channels, out_channels, config)

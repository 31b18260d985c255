"""GLCN (Jiang et al. 2019): learn the weights of the edges by features, and convolve on them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.baselines.convolutions import FilteredStack
from difformer.baselines.layers import EDGE_CHUNK, EdgeProduct, FeatureLinear, edge_softmax
from difformer.baselines.registry.learned import GLCNConfig
from difformer.core.graph import Graph
from difformer.core.tiled import tiles
from difformer.data.batch import Prediction
from difformer.nn.remembered import Remembered

__all__ = ["GLCN"]


class GLCN(FilteredStack):
    """Graph learning and convolution in one network, O(e d + n d²).

        S_ij = softmax over j of ReLU(a · |P x_i − P x_j|), along the edges of A        (eqs. 3, 5)
        H⁽ᵏ⁺¹⁾ = ReLU(Ŝ H⁽ᵏ⁾ W_k),   Ŝ = D_S^-1/2 (S + Sᵀ)/2 D_S^-1/2                    (eq. 7)
        loss + λ (Σ_ij S_ij ‖P x_i − P x_j‖² + γ ‖S‖² + β ‖S − A‖²) / n              (eqs. 6, 8)

    As the paper has it where a graph is given, S lives on its edges. P is the paper's
    dimension-reducing layer. Left out: eq. 3 over all pairs for data without a graph; give it a
    kNN graph instead.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    title = "GLCN"

    def __init__(self, in_channels: int, out_channels: int, config: GLCNConfig) -> None:
        super().__init__()
        self.project = FeatureLinear(
            in_channels, config.graph_channels, dropout=config.input_dropout, bias=False
        )
        self.score = nn.Parameter(torch.empty(config.graph_channels, 1))
        nn.init.xavier_uniform_(self.score)
        self.add_layers(in_channels, out_channels, config)
        self.config = config
        self._plan: Remembered[tuple[EdgeProduct, Tensor]] = Remembered()

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor | Prediction:
        plan, reverse = self._plan.get((graph.edge_index,), None, lambda: _prepare(graph))
        weight, penalty = self.learn(x, graph)
        adjacency = _normalise((weight + weight[reverse]) / 2, graph)
        h = self.filtered(x, lambda h: plan(adjacency, h))
        return Prediction(h, self.config.penalty * penalty) if self.training else h

    def learn(self, x: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """S on the edges (e,), each target's weights summing to one, and the graph loss."""
        source, target = graph.edge_index
        n = graph.num_nodes
        score, square = edge_gaps(self.project(x), self.score.squeeze(1), source, target)
        weight = edge_softmax(F.relu(score), target, n)
        given = torch.ones_like(weight) if graph.edge_weight is None else graph.edge_weight
        loss = (
            (weight * square).sum()
            + self.config.gamma * weight.square().sum()
            + self.config.beta * (weight - given).square().sum()
        )
        return weight, loss / n


def edge_gaps(p: Tensor, a: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """a · |p_i − p_j| and ‖p_i − p_j‖² of every edge: O(e d) time, O(e) memory."""
    return _EdgeGaps.apply(p, a, source, target)


class _EdgeGaps(torch.autograd.Function):
    """The backward pass recomputes the gaps, a chunk of edges at a time.

    With g = p_i − p_j, and u, w the gradients of the two:  ∂g = u a sign(g) + 2 w g,
    ∂p_i = Σ ∂g over the edges that leave i, less those that enter it,  ∂a = Σ u |g|.
    """

    @staticmethod
    def forward(
        ctx: Any, p: Tensor, a: Tensor, source: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(p, a, source, target)
        score, square = p.new_empty(len(source)), p.new_empty(len(source))
        for part in tiles(len(source), EDGE_CHUNK):
            gap = p[source[part]] - p[target[part]]
            square[part] = torch.linalg.vecdot(gap, gap)
            torch.mv(gap.abs_(), a, out=score[part])
        return score, square

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        p, a, source, target = ctx.saved_tensors
        dscore, dsquare = grads
        dp, da = torch.zeros_like(p), torch.zeros_like(a)
        for part in tiles(len(source), EDGE_CHUNK):
            gap = p[source[part]] - p[target[part]]
            dgap = gap.sign() * a
            dgap *= dscore[part, None]
            dgap.addcmul_(gap, dsquare[part, None], value=2)
            da.addmv_(gap.abs_().T, dscore[part])
            dp.index_add_(0, source[part], dgap)
            dp.index_add_(0, target[part], dgap, alpha=-1)
        return dp, da, None, None


def _normalise(weight: Tensor, graph: Graph) -> Tensor:
    source, target = graph.edge_index
    degree = weight.new_zeros(graph.num_nodes).index_add(0, target, weight)
    scale = degree.clamp_min(1e-12).rsqrt()
    return weight * scale[source] * scale[target]


def _prepare(graph: Graph) -> tuple[EdgeProduct, Tensor]:
    """The product over these edges, and the index of each edge's reverse."""
    source, target = graph.edge_index
    n = graph.num_nodes
    back = torch.searchsorted(target * n + source, source * n + target)
    back = back.clamp_max(source.numel() - 1)
    same = (source[back] == target) & (target[back] == source)
    # A one-way edge is its own reverse.
    return EdgeProduct(graph), torch.where(same, back, torch.arange(source.numel()).to(back))

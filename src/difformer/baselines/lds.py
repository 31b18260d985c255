"""LDS (Franceschi et al. 2019): learn a distribution over graphs by bilevel programming."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer

from difformer.baselines.layers import GraphModel
from difformer.baselines.registry.learned import LDSConfig
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.batch import Batch
from difformer.nn.remembered import Remembered

__all__ = ["LDS", "TwoLayers"]

Weights = dict[str, Tensor]
Matrix = Tensor | SparseMatrix


class TwoLayers(nn.Module):
    """Two graph convolutions on an adjacency that is a dense matrix or a prepared sparse one."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, outputs)
        self.dropout = dropout

    def forward(self, x: Matrix, adjacency: Matrix) -> Tensor:
        h = _product(adjacency, self._enter(x))
        h = F.dropout(F.relu(h), self.dropout, self.training)
        return _product(adjacency, self.second(h))

    def _enter(self, x: Matrix) -> Tensor:
        if isinstance(x, Tensor):
            return self.first(F.dropout(x, self.dropout, self.training))
        rate = self.dropout if self.training else 0.0
        return _product(x.dropout(rate), self.first.weight.T) + self.first.bias


class LDS(GraphModel):
    """Learning discrete structures: Bernoulli edges, two levels; O(n²) memory, O(n² d) an epoch.

        min_θ E_{A~Ber(θ)} L_outer(w_θ, A)   where   w_θ = argmin_w E_{A~Ber(θ)} L_inner(w, A)

    (eqs. 3, 4). An epoch takes `inner_steps` steps of the loop's optimizer on a sampled graph, then
    unrolls `unroll` plain gradient steps and moves θ down the hypergradient (algorithm 1, with the
    straight-through sample of eq. 9), projected on [0, 1]. θ starts at the given graph.

    The paper's outer loss takes labels from the validation set; here no method sees those, so
    `outer_share` of the training rows serve instead: the unrolled steps leave them out, the steps
    of the loop do not, or the weights would miss their labels. The prediction averages sampled
    graphs (eq. 10), the same ones at every call. Left out: restarting w for every outer problem,
    and unrolling through Adam rather than through plain gradient steps.

    Shapes: x (n, in_channels) -> (n, out_channels); theta (n, n).
    """

    title = "LDS"
    theta: Tensor

    def __init__(self, in_channels: int, out_channels: int, config: LDSConfig) -> None:
        super().__init__()
        if not 0 < config.outer_share < 1:
            raise ValueError(f"outer_share must lie in (0, 1), got {config.outer_share}")
        self.gcn = TwoLayers(in_channels, config.hidden_channels, out_channels, config.dropout)
        self.config = config
        self.register_buffer("theta", torch.zeros(0, 0))
        self._features: Remembered[Matrix] = Remembered()
        self._drawn: Remembered[list[SparseMatrix]] = Remembered()
        self._inner = self._outer = torch.zeros(0, dtype=torch.int64)

    def observe(self, batch: Batch) -> None:
        """Start θ at the graph and share the training rows between the two levels."""
        graph = self.graph(batch.graph, None, batch.x)
        assert graph is not None
        self.theta = adjacency_of(graph)
        order = torch.randperm(batch.rows.numel(), generator=torch.Generator().manual_seed(0))
        cut = max(1, int(batch.rows.numel() * (1 - self.config.outer_share)))
        rows = batch.rows[order.to(batch.rows.device)]
        self._inner, self._outer = rows[:cut], rows[cut:]

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        self.one_graph(batch)
        features = self.features(x)
        if self.theta.shape[0] != x.shape[0]:
            raise ValueError("observe(batch) must be called with these rows first")
        graphs = self._drawn.get((self.theta,), None, self._draw)
        return torch.logsumexp(
            torch.stack([F.log_softmax(self.gcn(features, graph), 1) for graph in graphs]), 0
        )

    def features(self, x: Tensor) -> Matrix:
        """x as the layers take it: a sparse one is prepared once."""
        sparse = x.layout != torch.strided
        return self._features.get((x,), None, lambda: SparseMatrix.from_csr(x)) if sparse else x

    def training_step(self, batch: Batch, objective: Any, optimizer: Optimizer) -> float:
        """Inner steps for the weights, then one hypergradient step for θ; the last inner loss."""
        x = self.features(batch.x)
        graph = normalised(draw_edges(self.theta), batch.x.shape[0])
        value = 0.0
        for _ in range(self.config.inner_steps):
            optimizer.zero_grad(set_to_none=True)
            loss = self._loss(None, x, graph, batch, objective, batch.rows)
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            optimizer.step()
            value = float(loss.detach())
        if self._outer.numel():
            slope = self.hypergradient(x, batch, objective)
            slope = slope.add_(slope.T.clone()).mul_(self.config.theta_lr / 2)
            self.theta = (self.theta - slope).clamp_(0.0, 1.0)
        return value

    def hypergradient(self, x: Matrix, batch: Batch, objective: Any) -> Tensor:
        """∂ L_outer(w after `unroll` gradient steps, A) / ∂θ, (n, n)."""
        theta = self.theta.detach().requires_grad_()
        weights: Weights = dict(self.gcn.named_parameters())
        for _ in range(self.config.unroll):
            inner = self._loss(weights, x, straight_through(theta), batch, objective, self._inner)
            steps = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {
                name: w - self.config.inner_lr * g
                for (name, w), g in zip(weights.items(), steps, strict=True)
            }
        outer = self._loss(weights, x, straight_through(theta), batch, objective, self._outer)
        return torch.autograd.grad(outer, theta)[0]

    def _draw(self) -> list[SparseMatrix]:
        draw = torch.Generator(device=self.theta.device).manual_seed(0)
        n = self.theta.shape[0]
        return [normalised(draw_edges(self.theta, draw), n) for _ in range(self.config.samples)]

    def _loss(
        self,
        weights: Weights | None,
        x: Matrix,
        adjacency: Matrix,
        batch: Batch,
        objective: Any,
        rows: Tensor,
    ) -> Tensor:
        if weights is None:
            output = self.gcn(x, adjacency)
        else:
            output = functional_call(self.gcn, weights, (x, adjacency))
        part = Batch(batch.x, batch.y, batch.graph, rows, weight=batch.weight)
        return objective.loss(output, part)


def draw_edges(theta: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """A ~ Ber(θ) as a (2, e) edge list, symmetric, without loops; θ is read above its diagonal."""
    row, col = torch.nonzero(theta.triu(1), as_tuple=True)  # most pairs have no chance at all
    chance = theta[row, col]
    kept = torch.rand(chance.shape, generator=draw, device=theta.device) < chance
    row, col = row[kept], col[kept]
    return torch.stack([torch.cat([row, col]), torch.cat([col, row])])


def straight_through(theta: Tensor) -> Tensor:
    """A dense sample, normalised as GCN does, whose gradient passes straight to θ (eq. 9)."""
    row, col = draw_edges(theta.detach())
    constant = -theta.detach()
    constant[row, col] += 1.0
    edges = theta + constant.fill_diagonal_(1.0)  # θ's own diagonal is zero
    scale = edges.sum(1).clamp_min(1e-6).rsqrt()
    return edges * scale.unsqueeze(1) * scale


def normalised(edges: Tensor, n: int) -> SparseMatrix:
    """D^-1/2 (A + I) D^-1/2 of an edge list."""
    return Graph.from_edges(edges, n, self_loops=True).adjacency


def adjacency_of(graph: Graph) -> Tensor:
    """The 0/1 adjacency (n, n), symmetric and without loops."""
    n = graph.num_nodes
    dense = torch.zeros(n, n, device=graph.edge_index.device)
    dense[graph.edge_index[1], graph.edge_index[0]] = 1.0
    dense = torch.maximum(dense, dense.T)
    return dense.fill_diagonal_(0.0)


class _Product(torch.autograd.Function):
    """Y = A X for a constant sparse A, or Aᵀ X; differentiable as often as one likes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: SparseMatrix, transposed: bool) -> Tensor:
        ctx.matrix, ctx.transposed = matrix, transposed
        return (matrix.transpose if transposed else matrix.csr) @ x.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return _Product.apply(grads[0], ctx.matrix, not ctx.transposed), None, None


def _product(matrix: Matrix, value: Tensor) -> Tensor:
    return matrix @ value if isinstance(matrix, Tensor) else _Product.apply(value, matrix, False)

"""Systems that learn the graph: GLCN and LDS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.data.dataset import Batch, Prediction
from difformer.nn.inputs import Remembered
from difformer.systems.layers import (
    EDGE_CHUNK,
    EdgeProduct,
    FeatureLinear,
    FilteredStack,
    GraphModel,
    edge_softmax,
)


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

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
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
    """a · |p_i − p_j| and ‖p_i − p_j‖² of every edge: O(e d) time, O(e + n d) memory.

    The gaps exist for a chunk of edges at a time: the backward pass makes them again.
    """

    def of_chunk(p: Tensor, a: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        gap = p.index_select(0, source) - p.index_select(0, target)
        return gap.abs() @ a, torch.linalg.vecdot(gap, gap)

    size = max(EDGE_CHUNK, len(p))  # the gradient of p is added up once per chunk
    chunks = zip(source.split(size), target.split(size), strict=True)
    made = [checkpoint(of_chunk, p, a, *ends, use_reentrant=False) for ends in chunks]
    score, square = zip(*made, strict=True)
    return torch.cat(score), torch.cat(square)


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


BLOCK = 2**22  # pairs whose slope is held at once


class DrawnGraph:
    """A drawn graph's Ã = D^-1/2 (A + I) D^-1/2, and how a loss depends on every pair of rows.

    Ã is held as a sparse matrix of its edges. A product Y = Ã X gives ∂L/∂Ã = ∂Y Xᵀ for all pairs,
    as two narrow factors, which the backward pass stores where `factors` is a list.
    """

    def __init__(self, matrix: SparseMatrix) -> None:
        self.matrix = matrix
        self.factors: list[tuple[Tensor, Tensor]] | None = None

    @classmethod
    def draw(
        cls, pairs: Tensor, chance: Tensor, n: int, draw: torch.Generator | None = None
    ) -> DrawnGraph:
        """A ~ Ber(θ): join each pair (2, k) of rows, both ways, with its probability (k,)."""
        kept = torch.rand(chance.shape, generator=draw, device=chance.device) < chance
        edges = pairs[:, kept]
        graph = Graph.from_edges(torch.cat([edges, edges.flip(0)], 1), n, self_loops=True)
        return cls(graph.adjacency.to(chance))

    def __call__(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.matrix, False, self)

    def slope(self) -> tuple[Tensor, Tensor, Tensor]:
        """P, Q (n, r) and c (n, 1) with ∂L/∂A_ij = P_i · Q_j + c_i, of all pairs i, j.

        With s = D^-1/2 1:  P Qᵀ is Σ ∂Y Xᵀ scaled by s on either side, and c_i what A_ij changes
        in row i's degree, −½ s_i³ ∂L/∂s_i.
        """
        left, right = (torch.cat(sides, 1) for sides in zip(*(self.factors or ()), strict=True))
        row, col, value = self.matrix.coo
        n = left.shape[0]
        s = torch.bincount(row, minlength=n).to(value).rsqrt()
        share = (left[row] * right[col]).sum(1)
        ds = left.new_zeros(n).index_add(0, row, share * s[col]).index_add(0, col, share * s[row])
        return left * s.unsqueeze(1), right * s.unsqueeze(1), (-ds * s**3 / 2).unsqueeze(1)


class _Product(torch.autograd.Function):
    """Y = A X for a constant sparse A, or Aᵀ X; differentiable any number of times."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, matrix: SparseMatrix, transposed: bool, graph: DrawnGraph | None
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.matrix, ctx.transposed, ctx.graph = matrix, transposed, graph
        return (matrix.transpose if transposed else matrix.csr) @ x.contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (x,), graph = ctx.saved_tensors, ctx.graph
        if graph is not None and graph.factors is not None:
            pair = (x, grads[0]) if ctx.transposed else (grads[0], x)
            graph.factors.append((pair[0].detach(), pair[1].detach()))
        return _Product.apply(grads[0], ctx.matrix, not ctx.transposed, graph), None, None, None


class Slope:
    """The gradient of the probabilities of all pairs, ½ left rightᵀ with narrow (n, r) factors.

    It is the sum over drawn graphs of (S + Sᵀ) / 2 with S_ij = P_i · Q_j + c_i.
    """

    def __init__(self, graphs: list[DrawnGraph]) -> None:
        p, q, c = zip(*(graph.slope() for graph in graphs), strict=True)
        shift = torch.stack(c).sum(0)
        one = torch.ones_like(shift)
        self.left = torch.cat([*p, *q, shift, one], 1)
        self.right = torch.cat([*q, *p, one, shift], 1)

    def at(self, row: Tensor, col: Tensor) -> Tensor:
        """The slope of the given pairs, O(pairs · r)."""
        parts = tiles(row.numel(), max(1, BLOCK // self.left.shape[1]))
        found = [(self.left[row[t]] * self.right[col[t]]).sum(1) / 2 for t in parts]
        return torch.cat(found) if found else self.left.new_zeros(0)

    def steepest(self, k: int) -> Tensor:
        """For each row the k pairs i < j whose probability should rise most, as keys i · n + j.

        O(n² r) time in blocks of rows, O(n k) memory.
        """
        n = self.left.shape[0]
        rows = torch.arange(n, device=self.left.device)
        found: list[Tensor] = []
        for part in tiles(n, max(1, BLOCK // n)):
            block = self.left[part] @ self.right.T
            block.scatter_(1, rows[part].unsqueeze(1), torch.inf)  # no row is paired with itself
            value, col = block.topk(min(k, n - 1), dim=1, largest=False)
            row = rows[part].unsqueeze(1).expand_as(col)
            found.append(pair_keys(row[value < 0], col[value < 0], n))
        return torch.cat(found).unique()


def pair_keys(a: Tensor, b: Tensor, n: int) -> Tensor:
    """One number for each pair of rows, whatever their order."""
    return torch.minimum(a, b) * n + torch.maximum(a, b)


class TwoLayers(nn.Module):
    """Two graph convolutions along a drawn graph."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, outputs)
        self.dropout = dropout

    def forward(self, x: Tensor | SparseMatrix, graph: DrawnGraph) -> Tensor:
        if isinstance(x, Tensor):
            h = self.first(F.dropout(x, self.dropout, self.training))
        else:
            dropped = x.dropout(self.dropout if self.training else 0.0)
            h = _Product.apply(self.first.weight.T, dropped, False, None) + self.first.bias
        return graph(self.second(F.dropout(F.relu(graph(h)), self.dropout, self.training)))


class LDS(GraphModel):
    """Learning discrete structures: Bernoulli edges, two levels; O(n² r) time, O(n k) memory.

        min_θ E_{A~Ber(θ)} L_outer(w_θ, A)   where   w_θ = argmin_w E_{A~Ber(θ)} L_inner(w, A)

    (eqs. 3, 4). An epoch takes `inner_steps` steps of the loop's optimizer on a drawn graph, then
    unrolls `unroll` plain gradient steps and moves θ down the hypergradient (algorithm 1, with the
    straight-through sample of eq. 9), projected on [0, 1]. θ starts at the given graph.

    The hypergradient of all pairs is a product of narrow factors and is never formed: each row
    proposes its `top_k` pairs that should rise most, and the pairs with the largest probabilities
    are kept, n · `top_k` beside as many as were given. With `top_k` = n none is left out.

    The paper's outer loss takes the labels of half of the validation rows, and the other half picks
    the epoch: `outer="validation"`. With "training" the validation labels are not used and
    `outer_share` of the training rows serve instead: the unrolled steps leave them out, the steps
    of the loop do not, so that the weights still learn from their labels. The prediction averages
    drawn graphs (eq. 10), the same ones at every call. Left out: restarting w for every outer
    problem, and unrolling through Adam rather than through plain gradient steps.

    Shapes: x (n, in_channels) -> (n, out_channels); pairs (2, k), theta (k,).
    """

    pairs: Tensor
    theta: Tensor

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.gcn = TwoLayers(in_channels, config.hidden_channels, out_channels, config.dropout)
        self.config = config
        self.register_buffer("pairs", torch.zeros(2, 0, dtype=torch.int64))
        self.register_buffer("theta", torch.zeros(0))
        self._features: Remembered[SparseMatrix] = Remembered()
        self._drawn: Remembered[list[DrawnGraph]] = Remembered()
        self._rows = 0
        self._inner = self._outer = torch.zeros(0, dtype=torch.int64)
        self._borrowed: Tensor | None = None

    @property
    def borrows(self) -> float:
        """The share of the validation rows whose labels it asks for."""
        return 0.5 if self.config.outer == "validation" else 0.0

    def borrow(self, rows: Tensor, labels: Tensor) -> None:
        """Use these validation rows for the outer loss, and all training rows for the inner."""
        self._inner = torch.cat([self._inner, self._outer])
        self._outer, self._borrowed = rows, labels

    def observe(self, batch: Batch) -> None:
        """Start θ at the graph and divide the training rows between the two levels."""
        graph = self.graph(batch.graph, None, batch.x)
        assert graph is not None
        n = self._rows = graph.num_nodes
        source, target = graph.edge_index
        key = pair_keys(source, target, n)[source != target].unique()
        room = min(key.numel() + n * self.config.top_k, n * (n - 1) // 2)
        self._keep(key, torch.ones(key.shape, device=key.device), room)
        order = torch.randperm(batch.rows.numel(), generator=torch.Generator().manual_seed(0))
        cut = max(1, int(batch.rows.numel() * (1 - self.config.outer_share)))
        rows = batch.rows[order.to(batch.rows.device)]
        self._inner, self._outer = rows[:cut], rows[cut:]

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        self.one_graph(batch)
        if self._rows != x.shape[0]:
            raise ValueError("observe(batch) must be called with these rows first")
        graphs = self._drawn.get((self.theta,), None, self._samples)
        outputs = [F.log_softmax(self.gcn(self.features(x), drawn), 1) for drawn in graphs]
        return torch.logsumexp(torch.stack(outputs), 0)

    def features(self, x: Tensor) -> Tensor | SparseMatrix:
        """x as the layers take it; a sparse x is prepared once."""
        sparse = x.layout != torch.strided
        return self._features.get((x,), None, lambda: SparseMatrix.from_csr(x)) if sparse else x

    def training_step(self, batch: Batch, objective: Any, optimizer: Optimizer) -> float:
        """Inner steps for the weights, then one hypergradient step for θ; the last inner loss."""
        x, graph, value = self.features(batch.x), self._draw(), 0.0
        for _ in range(self.config.inner_steps):
            optimizer.zero_grad(set_to_none=True)
            loss = objective.loss(self.gcn(x, graph), batch)
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            optimizer.step()
            value = float(loss.detach())
        if self._outer.numel():
            self.move(self.hypergradient(x, batch, objective))
        return value

    def hypergradient(self, x: Tensor | SparseMatrix, batch: Batch, objective: Any) -> Slope:
        """∂ L_outer(w after `unroll` gradient steps, A) / ∂θ of all pairs."""
        weights = dict(self.gcn.named_parameters())
        first, graphs = list(weights.values()), list[DrawnGraph]()

        def loss(weights: dict[str, Any], rows: Tensor, y: Tensor) -> Tensor:
            graphs.append(self._draw())
            output = functional_call(self.gcn, weights, (x, graphs[-1]))
            return objective.loss(output, replace(batch, y=y, rows=rows))

        for _ in range(self.config.unroll):
            inner = loss(weights, self._inner, batch.y)
            steps = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            moved = zip(weights.items(), steps, strict=True)
            weights: dict[str, Any] = {k: w - self.config.inner_lr * g for (k, w), g in moved}
        y = batch.y
        if self._borrowed is not None:
            y = y.clone()
            y[self._outer] = self._borrowed
        outer = loss(weights, self._outer, y)
        for graph in graphs:
            graph.factors = []
        torch.autograd.grad(outer, first)  # visits every product, which all depend on the weights
        return Slope(graphs)

    def move(self, slope: Slope) -> None:
        """θ ← θ − lr · slope on [0, 1], for the current pairs and those each row proposes."""
        n, old = self._rows, self.pairs[0] * self._rows + self.pairs[1]
        every = torch.cat([old, slope.steepest(self.config.top_k)])
        key, where = every.unique(return_inverse=True)
        chance = self.theta.new_zeros(key.shape).index_add(0, where[: old.numel()], self.theta)
        change = slope.at(key // n, key % n).to(chance)
        moved = (chance - self.config.theta_lr * change).clamp_(0.0, 1.0)
        self._keep(key, moved, self.theta.numel())

    def _keep(self, key: Tensor, chance: Tensor, room: int) -> None:
        """Keep the `room` largest probabilities, padded with pairs of probability zero."""
        kept = chance.topk(min(room, chance.numel())).indices.sort().values
        spare = room - kept.numel()
        key = F.pad(key[kept], (0, spare), value=1)
        self.pairs = torch.stack([key // self._rows, key % self._rows])
        self.theta = F.pad(chance[kept], (0, spare))

    def _draw(self, draw: torch.Generator | None = None) -> DrawnGraph:
        return DrawnGraph.draw(self.pairs, self.theta, self._rows, draw)

    def _samples(self) -> list[DrawnGraph]:
        draw = torch.Generator(device=self.theta.device).manual_seed(0)
        return [self._draw(draw) for _ in range(self.config.samples)]

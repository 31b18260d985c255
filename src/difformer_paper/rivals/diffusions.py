"""Systems that are smoothed along the graph: SGC, DGC, GraphHeat, GDC, GRAND, ManiReg."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.data.dataset import Batch, Prediction
from difformer.nn.inputs import Remembered
from difformer.systems.layers import (
    MLP,
    EdgeProduct,
    FeatureLinear,
    FilteredStack,
    GraphModel,
    edge_softmax,
)

BLOCK = 2**22  # entries of a diffused graph that are held at once
# Shared by all models, so that several seeds on one graph propagate or diffuse it once.
_PROPAGATED: Remembered[Tensor] = Remembered()
_DIFFUSED: Remembered[Graph] = Remembered()


class SGC(GraphModel):
    """Simplified graph convolution, O(K e p) once and O(n p c) per epoch.

        y = S^K x W + b,   S = D^-1/2 (A + I) D^-1/2                                  (eq. 8)

    S^K x is computed once; only W and b are trained. Left out: the paper trains by L-BFGS in one of
    its versions; here it is the loop's Adam.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)
        self.config = config

    def step(self, x: Tensor, graph: Graph) -> Tensor:
        """One of the K products."""
        return graph.propagate(x)

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        graph = graph.to(self.linear.weight)

        def propagate() -> Tensor:
            made = x if x.layout == torch.strided else x.to_dense()
            for _ in range(self.config.steps):
                made = self.step(made, graph)
            return made

        with torch.no_grad():
            made = _PROPAGATED.get((x, graph.edge_index), self.config, propagate)
        return self.linear(made)


class DGC(SGC):
    """Decoupled graph convolution, O(K e p) once and O(n p c) per epoch.

        y = [(1 − T/K) I + (T/K) S]^K x W + b,   S = D^-1/2 (A + I) D^-1/2           (eq. 12)

    As K grows the bracket tends to e^(−T L). Left out: the Runge-Kutta variant (DGC-RK) and the
    two augmented normalisations of its appendix.
    """

    def step(self, x: Tensor, graph: Graph) -> Tensor:
        return torch.lerp(x, graph.propagate(x), self.config.time / self.config.steps)


class GraphHeat(FilteredStack):
    """Heat-kernel convolutions, O(r e d) per layer for a series of r terms.

        H⁽ᵏ⁺¹⁾ = ReLU(e^(−s L) H⁽ᵏ⁾ W_k),   L = I − D^-1/2 A D^-1/2                (eqs. 6, 10)

    The kernel is never formed: its Taylor series is applied, to machine precision. Left out: the
    paper's threshold that makes the kernel sparse, which the series does not need, and a step
    s for each feature.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.add_layers(in_channels, out_channels, config)
        self.scale = config.scale

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        graph = graph.to(self.first.linear.weight)
        return self.filtered(x, lambda h: heat_kernel(graph, h, self.scale))


def heat_kernel(graph: Graph, value: Tensor, scale: float, tolerance: float = 1e-7) -> Tensor:
    """e^(−s (I − Ã)) V = e^−s Σ_r s^r/r! Ã^r V; ‖Ã‖ ≤ 1, so the remainder is below tolerance."""
    term = value * math.exp(-scale)
    total, weight, left, r = term, math.exp(-scale), 1.0 - math.exp(-scale), 0
    while left > tolerance and r < 1000:
        r += 1
        term = graph.propagate(term) * (scale / r)
        total = total + term
        weight *= scale / r
        left -= weight
    return total


class GDC(GraphModel):
    """Graph diffusion convolution: O(n e) once, then a GCN with k edges per row.

        S = Σ_r θ_r T^r,   θ_r = α (1 − α)^r (ppr) or e^−t t^r / r! (heat)        (eqs. 1, 2, 4)

    The k largest entries of each column are kept and columns are scaled to sum to one. The sums
    are exact to single precision, but never formed whole: PyTorch Geometric inverts an n × n
    matrix. Left out: the approximate push algorithm.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        # Importing PyTorch Geometric takes long, and only this system of the file needs it.
        from difformer.systems.gnn import GCN

        super().__init__()
        self.gcn = GCN(in_channels, out_channels, config)
        self.config = config

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        config = self.config
        diffused = _DIFFUSED.get(
            (graph.edge_index, graph.edge_weight),
            (config.diffusion, config.alpha, config.time, config.top_k),
            lambda: diffuse(graph, config),
        )
        return self.gcn(x, diffused)


def diffuse(graph: Graph, config: Any) -> Graph:
    """The diffused graph; its weights are ready to use and are not normalised again.

    S is symmetric, so a block of its columns is S times a block of the identity: O(r e n) time for
    r products, and the k largest entries of each column are all that is kept of it, O(n k) memory.
    """
    n, k = graph.num_nodes, min(config.top_k, graph.num_nodes)
    found: list[tuple[Tensor, Tensor]] = []
    for part in tiles(n, max(1, BLOCK // n)):
        unit = torch.zeros(n, part.stop - part.start)
        unit[part] = torch.eye(part.stop - part.start)
        full = (
            heat_kernel(graph, unit, config.time)
            if config.diffusion == "heat"
            else page_rank(graph, unit, config.alpha)
        )
        weight, source = full.topk(k, dim=0)
        weight = weight.clamp_min_(0.0)
        found.append((source.T, (weight / weight.sum(0)).T))
    source, weight = (torch.cat(parts).flatten() for parts in zip(*found, strict=True))
    target = torch.arange(n).repeat_interleave(k)
    kept = weight > 0
    order = torch.argsort(target[kept] * n + source[kept])
    source, target, weight = (t[kept][order] for t in (source, target, weight))
    matrix = SparseMatrix.from_sorted(target, source, weight, (n, n))
    return Graph(weight, n, matrix)


def page_rank(graph: Graph, value: Tensor, alpha: float, tolerance: float = 1e-7) -> Tensor:
    """α (I − (1 − α) Ã)⁻¹ V by Chebyshev's iteration; the spectrum of Ã lies in [−1, 1].

    Its error falls by q = (1 − √(1 − δ²)) / δ with δ = 1 − α in each of O(1 / √α) products, that of
    the power series by δ.
    """
    delta = 1.0 - alpha
    rate = (1.0 - math.sqrt(1.0 - delta**2)) / delta
    rho, residual = delta, value * alpha
    step = residual.clone()
    total = torch.zeros_like(value)
    for _ in range(math.ceil(math.log(2.0 / tolerance) / -math.log(rate))):
        total += step
        residual += graph.propagate(step).mul_(delta).sub_(step)
        before, rho = rho, 1.0 / (2.0 / delta - rho)
        step.mul_(rho * before).add_(residual, alpha=2.0 * rho / delta)
    return total


FIXED_STEP = ("euler", "midpoint", "rk4")


class GRAND(GraphModel):
    """Graph neural diffusion along the edges, O(steps · e · d).

        ∂X/∂t = α (A(X) − I) X + β X(0) + γ C,   X(0) = φ(x),   y = ψ(X(T))           (eqs. 7, 9)
        A_ij = mean over heads of softmax over j of (W_Q X_i · W_K X_j) / √d           (eq. 10)

    GRAND-l keeps A(X(0)) throughout; GRAND takes A(X(t)). Both have γ = 0; GRAND++ has
    C_i = X_i(0) − mean of X(0) over labelled rows, where i is labelled, else 0 (its eq. 9).
    `learned_scale` learns α, between 0 and 1, and β, as the released code of GRAND does, and γ,
    from α = 1/2 and β = γ = 0; without it the equations are those of the papers: α = 1, β = 0, and
    γ = 1 for GRAND++.
    The solver is torchdiffeq's. Left out: rewiring, and the adjoint method (the graphs here fit).

    Added: `source_dropout`. A row that is its own source is recognised by it, and a loss of such
    rows teaches nothing about rows without one. So a training step leaves out this share of the
    sources, and only the rows that were left out pass a gradient on; a prediction has all sources.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        d = config.hidden_channels
        self.encode = FeatureLinear(
            in_channels, d, dropout=config.input_dropout, scaled=config.scale_features
        )
        self.query = nn.Linear(d, config.attention_channels * config.num_heads)
        self.key = nn.Linear(d, config.attention_channels * config.num_heads)
        self.decode = nn.Linear(d, out_channels)
        if config.learned_scale:
            self.speed = nn.Parameter(torch.tensor(0.0))
            self.strength = nn.Parameter(torch.tensor(0.0))
            self.trust = nn.Parameter(torch.tensor(0.0)) if config.source else None
        self.config = config
        self._plan: Remembered[EdgeProduct] = Remembered()
        self._labelled: Tensor | None = None
        # The sources of a training step, if not all labelled rows.
        self._known: Tensor | None = None

    def observe(self, batch: Batch) -> None:
        """Remember which rows are labelled: they are the sources of GRAND++."""
        super().observe(batch)
        self._labelled = batch.rows

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        if self.config.source:
            self.one_graph(batch)
        z = F.dropout(self.encode(x), self.config.dropout, self.training)
        z = self.diffuse(z, graph)
        output = self.decode(F.dropout(F.relu(z), self.config.dropout, self.training))
        if self._known is None:
            return output
        return output.index_copy(0, self._known, output.detach()[self._known])

    def diffuse(self, z: Tensor, graph: Graph) -> Tensor:
        """X(T) (n, d) from X(0)."""
        from torchdiffeq import odeint

        config = self.config
        plan = self._plan.get((graph.edge_index,), None, lambda: EdgeProduct(graph))
        first = None if config.nonlinear else self.attention(z, graph)
        speed, source = self.scales(z)

        def field(t: Tensor, state: Tensor) -> Tensor:
            weight = self.attention(state, graph) if first is None else first
            return speed * (plan(weight, state) - state) + source

        options = {"step_size": config.step} if config.method in FIXED_STEP else None
        times = torch.tensor([0.0, config.time], dtype=z.dtype, device=z.device)
        tolerances = {"rtol": config.tolerance, "atol": config.tolerance}
        path = odeint(field, z, times, method=config.method, options=options, **tolerances)
        assert isinstance(path, Tensor)
        return path[-1]

    def scales(self, z: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """α and the sources (n, d) of the equation, from X(0)."""
        if not self.config.learned_scale:
            return 1.0, self.source(z) if self.config.source else 0.0
        source = self.strength * z
        if self.trust is not None:
            source = source + self.trust * self.source(z)
        return torch.sigmoid(self.speed), source

    def attention(self, z: Tensor, graph: Graph) -> Tensor:
        """A on the edges (e,): each row's weights sum to one."""
        source, target = graph.edge_index
        heads, width = self.config.num_heads, self.config.attention_channels
        q = self.query(z).view(-1, heads, width)
        k = self.key(z).view(-1, heads, width)
        score = (q[target] * k[source]).sum(-1) / math.sqrt(width)
        return edge_softmax(score, target, graph.num_nodes).mean(1)

    def source(self, z: Tensor) -> Tensor:
        """C (n, d) of GRAND++."""
        if self._labelled is None:
            raise ValueError("observe(batch) must be called first: GRAND++ has labelled sources")
        labelled = z[self._labelled]
        source = labelled - labelled.mean(0)
        self._known = None
        if self.training and self.config.source_dropout:
            kept = torch.rand(len(labelled), device=z.device) >= self.config.source_dropout
            self._known = self._labelled[kept]
            source = source * kept.unsqueeze(1)
        return torch.zeros_like(z).index_copy(0, self._labelled, source)


class ManiReg(GraphModel):
    """Manifold regularisation, O(n d² + e c).

        loss + λ / Σ w · Σ_{i→j} w_ij ‖s_i − s_j‖²,   s = softmax(f(x))                    (eq. 4)

    which is 2 λ tr(Sᵀ L S) / Σ w. Prediction needs no graph. Left out: the reproducing kernel of
    the paper, which the same MLP as in the other systems replaces; the penalty is on class
    probabilities, because logits can shrink it without becoming smooth.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        self.penalty = config.penalty
        self.classes = config.classes and out_channels > 1

    def train(self, mode: bool = True) -> ManiReg:
        self.needs_graph = mode
        return super().train(mode)

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

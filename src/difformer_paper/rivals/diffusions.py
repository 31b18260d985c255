"""Systems that diffuse features: SGC, DGC, GraphHeat, GRAND."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.data.dataset import Batch
from difformer.nn.inputs import Remembered
from difformer.systems.layers import (
    EdgeProduct,
    FeatureLinear,
    FilteredStack,
    GraphModel,
    dense_features,
    edge_softmax,
)
from difformer_paper.systems import DGCConfig, GRANDConfig, HeatConfig, SGCConfig

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


class GraphHeat(FilteredStack):
    """Heat-kernel convolutions, O(r e d) per layer for a series of r terms.

        H⁽ᵏ⁺¹⁾ = ReLU(e^(−s L) H⁽ᵏ⁾ W_k),   L = I − D^-1/2 A D^-1/2                (eqs. 6, 10)

    The kernel is never formed: its Taylor series is applied, to machine precision. Left out: the
    paper's threshold that makes the kernel sparse, which the series does not need, and a step
    s for each feature.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    title = "GraphHeat"

    def __init__(self, in_channels: int, out_channels: int, config: HeatConfig) -> None:
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

    title = "GRAND"

    def __init__(self, in_channels: int, out_channels: int, config: GRANDConfig) -> None:
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

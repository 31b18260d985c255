"""GRAND-l, GRAND (Chamberlain et al. 2021), GRAND++ (Thorpe et al. 2022): diffusion by solver."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.baselines.layers import EdgeProduct, FeatureLinear, GraphModel, edge_softmax
from difformer.baselines.registry.diffusions import GRANDConfig
from difformer.core.graph import Graph
from difformer.data.batch import Batch
from difformer.nn.remembered import Remembered

__all__ = ["GRAND"]

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

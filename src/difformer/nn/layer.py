"""One diffusion step as a trainable layer (appendix E of the paper)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from difformer.core.context import Context
from difformer.core.diffusivity import Diffusivity, make_diffusivity
from difformer.core.dropout import dropout
from difformer.core.euler import StepWeights, euler_step
from difformer.core.fused import Affine
from difformer.core.graph import Graph
from difformer.core.segments import Segments
from difformer.core.sparse import SparseMatrix
from difformer.nn.config import DIFFormerConfig

__all__ = ["ACTIVATIONS", "DiffusionLayer"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}

_HALF = (torch.bfloat16, torch.float16)


class DiffusionLayer(nn.Module):
    """Move every row towards a weighted average of all rows, and of its neighbours in a graph.

        P  = mean over heads of Ŝ(Q, K) V  [+ Ã V]                       (eqs. 24, 27, 28, 29)
        U  = (1 − τ) Z + τ ((1 − β) P + β Z⁽⁰⁾)                          (eq. 30; β the source)
        Z' = σ'(LayerNorm(U − mean over rows of U))                      (the mean only if `center`)

    Cost: O(n d² h) for separable diffusivities, O(n² d h) otherwise, and O(e d) for the graph.
    The parts (`project`, `average`, `mix`, `finish`) are public so that a frozen, chunked or
    distributed layer is the same arithmetic with another way to merge contexts.
    """

    def __init__(self, width: int, config: DIFFormerConfig) -> None:
        super().__init__()
        self.width, self.num_heads, self.config = width, config.num_heads, config
        self.diffusivity: Diffusivity = make_diffusivity(config.kernel, config.qk_norm)
        heads = width * config.num_heads
        learn_qk = config.learn_qk and self.diffusivity.compares
        self.query = nn.Linear(width, heads) if learn_qk else None
        self.key = nn.Linear(width, heads) if learn_qk else None
        self.value = nn.Linear(width, heads) if config.use_weight else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.norm == "all" else None
        self.activation = ACTIVATIONS[config.activation]() if config.activation else None
        self.dropout = config.dropout if config.dropout_at == "layers" else 0.0
        tau = min(config.tau, 1 - 1e-4)  # a sigmoid never reaches one
        self.initial_logit = math.log(tau / (1 - tau))
        self.logit_tau = (
            nn.Parameter(torch.tensor(self.initial_logit)) if config.learn_tau else None
        )

    @property
    def tau(self) -> Tensor | float:
        """The step size: fixed, or learned within (0, 1)."""
        return self.config.tau if self.logit_tau is None else torch.sigmoid(self.logit_tau)

    def forward(
        self,
        z: Tensor,
        first: Tensor | None = None,
        graph: Graph | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """z, first (n, d) -> (n, d); `first` is Z⁽⁰⁾, wanted where there is a source."""
        if segments is None:
            mixed = self.step_states(z, graph, first)
        else:
            by_row = (t.expand(self.num_heads, -1, -1).transpose(0, 1) for t in self.project(z))
            mixed = self.step(z, segments.map(self._average_apart, *by_row), graph, first)
        if self.config.center:
            mixed = mixed - self.row_mean(mixed, segments)
        return self.finish(mixed)

    def project(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (h, n, d), or (1, n, d) where they are the states."""
        return self._heads(self.query, z), self._heads(self.key, z), self._heads(self.value, z)

    def mean_value(self, z: Tensor) -> Tensor:
        """The values averaged over heads (n, d): what a graph carries from row to row."""
        if self.value is None:
            return z
        if self.num_heads == 1:
            return self.value(z)
        # The mean of linear maps is a linear map: one product, not one a head.
        weight = self.value.weight.view(self.num_heads, self.width, self.width).mean(0)
        return nn.functional.linear(z, weight, self.value.bias.view(self.num_heads, -1).mean(0))

    def step_states(self, z: Tensor, graph: Graph | None, first: Tensor | None) -> Tensor:
        """U straight from the states: every row meets every other."""
        if z.dtype in _HALF or torch.is_autocast_enabled(z.device.type):
            return self.step(z, self.average(*self.project(z)), graph, first)
        maps = (_affine(self.query), _affine(self.key), _affine(self.value))
        if torch.compiler.is_compiling() or self.logit_tau is not None:
            pairs = self.diffusivity.of_states(z, *maps, self.num_heads)
            return self.step(z, pairs, graph, first)
        weights, rest = self._step_parts(z, graph, first)
        return self.diffusivity.step_of_states(weights, z, maps, self.num_heads, *rest)

    def average(
        self, q: Tensor, k: Tensor, v: Tensor, merge: Callable[[Context], Context] | None = None
    ) -> Tensor:
        """Σ_j Ŝ_ij v_j averaged over heads (..., n, d); `merge` adds other rows' contexts."""
        dtype = v.dtype
        if q.dtype in _HALF or v.dtype in _HALF:
            # Sums over all rows lose their small terms in half precision.
            with torch.autocast(q.device.type, enabled=False):
                return self.average(q.float(), k.float(), v.float(), merge).to(dtype)
        context = self.diffusivity.summarise(k, v, q)
        if merge is not None:
            context = merge(context)
        return self.diffusivity.apply(q, context).mean(-3)

    def step(self, z: Tensor, pairs: Tensor, graph: Graph | None, first: Tensor | None) -> Tensor:
        """U from the states, their all-pair average and the graph they lie on."""
        traced = torch.compiler.is_compiling() or torch.is_autocast_enabled(z.device.type)
        if traced or z.dtype in _HALF or self.logit_tau is not None:
            neighbours = None if graph is None else graph.propagate(self.mean_value(z))
            return self.mix(z, pairs, neighbours, first)
        weights, rest = self._step_parts(z, graph, first)
        return euler_step(weights, z, pairs, *rest)

    def mix(
        self, z: Tensor, pairs: Tensor, neighbours: Tensor | None, first: Tensor | None
    ) -> Tensor:
        """U: the Euler step from z towards the averages, all (n, d)."""
        if neighbours is not None:
            w = self.config.graph_weight
            pairs = pairs + neighbours if w is None else torch.lerp(pairs, neighbours, w)
        if self.config.source and first is not None:
            pairs = torch.lerp(pairs, first, self.config.source)
        return z + self.tau * (pairs - z)

    def _step_parts(
        self, z: Tensor, graph: Graph | None, first: Tensor | None
    ) -> tuple[StepWeights, tuple[Tensor | None, SparseMatrix | None, Tensor | None]]:
        """What the step weighs by what: the source, the adjacency and the value it carries."""
        weights = self._step_weights(graph is not None, first is not None)
        value = None if graph is None or self.value is None else self.mean_value(z)
        source = first if weights.source else None
        return weights, (source, graph.adjacency if graph else None, value)

    def _step_weights(self, graph: bool, source: bool) -> StepWeights:
        """The coefficients of `mix` where the step size is a number."""
        tau, w = self.config.tau, self.config.graph_weight
        beta = self.config.source if source else 0.0
        moved = tau * (1 - beta)
        pairs, neighbours = (1.0, 0.0) if not graph else (1.0, 1.0) if w is None else (1 - w, w)
        return StepWeights(1 - tau, moved * pairs, moved * neighbours, tau * beta)

    def row_mean(self, u: Tensor, segments: Segments | None = None) -> Tensor:
        """The mean over rows, or over the rows of each graph apart; broadcasts with u (n, d)."""
        if segments is None:
            return u.mean(0, keepdim=True)
        return segments.map(lambda t: t.mean(1, keepdim=True).expand_as(t), u)

    def finish(self, u: Tensor) -> Tensor:
        """Norm, activation, dropout."""
        if self.norm is not None:
            u = self.norm(u)
        if self.activation is not None:
            u = self.activation(u)
        return dropout(u, self.dropout, self.training)

    def _heads(self, linear: nn.Linear | None, z: Tensor) -> Tensor:
        if linear is None:
            return z.unsqueeze(0)
        return linear(z).view(z.shape[0], self.num_heads, self.width).transpose(0, 1)

    def _average_apart(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`average` for (g, s, h, d): graphs, rows, heads."""
        return self.average(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))


def _affine(linear: nn.Linear | None) -> Affine:
    return None if linear is None else (linear.weight, linear.bias)

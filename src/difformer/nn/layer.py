"""One diffusion step as a trainable layer (appendix E of the paper), and its linear maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.context import Context
from difformer.core.diffusivity import Diffusivity, Sharp, make_diffusivity
from difformer.core.draws import dropout, generator
from difformer.core.euler import (
    Affine,
    AverageOfStates,
    StepWeights,
    average_of_states,
    euler_step,
)
from difformer.core.tiled import HALF
from difformer.nn.config import DIFFormerConfig
from difformer.nn.exchange import Exchange

M = TypeVar("M", bound=nn.Module)


class Linear(nn.Linear):
    """`torch.nn.Linear`; the same seed gives the same bits as in torch."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator())
        if self.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            nn.init.uniform_(self.bias, -bound, bound, generator=generator())


class IdentityLinear(Linear):
    """A linear layer that starts as the identity, once per head: x -> (x, ..., x)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        for head in self.weight.data.split(self.in_features):
            nn.init.eye_(head)


class _SteadyLinear(Linear):
    """A linear layer whose rows have the same bits at any position in a block.

    The weights are transposed, contiguous and padded to a multiple of eight columns, and the bias
    is added separately: a fused bias, or another alignment, sends the last rows of a tile through a
    kernel that rounds in another order.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight = F.pad(self.weight.T, (0, -self.out_features % 8)).contiguous()
        out = (input @ weight)[:, : self.out_features]
        return out if self.bias is None else out + self.bias  # pyright: ignore[reportUnnecessaryComparison]


def make_steady(model: M) -> M:
    """The model, every linear layer of it giving the same bits wherever a row is in its block."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.__class__ = _SteadyLinear
    return model


def make_activation(name: str | None) -> nn.Module | None:
    """The module for a name in `config.ACTIVATIONS`; None for None."""
    known = {"relu": nn.ReLU, "elu": nn.ELU, "gelu": nn.GELU, "tanh": nn.Tanh}
    return None if name is None else known[name]()


WHOLE = Exchange()


class Tuning(nn.Module):
    """A learned factor e^a of the sharpness and a learned shift of the offsets, both scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(()))
        self.shift = nn.Parameter(torch.zeros(()))

    def reset_parameters(self) -> None:
        """Reset to the calibrated values."""
        nn.init.zeros_(self.log_scale)
        nn.init.zeros_(self.shift)


class DiffusionLayer(nn.Module):
    """Move every row towards a weighted average of all rows, and of its neighbours in a graph.

        P  = mean over heads of Ŝ(Q, K) V  [+ Ã V]                       (eqs. 24, 27, 28, 29)
        U  = (1 − τ) Z [W_S] + τ ((1 − β) P + β Z⁽⁰⁾)                    (eq. 30; β the source)
        Z' = [Z +] σ'(LayerNorm(U − mean over rows of U))                (the mean only if `center`)

    Cost: O(n d² h) for separable diffusivities, O(n² d h) otherwise, and O(e d) for the graph.
    The step is project → summarise → merge → apply → mix → finish, for every caller. How rows
    interact is an `Exchange`: frozen, chunked and distributed runs have their own.
    """

    def __init__(
        self,
        width: int,
        config: DIFFormerConfig,
        compared: int | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """`compared` is the width of what rows are compared by; None for the states.

        `tuning` is the Tuning that all layers share, if they do.
        """
        super().__init__()
        self.width, self.num_heads, self.config = width, config.num_heads, config
        self.kernel: Diffusivity = make_diffusivity(
            config.kernel,
            config.qk_norm,
            sharpness=config.sharpness,
            reach=config.reach,
            exact_rows=config.exact_rows,
        )
        self.tuning = Tuning() if config.learn_reach == "layer" else None
        self._shared = (tuning,)  # a tuple: its parameters are the model's, not this layer's
        heads = width * config.num_heads
        learn_qk = config.learn_qk and self.kernel.compares
        self.query = self._qk_map(compared or width) if learn_qk else None
        self.key = self._qk_map(compared or width) if learn_qk else None
        self.own = Linear(width, width) if config.self_weight else None
        self.value = Linear(width, heads) if config.use_weight else None
        self.norm = nn.LayerNorm(width, eps=config.norm_eps) if config.norm == "all" else None
        self.activation = make_activation(config.activation)
        self.dropout = config.dropout if config.dropout_at == "layers" else 0.0
        tau = min(config.tau, 1 - 1e-4)  # a sigmoid never reaches one
        self.initial_logit = math.log(tau / (1 - tau))
        self.logit_tau = (
            nn.Parameter(torch.tensor(self.initial_logit)) if config.learn_tau else None
        )

    def _qk_map(self, compared: int) -> Linear:
        if self.config.qk_init == "identity":
            return IdentityLinear(compared, compared * self.num_heads)
        return Linear(compared, self.width * self.num_heads)

    @property
    def diffusivity(self) -> Diffusivity:
        """The diffusivity, with its learned values if there are any."""
        tuning = self.tuning or self._shared[0]
        if tuning is None:
            return self.kernel
        assert isinstance(self.kernel, Sharp)
        return self.kernel.tuned(tuning.log_scale.exp(), tuning.shift)

    @property
    def tau(self) -> Tensor | float:
        """The step size: fixed, or learned within (0, 1)."""
        return self.config.tau if self.logit_tau is None else torch.sigmoid(self.logit_tau)

    def forward(
        self,
        z: Tensor,
        first: Tensor | None = None,
        exchange: Exchange = WHOLE,
        compared: Tensor | None = None,
    ) -> Tensor:
        """z (n, d) -> (n, d).

        Args:
            first: (n, d), Z⁽⁰⁾; needed if there is a source.
            exchange: how rows interact; by default all are in memory, without a graph.
            compared: (n, p), what queries and keys are made from; None for the states. If none are
                learned it is already prepared (`Diffusivity.prepare`), once for all layers.
        """
        mixed = self.move(z, first, exchange, compared)
        if self.config.center:
            mixed = mixed - exchange.mean(mixed)
        return self.finish(mixed, z)

    def move(
        self, z: Tensor, first: Tensor | None, exchange: Exchange, compared: Tensor | None = None
    ) -> Tensor:
        """U (n, d), before the mean over rows is subtracted."""
        if exchange.fixed is not None:
            value = self.mean_value(z)  # all heads share the weights
            return self._step(z, exchange.fixed.average(value), first, exchange, value)
        carried = None if exchange.graph is None else self.mean_value(z)
        whole = exchange.here and compared is None and _exact(z)
        closed = exchange.closed_form(self.diffusivity, self.num_heads) if whole else None
        if closed is None:
            return self.meet(z, *self.project(z, compared, exchange), first, exchange, carried)
        linears = (self.query, self.key, self.value)
        maps = [None if m is None else (m.weight, m.bias) for m in linears]
        return self._step(z, closed, first, exchange, carried, maps)

    def meet(
        self,
        z: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        first: Tensor | None = None,
        exchange: Exchange = WHOLE,
        carried: Tensor | None = None,
    ) -> Tensor:
        """U from queries, keys and values: summarise, merge, apply, mix.

        `carried` (n, d) is what the graph carries: by default the mean of v over heads.
        """
        pairs = self.average(q, k, v, exchange)
        if carried is None:
            carried = v[0] if v.shape[0] == 1 else v.mean(0)
        return self._step(z, pairs, first, exchange, carried)

    def project(
        self, z: Tensor, compared: Tensor | None = None, exchange: Exchange = WHOLE
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (h, n, ·), or (1, n, ·) where nothing is learned."""
        q, k = self.unprepared(z, compared)
        if self.diffusivity.prepares and (compared is None or self.query is not None):
            if q.dtype in HALF:  # offsets need the precision
                q, k = q.float(), k.float()
            anchors = exchange.landmarks
            landmarks = None if anchors is None else self._heads(self.key, anchors)
            q, k = exchange.prepare(self.diffusivity, q, k, landmarks)
        return q, k, self._heads(self.value, z)

    def unprepared(self, z: Tensor, compared: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys before the diffusivity prepares them."""
        source = z if compared is None else compared
        q = self._heads(self.query, source)
        return q, q if self.query is None else self._heads(self.key, source)

    def summarise(
        self, z: Tensor, compared: Tensor | None = None, exchange: Exchange = WHOLE
    ) -> Context:
        """The context of some rows: what others need to know about them."""
        q, k, v = self.project(z, compared, exchange)
        return self.diffusivity.summarise(k, v, q)

    def mean_value(self, z: Tensor) -> Tensor:
        """The values averaged over heads (n, d): what a graph carries from row to row."""
        if self.value is None:
            return z
        if self.num_heads == 1:
            return self.value(z)
        # The mean of linear maps is a linear map: one product, not one per head.
        weight = self.value.weight.view(self.num_heads, self.width, self.width).mean(0)
        return nn.functional.linear(z, weight, self.value.bias.view(self.num_heads, -1).mean(0))

    def average(self, q: Tensor, k: Tensor, v: Tensor, exchange: Exchange = WHOLE) -> Tensor:
        """Σ_j Ŝ_ij v_j averaged over heads (n, d)."""
        if q.dtype not in HALF and v.dtype not in HALF:
            return exchange.average(self.diffusivity, q, k, v)
        # Sums over all rows lose their small terms in half precision.
        with torch.autocast(q.device.type, enabled=False):
            pairs = exchange.average(self.diffusivity, q.float(), k.float(), v.float())
        return pairs.to(v.dtype)

    def mix(
        self, z: Tensor, pairs: Tensor, neighbours: Tensor | None, first: Tensor | None
    ) -> Tensor:
        """U: the Euler step from z towards the averages, all (n, d)."""
        if neighbours is not None:
            w = self.config.graph_weight
            pairs = pairs + neighbours if w is None else torch.lerp(pairs, neighbours, w)
        if self.config.source and first is not None:
            pairs = torch.lerp(pairs, first, self.config.source)
        if self.own is not None:
            return (1 - self.tau) * self.own(z) + self.tau * pairs
        return z + self.tau * (pairs - z)

    def _step(
        self,
        z: Tensor,
        average: Tensor | AverageOfStates,
        first: Tensor | None,
        exchange: Exchange,
        carried: Tensor | None,
        maps: Sequence[Affine] = (),
    ) -> Tensor:
        """`mix`, in place if possible, with the graph's product and with an average of states."""
        if self.logit_tau is not None or not exchange.here or not _exact(z):
            pairs = average
            if not isinstance(pairs, Tensor):
                pairs = average_of_states(z, pairs, maps)
            return self.mix(z, pairs, exchange.neighbours(carried), first)
        tau, w = self.config.tau, self.config.graph_weight
        beta = 0.0 if first is None else self.config.source
        pull, near = (1.0, 1.0) if w is None else (1 - w, w)
        if exchange.graph is None:
            pull, near = 1.0, 0.0
        moved = tau * (1 - beta)
        state = 0.0 if self.own is not None else 1 - tau
        weights = StepWeights(state, moved * pull, moved * near, tau * beta)
        out = euler_step(
            weights,
            z,
            average,
            maps,
            first=first if weights.source else None,
            adjacency=exchange.adjacency,
            value=None if carried is z or exchange.graph is None else carried,
        )
        out = exchange.add_beyond(out, carried, weights.neighbours)
        return out if self.own is None else torch.add(out, self.own(z), alpha=1 - tau)

    def finish(self, u: Tensor, z: Tensor) -> Tensor:
        """Norm, activation, dropout; added to the state z it came from if `residual`."""
        if self.norm is not None:
            u = self.norm(u)
        if self.activation is not None:
            u = self.activation(u)
        u = dropout(u, self.dropout, self.training)
        return z + u if self.config.residual else u

    def _heads(self, linear: nn.Linear | None, z: Tensor) -> Tensor:
        if linear is None:
            return z.unsqueeze(0)
        each = linear.out_features // self.num_heads
        return linear(z).view(z.shape[0], self.num_heads, each).transpose(0, 1)


def _exact(z: Tensor) -> bool:
    """Whether fused steps are allowed: full precision, and no tracing."""
    half = z.dtype in HALF or torch.is_autocast_enabled(z.device.type)
    return not half and not torch.compiler.is_compiling()

"""Diffusivities: how strongly every pair of instances pulls on each other.

One protocol, six forms. Letters: q (..., h, n, d) queries, k (..., h, m, d) keys,
v (..., h, m, e) values; ω_ij ≥ 0 is the unnormalised diffusivity of a pair, and

    Ŝ_ij = ω_ij / Σ_l ω_il                                                     (eq. 6)

The energy side is f(z²), a function of a squared distance, and its integral δ(z²) (eq. 4).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Mean, Moments, Pairs, ScaledMoments
from difformer.core.euler import StepWeights, averaged_step, euler_step
from difformer.core.fused import Affine, RowAverage
from difformer.core.gram import WholeTensorAverage
from difformer.core.pairs import pull_and_mass, total_over_pairs
from difformer.core.sparse import SparseMatrix
from difformer.core.tied import tied_sigmoid_average
from difformer.core.tiled import DENSE_SCORES, SIGMOID_FLOOR, average_by_rows, sigmoid_average

__all__ = [
    "KERNELS",
    "Constant",
    "Diffusivity",
    "Gaussian",
    "Identity",
    "QKNorm",
    "Sigmoid",
    "Simple",
    "Softmax",
    "WholeTensorSimple",
    "make_diffusivity",
]

QKNorm = Literal["row", "tensor"]

# Every pair keeps at least this much diffusivity, so that a query all keys oppose still has a
# positive mass and a defined average (the uniform one).
FLOOR = 1e-6


class Diffusivity(ABC):
    """A pairwise diffusivity. A new one needs `omega`; the rest follows, in bounded memory.

    `f` and `delta` are wanted only for energies; `reach` is the largest z² on which f ≥ 0.
    """

    name: ClassVar[str] = "custom"
    separable: ClassVar[bool] = False
    """Whether the context is a few sums, whatever the number of rows."""
    local: ClassVar[bool] = False
    """Whether a row's average is its own value, so that a new row needs no context."""
    compares: ClassVar[bool] = True
    """Whether queries and keys matter at all; where not, a layer learns none."""
    reach: ClassVar[float] = math.inf

    @abstractmethod
    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        """The unnormalised ω (..., n, m), dense: the reference the fast paths are tested by."""

    def f(self, z2: Tensor) -> Tensor:
        """The diffusivity as a function of the squared distance of two states: δ'(z²)."""
        raise NotImplementedError(f"the {self.name} diffusivity states no energy: it has no f")

    def delta(self, z2: Tensor) -> Tensor:
        """The penalty δ of a squared distance in the energy of eq. 4: δ(0) = const, δ' = f."""
        raise NotImplementedError(f"the {self.name} diffusivity states no energy: it has no delta")

    def pair_penalty(self, z: Tensor) -> Tensor:
        """Σ_ij δ(‖z_i − z_j‖²) over all ordered pairs of z (n, d): a scalar, O(n² d) in tiles."""
        return total_over_pairs(self.delta, z)

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j ω_ij z_j (n, d) and Σ_j ω_ij (n, 1), ω_ij = f(‖z_i − z_j‖²): O(n² d) in tiles."""
        return pull_and_mass(self.f, z)

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Ŝ (..., n, m), dense, each row summing to one."""
        omega = self.omega(q, k)
        return omega / omega.sum(-1, keepdim=True)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        """The rows `rows` of weights(q, k), without the others."""
        return self.weights(q[..., rows, :], k)

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Context:
        """The additive context of some rows' keys and values (q: their queries, where wanted)."""
        return Pairs(k, v)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        """Σ_j Ŝ_ij v_j (..., n, e) from the context of all rows j."""
        assert isinstance(context, Pairs)
        return average_by_rows(self.weights, q, context.key, context.value)

    def of_states(self, z: Tensor, query: Affine, key: Affine, value: Affine, heads: int) -> Tensor:
        """The average over all rows where q, k, v are affine maps of the states, mean over heads.

        z (n, d) -> (n, d). The plain form; a diffusivity may know one that keeps less.
        """

        def split(affine: Affine) -> Tensor:
            if affine is None:
                return z.unsqueeze(0)
            return F.linear(z, *affine).view(z.shape[0], heads, -1).transpose(0, 1)

        q, k, v = split(query), split(key), split(value)
        return self.apply(q, self.summarise(k, v, q)).mean(-3)

    def step_of_states(
        self,
        weights: StepWeights,
        z: Tensor,
        maps: tuple[Affine, Affine, Affine],
        heads: int,
        first: Tensor | None = None,
        adjacency: SparseMatrix | None = None,
        value: Tensor | None = None,
    ) -> Tensor:
        """The Euler step of `euler_step` with P = of_states(z, *maps, heads)."""
        pairs = self.of_states(z, *maps, heads)
        return euler_step(weights, z, pairs, first, adjacency, value)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """summarise, then apply: one full-batch average."""
        return self.apply(q, self.summarise(k, v, q))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Simple(Diffusivity):
    """DIFFormer-s: ω = 1 + ε + q̃·k̃ with unit rows q̃, k̃ (eq. 8); time and context O(n d²).

    On unit vectors q̃·k̃ = 1 − z²/2, so f(z²) = 2 + ε − z²/2, δ(z²) = (2 + ε) z² − z⁴/4 on [0, 4].
    """

    name = "simple"
    separable = True
    reach = 4.0

    def f(self, z2: Tensor) -> Tensor:
        return 2.0 + FLOOR - z2 / 2

    def delta(self, z2: Tensor) -> Tensor:
        return (2.0 + FLOOR) * z2 - z2.square() / 4

    def pair_penalty(self, z: Tensor) -> Tensor:
        # Σ_ij z⁴_ij = 2 n Σ‖z‖⁴ + 2 (Σ‖z‖²)² − 8 (Σ‖z‖² z)·(Σz) + 4 ‖ZᵀZ‖²: O(n d²).
        square = z.square().sum(-1)  # (n,)
        cross = (square @ z) @ z.sum(0)
        fourth = 2 * z.shape[0] * square.square().sum() + 2 * square.sum().square() - 8 * cross
        fourth = fourth + 4 * (z.T @ z).square().sum()
        return (2.0 + FLOOR) * _sum_of_squares(z) - fourth / 4

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        # ω_ij = (f(0) − ‖z_i‖²/2) − ‖z_j‖²/2 + z_i·z_j separates: O(n d²).
        square = z.square().sum(-1, keepdim=True)
        own = self.f(square)
        pull = own * z.sum(0) - (square * z).sum(0) / 2 + z @ (z.T @ z)
        mass = own * z.shape[0] - square.sum() / 2 + z @ z.sum(0, keepdim=True).T
        return pull, mass

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return 1.0 + FLOOR + _unit(q) @ _unit(k).mT

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Moments:
        key = _unit(k)
        return Moments(
            value_sum=v.sum(-2, keepdim=True),
            key_value=key.mT @ v,
            key_sum=key.sum(-2).unsqueeze(-1),
            count=_count(k),
        )

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Moments)
        return self._average(_unit(q), context)

    def of_states(self, z: Tensor, query: Affine, key: Affine, value: Affine, heads: int) -> Tensor:
        # Tracing cannot follow a loop over chunks.
        if torch.compiler.is_compiling():
            return super().of_states(z, query, key, value, heads)
        return self.step_of_states(StepWeights(0.0, 1.0, 0.0, 0.0), z, (query, key, value), heads)

    def step_of_states(
        self,
        weights: StepWeights,
        z: Tensor,
        maps: tuple[Affine, Affine, Affine],
        heads: int,
        first: Tensor | None = None,
        adjacency: SparseMatrix | None = None,
        value: Tensor | None = None,
    ) -> Tensor:
        flat = [t for affine in maps for t in (affine or (None, None))]
        average = self._fused(heads, 1.0 + FLOOR)
        return averaged_step(weights, z, average, flat, first, adjacency, value)

    _fused: ClassVar[type[RowAverage] | type[WholeTensorAverage]] = RowAverage

    def _average(self, query: Tensor, c: Moments) -> Tensor:
        numerator = c.value_sum * (1.0 + FLOOR) + query @ c.key_value
        mass = c.count * (1.0 + FLOOR) + query @ c.key_sum
        return numerator / mass


class WholeTensorSimple(Simple):
    """Simple with q and k divided by the norm of their whole tensor, as the released code does.

    The weights are then all but uniform and depend on the number of rows. The norm runs over
    heads, rows and width (the last three dimensions).
    """

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return 1.0 + FLOOR + (q / _square(q).sqrt()) @ (k / _square(k).sqrt()).mT

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        # The norm is that of all queries, not of the chosen ones.
        query = (q / _square(q).sqrt())[..., rows, :]
        omega = 1.0 + FLOOR + query @ (k / _square(k).sqrt()).mT
        return omega / omega.sum(-1, keepdim=True)

    _fused = WholeTensorAverage

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> ScaledMoments:
        if q is None:
            raise ValueError("q must be given: the whole-tensor norm depends on every query")
        return ScaledMoments(
            value_sum=v.sum(-2, keepdim=True),
            key_value=k.mT @ v,
            key_sum=k.sum(-2).unsqueeze(-1),
            count=_count(k),
            key_square=_square(k),
            query_square=_square(q),
        )

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, ScaledMoments)
        return self._average(q / context.query_square.sqrt() / context.key_square.sqrt(), context)


class Sigmoid(Diffusivity):
    """DIFFormer-a: ω = σ(q·k) (eq. 10); exact in tiles, O(n m d) time and O(n + m) memory.

    On unit vectors f(z²) = 1 / (1 + e^{z²/2 − 1}), δ(z²) = z² − 2 log(e^{z²/2 − 1} + 1).
    """

    name = "sigmoid"

    def f(self, z2: Tensor) -> Tensor:
        return torch.sigmoid(1.0 - z2 / 2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2 - 2.0 * F.softplus(z2 / 2 - 1.0)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.sigmoid(q @ k.mT) + SIGMOID_FLOOR

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        return sigmoid_average(q, context.key, context.value)

    def of_states(self, z: Tensor, query: Affine, key: Affine, value: Affine, heads: int) -> Tensor:
        plain = torch.compiler.is_compiling() or z.is_cuda or z.shape[0] ** 2 <= DENSE_SCORES
        if plain or query is not None or key is not None:
            return super().of_states(z, query, key, value, heads)
        # All heads share the weights, so the mean of their values is enough.
        if value is None:
            return tied_sigmoid_average(z, z)
        weight, bias = (t.view(heads, -1, *t.shape[1:]).mean(0) for t in value)
        return tied_sigmoid_average(z, F.linear(z, weight, bias))


class Identity(Diffusivity):
    """Ablation: every instance keeps to itself, Ŝ = I; the model is then an MLP. δ = 0."""

    name = "identity"
    local = True
    compares = False

    def f(self, z2: Tensor) -> Tensor:
        return torch.zeros_like(z2)

    def delta(self, z2: Tensor) -> Tensor:
        return torch.zeros_like(z2)

    def pair_penalty(self, z: Tensor) -> Tensor:
        return z.new_zeros(())

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z, torch.ones_like(z[:, :1])  # every row pulls on itself alone

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        _same_rows(q, k)
        eye = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device)
        return eye.expand(*q.shape[:-2], -1, -1)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        _same_rows(q, k)
        own = torch.arange(k.shape[-2], device=q.device)[rows]
        return F.one_hot(own, k.shape[-2]).to(q.dtype).expand(*q.shape[:-2], -1, -1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        _same_rows(q, context.value)
        return context.value


class Constant(Diffusivity):
    """Ablation: every pair alike, Ŝ = 1/m; O(n d). f = 1, δ(z²) = z²."""

    name = "constant"
    separable = True
    compares = False

    def f(self, z2: Tensor) -> Tensor:
        return torch.ones_like(z2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2

    def pair_penalty(self, z: Tensor) -> Tensor:
        return _sum_of_squares(z)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return q.new_ones(*q.shape[:-1], k.shape[-2])

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Mean:
        return Mean(value_sum=v.sum(-2, keepdim=True), count=_count(k))

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Mean)
        mean = context.value_sum / context.count
        return mean.expand(*mean.shape[:-2], q.shape[-2], mean.shape[-1])


class Softmax(Diffusivity):
    """Ablation "full attention": ω = exp(q·k / √d); PyTorch's own fused attention, O(n + m) memory.

    On unit vectors of width d, tied: f(z²) = exp(1 − z²/2) at unit temperature,
    δ(z²) = 2 e (1 − e^{−z²/2}).
    """

    name = "softmax"

    def f(self, z2: Tensor) -> Tensor:
        return torch.exp(1.0 - z2 / 2)

    def delta(self, z2: Tensor) -> Tensor:
        return -2.0 * math.e * torch.expm1(-z2 / 2)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.exp(q @ k.mT / math.sqrt(q.shape[-1]))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        # Shifted by the row's maximum: the plain quotient overflows where exp does.
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        return _softmax_average(q, context.key, context.value, 1.0 / math.sqrt(q.shape[-1]))


class Gaussian(Diffusivity):
    """Ablation "kernel": ω = exp(−‖q − k‖² / (2 s²)) with bandwidth s; O(n + m) memory.

    f(z²) = exp(−z² / (2 s²)), δ(z²) = 2 s² (1 − e^{−z² / (2 s²)}).
    """

    name = "gaussian"

    def __init__(self, bandwidth: float = 1.0) -> None:
        if not bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, got {bandwidth!r}")
        self.bandwidth = bandwidth

    def f(self, z2: Tensor) -> Tensor:
        return torch.exp(-z2 / (2 * self.bandwidth**2))

    def delta(self, z2: Tensor) -> Tensor:
        s2 = self.bandwidth**2
        return -2 * s2 * torch.expm1(-z2 / (2 * s2))

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        z2 = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2) - 2 * (q @ k.mT)
        return self.f(z2.clamp_min(0))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.softmax(self._scores(q, k), dim=-1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        # The query's own norm cancels in the quotient; the key's rides along as one more column.
        assert isinstance(context, Pairs)
        k = context.key
        q = torch.cat([q, q.new_ones(*q.shape[:-1], 1)], dim=-1)
        k = torch.cat([k, -k.square().sum(-1, keepdim=True) / 2], dim=-1)
        return _softmax_average(q, k, context.value, 1.0 / self.bandwidth**2)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT - k.square().sum(-1).unsqueeze(-2) / 2) / self.bandwidth**2

    def __repr__(self) -> str:
        return f"Gaussian(bandwidth={self.bandwidth})"


KERNELS: dict[str, type[Diffusivity]] = {
    cls.name: cls for cls in (Simple, Sigmoid, Identity, Constant, Softmax, Gaussian)
}
"""Every diffusivity by name."""


def make_diffusivity(kernel: str | Diffusivity, qk_norm: str = "row") -> Diffusivity:
    """The diffusivity a name stands for; an object is returned as it is."""
    if qk_norm not in ("row", "tensor"):
        raise ValueError(f"qk_norm must be 'row' or 'tensor', got {qk_norm!r}")
    if isinstance(kernel, Diffusivity):
        return kernel
    if kernel not in KERNELS:
        raise ValueError(
            f"kernel must be one of {', '.join(KERNELS)}, or a Diffusivity; got {kernel!r}"
        )
    if qk_norm == "tensor" and KERNELS[kernel] is Simple:
        return WholeTensorSimple()
    return KERNELS[kernel]()


def _unit(x: Tensor) -> Tensor:
    """Rows scaled to unit length; a zero row stays zero."""
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


def _square(x: Tensor) -> Tensor:
    """Squared norm over heads, rows and width, kept positive for an all-zero tensor."""
    return x.square().sum((-3, -2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)


def _sum_of_squares(z: Tensor) -> Tensor:
    """Σ_ij ‖z_i − z_j‖² = 2 n Σ‖z‖² − 2 ‖Σz‖²."""
    return 2 * z.shape[0] * z.square().sum() - 2 * z.sum(0).square().sum()


def _count(k: Tensor) -> Tensor:
    return k.new_full((), k.shape[-2])


def _same_rows(q: Tensor, k: Tensor) -> None:
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"the identity diffusivity needs as many queries as keys, got {q.shape[-2]} "
            f"and {k.shape[-2]}"
        )


def _softmax_average(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    width = max(q.shape[-1], v.shape[-1])
    # Equal widths let PyTorch take its fused kernel, which keeps no n × m matrix.
    q, k = F.pad(q, (0, width - q.shape[-1])), F.pad(k, (0, width - k.shape[-1]))
    value = F.pad(v, (0, width - v.shape[-1]))
    lead = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], value.shape[:-2])
    q4, k4, v4 = (
        t.expand(*lead, *t.shape[-2:]).flatten(0, -4)
        if len(lead) > 1
        else t.expand(*lead, *t.shape[-2:]).unsqueeze(0)
        for t in (q, k, value)
    )
    out = F.scaled_dot_product_attention(q4, k4, v4, scale=scale)
    return out.reshape(*lead, *out.shape[-2:])[..., : v.shape[-1]]

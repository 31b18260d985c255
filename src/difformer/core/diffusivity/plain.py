"""Diffusivities of one formula, and their base class: a pairwise ω, and all that follows from it.

Identity, constant, simple (DIFFormer-s), sigmoid (DIFFormer-a), and softmax.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Mean, Moments, Pairs, ScaledMoments, row_count
from difformer.core.euler import AverageOfStates
from difformer.core.fixed import FixedAverage
from difformer.core.fused import RowAverage, WholeTensorAverage
from difformer.core.rows import squared_distances, total_of_squares, unit_rows
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import SIGMOID_FLOOR, by_rows, chunk_rows, sigmoid_average, tiles

# Every pair of the simple diffusivity keeps at least this much, so that a query all keys oppose
# still has a positive mass and a defined average (the uniform one).
FLOOR = 1e-6


def check_positive(**knobs: float | None) -> None:
    """Raise if one that is given is not above zero."""
    for name, value in knobs.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")


class Diffusivity(ABC):
    """A pairwise diffusivity. A subclass needs only `omega`; the rest follows, in bounded memory.

    `f` and `delta` are needed only for energies; `domain` is the largest z² on which f ≥ 0.
    """

    name: ClassVar[str] = "custom"
    local: ClassVar[bool] = False
    """Whether a row's average is its own value, so that a new row needs no context."""
    compares: ClassVar[bool] = True
    """Whether the weights depend on queries and keys; if not, a layer learns none."""
    prepares: bool = False
    """Whether rows must pass through `prepare` before they are compared."""
    anchored: ClassVar[bool] = False
    """Whether rows are compared with landmarks, which `prepare` takes as `known`."""
    knobs: ClassVar[tuple[str, ...]] = ()
    """Which of a model's options its constructor takes."""
    domain: ClassVar[float] = math.inf
    of_row: Tensor | None = None
    """A number per row (n, 1), such as an offset, which `f` and `delta` take the `join` of."""

    @abstractmethod
    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        """The unnormalised ω (..., n, m), dense: what the fast paths are tested against."""

    def f(self, z2: Tensor) -> Tensor:
        """The diffusivity as a function of the squared distance of two states: δ'(z²)."""
        raise NotImplementedError(f"the {self.name} diffusivity has no f, so it has no energy")

    def delta(self, z2: Tensor) -> Tensor:
        """The penalty δ of a squared distance in the energy of eq. 4: δ(0) = const, δ' = f."""
        raise NotImplementedError(f"the {self.name} diffusivity has no delta, so it has no energy")

    def omega_at(self, z: Tensor, rows: slice) -> Tensor:
        """ω_ij (rows, n) of a range of rows of states z (n, d) with all of them."""
        return self.f(squared_distances(z[rows], z), *self._joined(z, rows))

    def delta_at(self, z: Tensor, rows: slice) -> Tensor:
        """δ_ij (rows, n) of a range of rows of states z (n, d) with all of them."""
        return self.delta(squared_distances(z[rows], z), *self._joined(z, rows))

    def _joined(self, z: Tensor, rows: slice) -> tuple[Tensor, ...]:
        row = None if self.of_row is None else self.of_row.to(z)
        return () if row is None else (self.join(row[rows], row.mT),)

    def join(self, a: Tensor, b: Tensor) -> Tensor:
        """What the numbers of two rows are to their pair; symmetric."""
        raise NotImplementedError

    def pair_penalty(self, z: Tensor) -> Tensor:
        """Σ_ij δ_ij over all ordered pairs of z (n, d): a scalar, O(n² d) in tiles."""
        total = z.new_zeros(())
        for rows in tiles(z.shape[0], chunk_rows(z.shape[0])):
            total = total + self.delta_at(z, rows).sum()
        return total

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j ω_ij z_j (n, d) and Σ_j ω_ij (n, 1), O(n² d) in tiles."""
        pull, mass = torch.empty_like(z), torch.empty_like(z[:, :1])
        for rows in tiles(z.shape[0], chunk_rows(z.shape[0])):
            omega = self.omega_at(z, rows)
            pull[rows], mass[rows] = omega @ z, omega.sum(-1, keepdim=True)
        return pull, mass

    def at(self, states: Tensor) -> Diffusivity:
        """This diffusivity with the numbers that these states' rows (n, d) have, for their energy.

        They stay as they are while the states move.
        """
        here = copy.copy(self)
        here.of_row = self.calibrated(states)
        return here

    def calibrated(self, states: Tensor) -> Tensor | None:
        """`of_row` of some states; None for a diffusivity without."""
        return None

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys as all other methods take them, (..., n, ·), of the same n rows.

        What depends on other rows is computed from `known` (..., m, d) if given, else from k. The
        base class returns the rows unchanged.
        """
        return q, k

    def fixed(
        self, rows: Tensor | SparseMatrix, known: Tensor | None = None
    ) -> FixedAverage | None:
        """Ŝ of rows (n, d) that are both queries and keys, computed once; None if not supported."""
        return None

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Ŝ (..., n, m), dense, each row summing to one."""
        omega = self.omega(q, k)
        return omega / omega.sum(-1, keepdim=True)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        """The rows `rows` of weights(q, k), without the others."""
        return self.weights(q[..., rows, :], k)

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Context:
        """The additive context of some rows' keys and values; some classes need the queries q."""
        return Pairs(k, v)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        """Σ_j Ŝ_ij v_j (..., n, e) from the context of all rows j."""
        assert isinstance(context, Pairs)
        k, v = context.key, context.value
        return by_rows(lambda q, k, v: self.weights(q, k) @ v, q, k.shape[-2], k, v)

    def closed_form(self, heads: int) -> AverageOfStates | None:
        """The average over all rows where q, k and v are affine maps of the states, or None.

        It has hand-written gradients and needs less memory than `summarise` and `apply`.
        """
        return None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """summarise, then apply: one full-batch average."""
        return self.apply(q, self.summarise(k, v, q))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Identity(Diffusivity):
    """Ablation: no row influences another, Ŝ = I; the model is then an MLP. δ = 0."""

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
        return z, torch.ones_like(z[:, :1])  # every row influences only itself

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.weights_of(slice(None), q, k)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        _check_rows(q, k)
        own = torch.arange(k.shape[-2], device=q.device)[rows]
        return F.one_hot(own, k.shape[-2]).to(q.dtype).expand(*q.shape[:-2], -1, -1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        _check_rows(q, context.value)
        return context.value


def _check_rows(q: Tensor, k: Tensor) -> None:
    if q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"the identity diffusivity needs as many queries as keys, got {q.shape[-2]} "
            f"and {k.shape[-2]}"
        )


class Constant(Diffusivity):
    """Ablation: the same weight for every pair, Ŝ = 1/m; O(n d). f = 1, δ(z²) = z²."""

    name = "constant"
    compares = False

    def f(self, z2: Tensor) -> Tensor:
        return torch.ones_like(z2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2

    def pair_penalty(self, z: Tensor) -> Tensor:
        return total_of_squares(z)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return q.new_ones(*q.shape[:-1], k.shape[-2])

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Mean:
        return Mean(value_sum=v.sum(-2, keepdim=True), count=row_count(k))

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Mean)
        mean = context.value_sum / context.count
        return mean.expand(*mean.shape[:-2], q.shape[-2], mean.shape[-1])


class Sigmoid(Diffusivity):
    """DIFFormer-a: ω = σ(q·k) (eq. 10); exact in tiles, O(n m d) time and O(n + m) memory.

    On unit vectors f(z²) = 1 / (1 + e^{z²/2 − 1}), δ(z²) = z² − 2 log(e^{z²/2 − 1} + 1).
    """

    name = "sigmoid"

    def f(self, z2: Tensor) -> Tensor:
        return torch.sigmoid(1.0 - z2 / 2)

    def delta(self, z2: Tensor) -> Tensor:
        return z2 - 2.0 * F.softplus(z2 / 2 - 1.0)

    def factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rows whose products are the scores: ω_ij = σ(a_i·b_j)."""
        return q, k

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        a, b = self.factors(q, k)
        return torch.sigmoid(a @ b.mT) + SIGMOID_FLOOR

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        return sigmoid_average(*self.factors(q, context.key), context.value)


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
        return softmax_average(q, context.key, context.value, 1.0 / math.sqrt(q.shape[-1]))


def softmax_average(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Σ_j softmax_j(scale q_i·k_j) v_j (..., n, e), in O(n + m) memory."""
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


class Simple(Diffusivity):
    """DIFFormer-s: ω = 1 + ε + q̃·k̃ with unit rows q̃, k̃ (eq. 8); time and context O(n d²).

    On unit vectors q̃·k̃ = 1 − z²/2, so f(z²) = 2 + ε − z²/2, δ(z²) = (2 + ε) z² − z⁴/4 on [0, 4].
    """

    name = "simple"
    domain = 4.0

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
        return (2.0 + FLOOR) * total_of_squares(z) - fourth / 4

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        # ω_ij = (f(0) − ‖z_i‖²/2) − ‖z_j‖²/2 + z_i·z_j separates: O(n d²).
        square = z.square().sum(-1, keepdim=True)
        own = self.f(square)
        pull = own * z.sum(0) - (square * z).sum(0) / 2 + z @ (z.T @ z)
        mass = own * z.shape[0] - square.sum() / 2 + z @ z.sum(0, keepdim=True).T
        return pull, mass

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return 1.0 + FLOOR + unit_rows(q) @ unit_rows(k).mT

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Moments:
        return Moments(**_moments(unit_rows(k), v))

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Moments)
        return _average(unit_rows(q), context)

    def closed_form(self, heads: int) -> AverageOfStates:
        return RowAverage(heads, 1.0 + FLOOR)


def _moments(key: Tensor, value: Tensor) -> dict[str, Tensor]:
    return {
        "value_sum": value.sum(-2, keepdim=True),
        "key_value": key.mT @ value,
        "key_sum": key.sum(-2).unsqueeze(-1),
        "count": row_count(key),
    }


def _average(query: Tensor, c: Moments) -> Tensor:
    mass = c.count * (1.0 + FLOOR) + query @ c.key_sum
    return (c.value_sum * (1.0 + FLOOR) + query @ c.key_value) / mass


class WholeTensorSimple(Simple):
    """Simple with q and k divided by the norm of their whole tensor, as the released code does.

    The weights are then all but uniform and depend on the number of rows. The norm runs over
    heads, rows and width (the last three dimensions).
    """

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return 1.0 + FLOOR + (q / _square(q).sqrt()) @ (k / _square(k).sqrt()).mT

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        # The norm is that of all queries, not of the chosen ones.
        some = (q / _square(q).sqrt())[..., rows, :] @ (k / _square(k).sqrt()).mT
        return (1.0 + FLOOR + some) / (1.0 + FLOOR + some).sum(-1, keepdim=True)

    def closed_form(self, heads: int) -> AverageOfStates:
        return WholeTensorAverage(heads, 1.0 + FLOOR)

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> ScaledMoments:
        if q is None:
            raise ValueError("q must be given: the whole-tensor norm depends on every query")
        return ScaledMoments(**_moments(k, v), key_square=_square(k), query_square=_square(q))

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, ScaledMoments)
        return _average(q / context.query_square.sqrt() / context.key_square.sqrt(), context)


def _square(x: Tensor) -> Tensor:
    """Squared norm over heads, rows and width, kept positive for an all-zero tensor."""
    return x.square().sum((-3, -2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)

"""The simple diffusivity of DIFFormer-s, which separates into sums over rows."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.core.context import Context, Moments, ScaledMoments, row_count
from difformer.core.diffusivity.base import Diffusivity
from difformer.core.euler import AverageOfStates
from difformer.core.fused import RowAverage
from difformer.core.gram import WholeTensorAverage
from difformer.core.rows import total_of_squares, unit_rows

# Every pair keeps at least this much diffusivity, so that a query all keys oppose still has a
# positive mass and a defined average (the uniform one).
FLOOR = 1e-6


class Simple(Diffusivity):
    """DIFFormer-s: ω = 1 + ε + q̃·k̃ with unit rows q̃, k̃ (eq. 8); time and context O(n d²).

    On unit vectors q̃·k̃ = 1 − z²/2, so f(z²) = 2 + ε − z²/2, δ(z²) = (2 + ε) z² − z⁴/4 on [0, 4].
    """

    name = "simple"
    separable = True
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
        key = unit_rows(k)
        return Moments(
            value_sum=v.sum(-2, keepdim=True),
            key_value=key.mT @ v,
            key_sum=key.sum(-2).unsqueeze(-1),
            count=row_count(k),
        )

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Moments)
        return self._average(unit_rows(q), context)

    def closed_form(self, heads: int) -> AverageOfStates:
        return RowAverage(heads, 1.0 + FLOOR)

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
        return self._omega_of(slice(None), q, k)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        omega = self._omega_of(rows, q, k)
        return omega / omega.sum(-1, keepdim=True)

    def _omega_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        # The norm is that of all queries, not of the chosen ones.
        query = (q / _square(q).sqrt())[..., rows, :]
        return 1.0 + FLOOR + query @ (k / _square(k).sqrt()).mT

    def closed_form(self, heads: int) -> AverageOfStates:
        return WholeTensorAverage(heads, 1.0 + FLOOR)

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> ScaledMoments:
        if q is None:
            raise ValueError("q must be given: the whole-tensor norm depends on every query")
        return ScaledMoments(
            value_sum=v.sum(-2, keepdim=True),
            key_value=k.mT @ v,
            key_sum=k.sum(-2).unsqueeze(-1),
            count=row_count(k),
            key_square=_square(k),
            query_square=_square(q),
        )

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, ScaledMoments)
        return self._average(q / context.query_square.sqrt() / context.key_square.sqrt(), context)


def _square(x: Tensor) -> Tensor:
    """Squared norm over heads, rows and width, kept positive for an all-zero tensor."""
    return x.square().sum((-3, -2, -1), keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)

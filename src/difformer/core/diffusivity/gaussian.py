"""The Gaussian diffusivity, a kernel of the distance between query and key."""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity.base import Diffusivity, check_positive
from difformer.core.diffusivity.given import AtRows
from difformer.core.diffusivity.plain import softmax_average
from difformer.core.diffusivity.sharp import widths_for_reach
from difformer.core.rows import squared_distances
from difformer.core.tiled import by_rows


class Gaussian(Diffusivity):
    """Ablation "kernel": ω = exp(−s ‖q − k‖² / 2) with sharpness s; O(n + m) memory.

    With a `reach`, ω_ij = exp(−s ‖q_i − k_j‖² / (2 b_i b_j)) with a width b_i per row, such that
    Σ_j exp(−‖q_i − k_j‖² / (2 b_i²)) = reach: as sharp as the data is dense, a constant for the
    gradient; s above one then leaves fewer partners. Prepared rows are (..., n, d + 1): the row,
    and its width.

    f(z²) = exp(−s z² / 2), δ(z²) = (2/s) (1 − e^{−s z² / 2}) where there is no reach.

    Args:
        sharpness: s; 1/b² for a bandwidth b.
        reach: how many partners a row has at s = 1, itself included; None for no widths.
    """

    name = "gaussian"
    knobs = ("sharpness", "reach")

    def __init__(self, sharpness: float = 1.0, reach: float | None = None) -> None:
        check_positive(sharpness=sharpness)
        if reach is not None and not reach > 1:
            raise ValueError(f"reach must be above 1, the row itself, got {reach!r}")
        self.sharpness, self.reach, self.prepares = sharpness, reach, reach is not None

    def f(self, z2: Tensor) -> Tensor:
        return self._f(z2, torch.ones_like(z2))

    def delta(self, z2: Tensor) -> Tensor:
        return self._delta(z2, torch.ones_like(z2))

    def at(self, states: Tensor) -> Diffusivity:
        if self.reach is None:
            return self
        width = self.prepare(states, states)[0][:, -1:]
        return AtRows(self, width, lambda a, b: a * b, self._f, self._delta)

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        reach = self.reach
        if reach is None:
            return q, k
        against = k if known is None else known[..., : q.shape[-1]]

        def widths(rows: Tensor) -> Tensor:
            size = rows.square().sum(-1, keepdim=True) + longest
            return widths_for_reach(squared_distances(rows, against), size, reach)

        with torch.no_grad():
            longest = against.square().sum(-1, keepdim=True).amax(-2, keepdim=True)
            width = by_rows(widths, q, against.shape[-2])
        left = torch.cat([q, width], dim=-1)
        return left, left if q is k else torch.cat([k, width], dim=-1)

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        if self.reach is None:
            return self.f(squared_distances(q, k))
        a, b = self._factors(q, k)
        return torch.exp((a @ b.mT).clamp_max(0))

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        a, b = self._factors(q, k)
        return torch.softmax(a @ b.mT, dim=-1)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        assert isinstance(context, Pairs)
        a, b = self._factors(q, context.key)
        return softmax_average(a, b, context.value, 1.0)

    def _f(self, z2: Tensor, square: Tensor) -> Tensor:
        return torch.exp(z2 * (-self.sharpness / 2) / square)

    def _delta(self, z2: Tensor, square: Tensor) -> Tensor:
        return torch.expm1(z2 * (-self.sharpness / 2) / square) * square * (-2 / self.sharpness)

    def _factors(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rows whose products are the scores, up to a constant per query, which cancels."""
        root = self.sharpness**0.5
        if self.reach is None:
            a, b = q * root, k * root
            half = b.square().sum(-1, keepdim=True) / -2
            return torch.cat([a, torch.ones_like(a[..., :1])], -1), torch.cat([b, half], -1)
        (q, k), (one, other) = (q[..., :-1], k[..., :-1]), (root / q[..., -1:], root / k[..., -1:])
        a = torch.cat([q * one, q.square().sum(-1, keepdim=True) * one / -2, one], dim=-1)
        return a, torch.cat([k * other, other, k.square().sum(-1, keepdim=True) * other / -2], -1)

    def __repr__(self) -> str:
        reach = "" if self.reach is None else f", reach={self.reach:g}"
        return f"Gaussian(sharpness={self.sharpness:g}{reach})"

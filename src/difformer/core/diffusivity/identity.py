"""The identity diffusivity: no row influences another."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity.base import Diffusivity

__all__ = ["Identity"]


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

"""Dropout that costs about as much as the arithmetic around it on a CPU.

PyTorch draws one Bernoulli number at a time, which is a sixth of a training step of Cora. Here one
64-bit word of NumPy's SFC64 decides four entries, sixteen bits each, and one number drawn from
PyTorch's generator seeds it: `torch.manual_seed` still decides everything, and saved random states
still resume it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["dropout"]

_LEVELS = 2**16
# Masks of up to so many entries are kept for the backward pass; longer ones are drawn again from
# their seed, so that they cost no memory.
KEPT_ENTRIES = 2**22


def dropout(x: Tensor, rate: float, training: bool = True) -> Tensor:
    """x with each entry zero with probability `rate`, else divided by the share kept: O(entries).

    The rate is rounded to a multiple of 2⁻¹⁶ and the scale is that of the rounded one, so the
    expectation is x itself.
    """
    if not training or rate == 0.0:
        return x
    dropped = min(max(round(rate * _LEVELS), 1), _LEVELS - 1)
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    return _Dropout.apply(x, dropped, int(torch.randint(2**62, ())))


class _Dropout(torch.autograd.Function):
    """y = m ⊙ x, ∂x = m ⊙ ∂y, with m zero or 1/(1 − rate)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int, seed: int) -> Tensor:
        mask = _mask(x, dropped, seed)
        ctx.drawn = (dropped, seed)
        if x.numel() <= KEPT_ENTRIES:
            ctx.mask, out = mask, x * mask
        else:
            ctx.mask, out = None, mask.mul_(x)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        if ctx.mask is not None:
            return grads[0] * ctx.mask, None, None
        return _mask(grads[0], *ctx.drawn).mul_(grads[0]), None, None


def _mask(like: Tensor, dropped: int, seed: int) -> Tensor:
    words = np.random.SFC64(seed).random_raw(-(-like.numel() // 4))
    bits = torch.from_numpy(words.view(np.int16))[: like.numel()].view(like.shape)
    mask = torch.empty(like.shape, dtype=like.dtype)
    torch.ge(bits, dropped - _LEVELS // 2, out=mask)
    return mask.mul_(_LEVELS / (_LEVELS - dropped))

"""Random draws: the generator of this thread, and dropout."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.tiled import tiles

_here = threading.local()


def generator() -> torch.Generator | None:
    """The generator that dropout and weights are drawn from; None for torch's global generator."""
    return getattr(_here, "generator", None)


@contextmanager
def drawing_from(own: torch.Generator | None) -> Generator[None, None, None]:
    """Use a generator within a block, in this thread only."""
    before = generator()
    _here.generator = own
    try:
        yield
    finally:
        _here.generator = before


_LEVELS = 2**16
# Entries drawn together, a multiple of four: words, mask and product stay in the cache.
CHUNK = 2**18
# Masks of up to this many entries, one byte each, are kept for the backward pass; longer ones are
# drawn again from their seed, so that they cost no memory.
KEPT_ENTRIES = 2**24


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
    return _Dropout.apply(x, dropped, int(torch.randint(2**62, (), generator=generator())))


class _Dropout(torch.autograd.Function):
    """y = m ⊙ x / (1 − rate), ∂x = m ⊙ ∂y / (1 − rate), with m zero or one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: int, seed: int) -> Tensor:
        masks = _draw(x.numel(), dropped, seed)
        ctx.drawn, ctx.masks = (dropped, seed), None
        if x.numel() <= KEPT_ENTRIES:
            masks = ctx.masks = list(masks)
        return _drop(x, masks, dropped)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        masks = ctx.masks or _draw(grads[0].numel(), *ctx.drawn)
        return _drop(grads[0], masks, ctx.drawn[0]), None, None


def _draw(entries: int, dropped: int, seed: int) -> Iterator[Tensor]:
    """m in chunks, a byte per entry; NumPy compares 16-bit integers many at a time."""
    words = np.random.SFC64(seed)
    for part in tiles(entries, CHUNK):
        size = part.stop - part.start
        bits = words.random_raw(-(-size // 4)).view(np.int16)[:size]
        yield torch.from_numpy((bits >= dropped - _LEVELS // 2).view(np.uint8))


def _drop(x: Tensor, masks: Iterable[Tensor], dropped: int) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    source, target, zero = x.reshape(-1), out.view(-1), x.new_zeros(())
    for part, mask in zip(tiles(x.numel(), CHUNK), masks, strict=True):
        kept = target[part].copy_(mask)
        torch.addcmul(zero, source[part], kept, value=_LEVELS / (_LEVELS - dropped), out=kept)
    return out

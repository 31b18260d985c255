"""Randomness that a seed decides inside a block, without effects outside it."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch

from difformer.core.draws import drawing_from
from difformer.train.checkpoint import RngState

# One thread at a time may seed the global generators and rely on them.
_GLOBAL = threading.RLock()


@contextmanager
def seeded(seed: int, *, stream: str = "model", own: bool = False) -> Generator[None, None, None]:
    """Seed everything that is drawn in a block.

    Different streams of one seed are independent: weights are drawn in "model", training draws
    (dropout, shuffling) come from "train", so that neither depends on how much the other drew.

    Args:
        own: draw from a generator of this block, which only our own models and dropout use; the
            global ones are not touched and other threads do not wait. Otherwise torch's, numpy's
            and Python's global generators are seeded, and restored afterwards; one thread at a
            time. Both ways give the same bits.
    """
    words = np.random.SeedSequence([seed, *stream.encode()]).generate_state(3)
    if own:
        with drawing_from(torch.Generator().manual_seed(int(words[0]))):
            yield
        return
    with _GLOBAL, drawing_from(None):
        before = RngState.now()
        torch.manual_seed(int(words[0]))  # pyright: ignore[reportUnknownMemberType]
        np.random.seed(int(words[1]))
        random.seed(int(words[2]))
        try:
            yield
        finally:
            before.restore()

"""Randomness that is decided by a seed inside a block, and left as it was outside."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch

from difformer.train.checkpoint import RngState


@contextmanager
def seeded(seed: int, *, stream: str = "model") -> Generator[None, None, None]:
    """Seed torch's, numpy's and Python's global generators for a block, then restore them.

    Different streams of one seed are independent: weights are drawn in "model", training draws
    (dropout, shuffling) come from "train", so that neither depends on how much the other drew.
    """
    before = RngState.now()
    words = np.random.SeedSequence([seed, *stream.encode()]).generate_state(3)
    torch.manual_seed(int(words[0]))  # pyright: ignore[reportUnknownMemberType]
    np.random.seed(int(words[1]))
    random.seed(int(words[2]))
    try:
        yield
    finally:
        before.restore()

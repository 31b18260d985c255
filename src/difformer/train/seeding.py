"""Randomness that a seed decides inside a block, without effects outside it."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from difformer.core.draws import drawing_from, generator

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
        before = random_state()
        torch.manual_seed(int(words[0]))  # pyright: ignore[reportUnknownMemberType]
        np.random.seed(int(words[1]))
        random.seed(int(words[2]))
        try:
            yield
        finally:
            restore_random_state(*before)


def random_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of the generators in use, the thread's own or the global ones.

    As tensors ("torch", "numpy", and "cuda.0", ... where there are GPUs), and what the states of
    "numpy" and "python" hold besides.
    """
    own, state = generator(), cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    tensors = {
        "torch": torch.get_rng_state() if own is None else own.get_state(),
        "numpy": torch.tensor(state[1].tolist()),
    }
    if torch.cuda.is_available():
        cuda = torch.cuda.get_rng_state_all()
        tensors |= {f"cuda.{i}": each for i, each in enumerate(cuda)}
    version, internal, gauss_next = random.getstate()
    return tensors, {"numpy": list(state[2:]), "python": [version, list(internal), gauss_next]}


def restore_random_state(tensors: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
    """Go on drawing where `random_state` was taken."""
    own = generator()
    if own is not None:
        own.set_state(tensors["torch"])
        return
    torch.set_rng_state(tensors["torch"])
    cuda = [name for name in tensors if name.startswith("cuda.")]
    if cuda:
        torch.cuda.set_rng_state_all([tensors[f"cuda.{i}"] for i in range(len(cuda))])
    keys = tensors["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, *rest["numpy"]))
    version, internal, gauss_next = rest["python"]
    random.setstate((version, tuple(internal), gauss_next))

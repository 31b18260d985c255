"""The random generator of this thread: its own, or torch's global one."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import torch

__all__ = ["drawing_from", "generator"]

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

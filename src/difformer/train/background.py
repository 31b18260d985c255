"""A thread that works beside the model and leaves it the processors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["background_worker"]


def background_worker() -> ThreadPoolExecutor:
    """One thread for preparing batches, in which PyTorch computes alone.

    Left to itself each thread gets a team of helpers, and once there are more of them than
    processors, OpenMP lets all of them sleep between operators: the model's steps would be slower
    for as long as the thread is there, even while it waits.
    """
    threads = torch.get_num_threads()
    worker = ThreadPoolExecutor(1, "difformer-batches", initializer=_alone)
    worker.submit(int).result()
    # What a thread asks for is also what later ones start with.
    torch.set_num_threads(threads)
    return worker


def _alone() -> None:
    torch.get_num_threads()  # a thread takes the common number first, and only then one of its own
    torch.set_num_threads(1)

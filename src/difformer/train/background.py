"""A worker thread that does not slow the model's own threads down."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

__all__ = ["background_worker"]


def background_worker() -> ThreadPoolExecutor:
    """One thread for preparing batches, in which PyTorch uses a single thread.

    By default each thread gets its own OpenMP team, and once there are more threads than
    processors, OpenMP lets all of them sleep between operators: the model's steps would be slower
    for as long as the thread exists, even while it waits.
    """
    threads = torch.get_num_threads()
    worker = ThreadPoolExecutor(1, "difformer-batches", initializer=_alone)
    worker.submit(int).result()
    # The number one thread sets is also the default of threads started later.
    torch.set_num_threads(threads)
    return worker


def _alone() -> None:
    torch.get_num_threads()  # a thread starts with the common number; only then can it set its own
    torch.set_num_threads(1)

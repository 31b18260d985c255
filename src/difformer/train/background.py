"""A worker thread that prepares batches while the model trains, without slowing it down."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch

__all__ = ["Background", "background_worker"]

# Batches prepared in advance while the model trains.
AHEAD = 2

P = TypeVar("P")
T = TypeVar("T")


class Background(Generic[P]):
    """One thread that makes the plan of each epoch, then the batches of that plan."""

    def __init__(self) -> None:
        self._next: tuple[int, Future[P]] | None = None

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return background_worker()

    def start(self, plan: Callable[[int], P], number: int) -> Future[P]:
        """Begin the plan of an epoch, unless it was the last one begun."""
        if self._next is None or self._next[0] != number:
            self._next = number, self._worker.submit(plan, number)
        return self._next[1]

    def each(
        self, make: Callable[[int], T], count: int, *, then: Callable[[], Any] | None = None
    ) -> Iterator[T]:
        """make(0) to make(count − 1), each begun early; `then` is called once all have begun."""
        waiting: deque[Future[T]] = deque()
        try:
            for index in range(count):
                while len(waiting) <= AHEAD and index + len(waiting) < count:
                    waiting.append(self._worker.submit(make, index + len(waiting)))
                if then is not None and index + len(waiting) == count:
                    then()
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


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

"""Run each task of a comparison in a process of its own, so that its memory can be measured."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from threading import Thread
from typing import TYPE_CHECKING, Any

from difformer.errors import RunError

if TYPE_CHECKING:
    from difformer.experiments.compare import Task

__all__ = ["end_with_parent", "run_all"]

Look = Callable[[str], None]


def run_all(waiting: Sequence[Task], workers: int | None, look: Look) -> None:
    """Run every task; `workers` at a time, or in this process if it is 0."""
    waiting = list(waiting)
    if workers == 0:
        for task in waiting:
            task.run()
            look(f"{task.system}: done")
        return
    limit = workers or min(os.cpu_count() or 1, len(waiting) or 1)
    running: list[Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                running.append(Worker(replace(waiting.pop(0), threads=1), look))
            wait([worker.process.sentinel for worker in running], timeout=0.2)
            for worker in running:
                worker.tell()
            running = [worker for worker in running if not worker.ended()]
    finally:
        for worker in running:
            worker.process.terminate()
            worker.process.join()


class Worker:
    """A process that runs one task; it ends when this process does, however that ends."""

    def __init__(self, task: Task, look: Look) -> None:
        context = multiprocessing.get_context("spawn")
        self.task, self.look, self.told = task, look, 0
        self.trouble = context.SimpleQueue()
        arguments = (task, self.trouble)
        self.process = context.Process(target=run_in_child, args=arguments, name=task.system)
        self.process.start()

    def tell(self) -> None:
        """Say how many splits are done, when that has changed."""
        done = len(self.task.row().runs)
        if done not in (self.told, len(self.task.splits)):
            self.told = done
            self.look(f"{self.task.system}: {done} of {len(self.task.splits)} splits")

    def ended(self) -> bool:
        """Whether the process has ended; RunError if it could not write its results."""
        if self.process.is_alive():
            return False
        self.process.join()
        code = self.process.exitcode
        if not self.trouble.empty():
            raise RunError(self.trouble.get())
        if code:
            # Killed from outside, most often by a lack of memory: no file says so.
            self.task.write("system", {"died": f"its process ended with code {code}"})
        self.look(f"{self.task.system}: {'crashed' if code else 'done'}")
        return True


def run_in_child(task: Task, trouble: Any) -> None:
    """Run a task in a child process; the parent is told of a disk that cannot be written."""
    Thread(target=end_with_parent, daemon=True).start()
    try:
        task.run()
    except RunError as error:
        trouble.put(str(error))


def end_with_parent() -> None:
    """Wait for the end of the parent, which may be killed, and end this process with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

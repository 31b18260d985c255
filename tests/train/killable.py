"""Run by test_resume.py in a process of its own: trains in children and kills them.

killable.py points FOLDER     a child dies at each write to the disk in turn, the next goes on
killable.py train FOLDER      one slow run, in this process, to be interrupted; after a line
                              on stdin it goes on
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Callback
from difformer.train.loop import Fit, fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings


class Model(nn.Sequential):
    def forward(self, x, edge_index=None, edge_weight=None, batch=None):
        return super().forward(x)


class Slow(Callback):
    def on_epoch(self, fit: Fit) -> None:
        time.sleep(0.02)
        if fit.epoch == 3:
            print("started", flush=True)


def train(folder: Path | None, *callbacks: Callback, epochs: int = 3):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    dataset = Dataset("toy", x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())
    split = Split("toy", list(range(20)), list(range(20, 40)), list(range(40, 60)))
    settings = TrainSettings(epochs=epochs, lr=0.02, threads=1, checkpoint_every=0)
    with seeded(0):
        model = Model(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    source, objective = FullBatch(dataset, split), objective_for(dataset.task)
    return fit(model, source, objective, split, settings, folder=folder, callbacks=callbacks)


def in_child(work: Callable[[], object]) -> bool:
    """True when the work came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr, flush=True)
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
        sys.exit("a child ended with an error")
    return os.WIFEXITED(status)


def die_at(call: int) -> None:
    """Make this process kill itself right before its n-th fsync, rename or unlink."""
    count = 0

    def wrapped(function):
        def dying(*arguments, **options):
            nonlocal count
            count += 1
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return dying

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, wrapped(getattr(os, name)))


def points(folder: Path) -> None:
    call, finished = 0, False
    while not finished:
        call += 1

        def work(call: int = call, own: Path = folder / str(call)) -> None:
            die_at(call)
            train(own)

        finished = in_child(work)
        if not finished:
            assert in_child(lambda call=call: train(folder / str(call)))
    print(call)


if __name__ == "__main__":
    mode, target = sys.argv[1], Path(sys.argv[2])
    if mode == "train":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print(train(target, Slow(), epochs=200).stopped, flush=True)
        sys.stdin.readline()
        print(train(target, epochs=200).stopped)
    else:
        train(None)  # torch imports much on first use: once here, not in every child
        points(target)

"""Run by test_restarts.py: two jobs with dropout, so that the generators' states matter too.

restartable.py calm FOLDER     two forked processes, nobody dies
restartable.py train FOLDER    one rank of a job that torchrun started; the last rank kills itself
                               in the first job of its first life, then in the second of its second

The first job has its data in memory (run FOLDER/memory), the second in parts (run FOLDER/parts).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from spread import BOUNDS, launch, model_of, problem, write_parts

from difformer.nn.model import DIFFormer
from difformer.shards.folder import ShardFolder
from difformer.train.distributed import fit_distributed, fit_from_parts, processes
from difformer.train.settings import TrainSettings

STEP = 22  # in which the last rank dies
SETTINGS = TrainSettings(epochs=12, lr=0.02, checkpoint_every=0, batch_size=13)
CASE: dict[str, Any] = {"graph": True, "model": {"dropout": 0.3}}


def mortal(life: str, mark: Path) -> DIFFormer:
    """A model whose process kills itself in step STEP of that life of the job."""
    model, steps = model_of(CASE), 0

    def hook(*_: Any) -> None:
        nonlocal steps
        steps += model.training
        if steps == STEP and os.environ.get("TORCHELASTIC_RESTART_COUNT") == life:
            mark.write_text(str(steps))
            os.kill(os.getpid(), signal.SIGKILL)

    if os.environ["RANK"] == "1":
        model.output.register_forward_pre_hook(hook)
    return model


def train(folder: Path) -> None:
    dataset, split, graph = problem(CASE)
    with processes() as comm:
        model, run = mortal("0", folder / "memory.dies"), folder / "memory"
        fit_distributed(model, dataset, split, SETTINGS, comm, graph=graph, folder=run)
        model, run = mortal("1", folder / "parts.dies"), folder / "parts"
        fit_from_parts(model, ShardFolder(folder / "data"), SETTINGS, comm, folder=run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, where = sys.argv[1], Path(sys.argv[2])
    if command == "calm":
        write_parts(where / "data", *problem(CASE), BOUNDS)
        sys.exit(max(launch(2, lambda: train(where))))
    train(where)

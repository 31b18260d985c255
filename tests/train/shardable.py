"""Run by test_distributed.py in a process of its own, which forks the ranks of a job.

shardable.py equal FOLDER WORLD...    every case of CASES on WORLD processes, for each WORLD, with
                                      losses and predictions to FOLDER/WORLD-RANK.json; those of
                                      ON_DISK also from parts, of which each process sees its own
                                      alone; and what two processes send for several numbers of rows
shardable.py faults FOLDER            jobs in which a rank fails: exit codes, messages, run folders
shardable.py link FOLDER              a job of two ranks whose link is cut
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from spread import (
    BOUNDS,
    CASES,
    FOUR,
    ON_DISK,
    N,
    launch,
    model_of,
    own_parts,
    problem,
    ranks,
    run,
    write_parts,
)

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.nn.model import DIFFormer
from difformer.train import distributed
from difformer.train.distributed import TIMEOUT, fit_distributed, fit_from_parts, processes
from difformer.train.memory import memory_from_here
from difformer.train.objective import objective_for
from difformer.train.parts import Parts
from difformer.train.processes import Comm
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings
from difformer.train.sharded import ShardedDIFFormer

SILENCE = 4  # seconds without a word after which a process gives up, where a link is cut


def equal(folder: Path, worlds: list[int]) -> None:
    for name in ON_DISK:
        write_parts(folder / name, *problem(CASES[name]), BOUNDS)
    for world in worlds:

        def work(comm: Comm, world: int = world) -> None:
            answers: dict[str, Any] = {}
            for name, case in CASES.items():
                if world < 4 or name in FOUR:
                    answers[name] = run(case, comm)
                    if name in ON_DISK:
                        answers[f"{name} on disk"] = run(case, comm, folder / name)
            (folder / f"{world}-{comm.rank}.json").write_text(json.dumps(answers))
            if world == 2:
                (folder / f"bytes-{comm.rank}.json").write_text(json.dumps(count_bytes(comm)))

        ranks(world, folder, work)
    alone = {name: run(case, None) for name, case in CASES.items()}
    (folder / "alone.json").write_text(json.dumps(alone))


def count_bytes(comm: Comm) -> dict[str, Any]:
    """Bytes of one step, forward and backward, for some numbers of rows, with a graph or not."""
    answers: dict[str, Any] = {}
    for n, joined in ((1000, False), (100_000, False), (100, True), (10_000, True)):
        dataset, split, graph = problem({"graph": joined}, n)
        own = model_of({})
        source, model = Parts.of(dataset, split, graph, own, comm), ShardedDIFFormer(own, comm)
        objective = objective_for(dataset.task, comm=comm)
        comm.sent.clear()
        batch = source.observed()
        objective.loss(model(batch.x, batch.graph), batch).backward()
        model.reduce_gradients()
        answers[f"{n} graph" if joined else str(n)] = dict(comm.sent)
    return answers


def faulty(folder: Path, kind: str) -> None:
    """One rank of a job in which something goes wrong in its third epoch."""
    errors = os.open(folder / f"{kind}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)
    dataset, split, graph = problem({"graph": True})
    model = model_of({})
    patience = timedelta(seconds=SILENCE) if kind in ("silent", "link") else TIMEOUT
    with processes(timeout=patience) as comm:
        epochs = 0

        def hook(*_: Any) -> None:
            nonlocal epochs
            epochs += model.training
            if epochs == 3 and comm.rank == 1 and kind == "memory":
                torch.empty(2**50)
            if epochs == 3 and comm.rank == 1 and kind == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if epochs == 3 and comm.rank == 1 and kind == "silent":
                time.sleep(2 * SILENCE)  # the link carries nothing any more
            if epochs == 3 and comm.rank == 1 and kind == "link":
                subprocess.run(["ip", "link", "set", "link1", "down"], check=True)
            if epochs == 3 and comm.rank == 0 and kind == "disk":
                os.fsync = full_disk

        model.output.register_forward_pre_hook(hook)
        lr, epochs_asked = 0.001, 5
        if comm.rank == 1 and kind == "lr":
            lr = 0.002
        if comm.rank == 1 and kind == "epochs":
            epochs_asked = 7
        if comm.rank == 1 and kind == "data":
            dataset.x[0] += 1
        if comm.rank == 1 and kind == "version":
            distributed.__version__ = "0.0"
        settings = TrainSettings(
            epochs=epochs_asked,
            lr=lr,
            checkpoint_every=0,
            batch_size=N + 1 if kind == "batch" else None,
        )
        fit_distributed(model, dataset, split, settings, comm, graph=graph, folder=folder / kind)


def full_disk(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def faults(folder: Path) -> None:
    """The exit codes of both ranks for each kind of fault."""
    kinds = ("memory", "killed", "disk", "silent", "batch", "lr", "epochs", "data", "version")
    codes = {kind: launch(2, lambda kind=kind: faulty(folder, kind)) for kind in kinds}
    (folder / "codes.json").write_text(json.dumps(codes))


def link(folder: Path) -> None:
    """Two ranks on networks of their own, joined by one link that is cut in the third epoch."""
    ready, begin = os.pipe(), os.pipe()
    children: list[int] = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET
                os._exit(77)
            os.write(ready[1], b".")
            os.read(begin[0], 1)
            name = f"link{rank}"
            subprocess.run(["ip", "addr", "add", f"10.77.0.{rank + 1}/24", "dev", name], check=True)
            for each in ("lo", name):
                subprocess.run(["ip", "link", "set", each, "up"], check=True)
            there = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
            os.environ |= {**there, "RANK": str(rank), "GLOO_SOCKET_IFNAME": name}
            faulty(folder, "link")
            os._exit(0)
        children.append(pid)
    for _ in children:
        os.read(ready[0], 1)
    words = f"ip link add link0 netns {children[0]} type veth peer name link1 netns {children[1]}"
    subprocess.run(words.split(), check=True)
    os.write(begin[1], b"..")
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    (folder / "codes.json").write_text(json.dumps(codes))


def threads(folder: Path) -> None:
    """The names of the threads of each rank after the job."""

    def work() -> None:
        with processes() as comm:
            import_module("torch.distributed.nn.functional")  # as optimizers do
            comm.barrier()
        names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
        (folder / os.environ["RANK"]).write_text("".join(names))

    assert launch(2, work) == [0, 0]


ROWS, WIDTH, FEATURES, DEGREE = 200_000, 8, 160, 2


def large() -> tuple[Dataset, Split, Graph]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, FEATURES, generator=generator)
    near = torch.randint(-50, 51, (DEGREE * ROWS,), generator=generator)
    target = torch.arange(ROWS).repeat(DEGREE)
    edges = torch.stack([(target + near) % ROWS, target])
    rows = torch.arange(ROWS)
    split = Split("s", rows[::3], rows[1::3], rows[2::3])
    graph = Graph.undirected_with_loops(edges, ROWS)
    return Dataset("large", x, (x[:, 0] > 0).long()), split, graph


def memory(folder: Path) -> None:
    """Bytes above the start: mapping, a step, its evaluation."""

    def write(_: Comm) -> None:  # in a process of its own, so that this one stays small
        write_parts(folder, *large(), tuple(ROWS * k // 4 for k in range(5)))
        write_parts(folder / "small", *problem({"graph": True}), BOUNDS)

    def measure(comm: Comm, batch_size: int | None) -> None:
        with seeded(0):
            model = DIFFormer(FEATURES, WIDTH, 2, num_layers=2)
        # A first step loads what every process has, however little data it holds.
        run({"graph": True, "batch_size": batch_size and 13}, comm, folder / "small")
        most = memory_from_here()
        settings = TrainSettings(epochs=2, eval_every=2, batch_size=batch_size)
        fit_from_parts(model, own_parts(folder, comm), settings, comm)
        (folder / f"{comm.size}-{comm.rank}-{batch_size}.txt").write_text(str(most()))

    ranks(1, folder, write)
    for world, batch_size in ((1, None), (2, None), (4, None), (1, 5000)):
        ranks(world, folder, lambda comm, size=batch_size: measure(comm, size))


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, where = sys.argv[1], Path(sys.argv[2])
    if command == "equal":
        equal(where, [int(world) for world in sys.argv[3:]])
    else:
        chosen = {"faults": faults, "link": link, "threads": threads, "memory": memory}
        chosen[command](where)

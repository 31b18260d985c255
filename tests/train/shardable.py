"""Run by test_distributed.py in a process of its own, which forks the ranks of a job.

shardable.py equal FOLDER    every case of CASES on 1, 2 and 4 processes, with losses and
                             predictions to FOLDER/WORLD-RANK.json, some from parts too, of which
                             each process sees its own alone; and what two processes send for
                             several numbers of rows
shardable.py faults FOLDER   jobs in which a rank fails: exit codes, messages, run folders
shardable.py link FOLDER     a job of two ranks whose link is cut
shardable.py threads FOLDER  the threads of each rank after a job
shardable.py memory FOLDER   the memory of each rank of a larger job
shardable.py calm FOLDER     two jobs, with data in memory and in parts; nobody dies
shardable.py train FOLDER    one rank of these jobs, started by torchrun; the last rank kills itself
                             in the first job of its first life, then in the second of its second
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
    CASES,
    N,
    case,
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
from difformer.shards.folder import ShardFolder
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


def equal(folder: Path) -> None:
    for name, each in CASES.items():
        if each.get("disk"):
            write_parts(folder / name, *problem(each))

    def work(comm: Comm) -> None:
        answers: dict[str, Any] = {}
        for name, each in CASES.items():
            if comm.size < 4 or each.get("four"):
                answers[name] = run(each, comm)
                if each.get("disk"):
                    answers[f"{name} on disk"] = run(each, comm, folder / name)
        (folder / f"{comm.size}-{comm.rank}.json").write_text(json.dumps(answers))
        if comm.size == 2:
            (folder / f"bytes-{comm.rank}.json").write_text(json.dumps(count_bytes(comm)))

    for world in (1, 2, 4):
        ranks(world, work)
    alone = {name: run(each, None) for name, each in CASES.items()}
    (folder / "alone.json").write_text(json.dumps(alone))


def count_bytes(comm: Comm) -> dict[str, Any]:
    """Bytes of one step, forward and backward, for some numbers of rows, with a graph or not."""
    answers: dict[str, Any] = {}
    for n, words in ((1000, ""), (100_000, ""), (100, "graph"), (10_000, "graph")):
        dataset, split, graph = problem(case(words), n)
        own = model_of(case())
        source, model = Parts.of(dataset, split, graph, own, comm), ShardedDIFFormer(own, comm)
        comm.sent.clear()
        batch = source.observed()
        loss = objective_for(dataset.task, comm=comm).loss(model(batch.x, batch.graph), batch)
        loss.backward()
        model.reduce_gradients()
        answers[f"{n} {words}".strip()] = dict(comm.sent)
    return answers


def faulty(folder: Path, kind: str) -> None:
    """One rank of a job in which something goes wrong in its third epoch."""
    errors = os.open(folder / f"{kind}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(errors, 2)
    dataset, split, graph = problem(case("graph"))
    model = model_of(case())
    patience = timedelta(seconds=SILENCE) if kind in ("silent", "link") else TIMEOUT
    cut = ["ip", "link", "set", "link1", "down"]
    third = {  # what goes wrong, and on which rank
        "memory": (1, lambda: torch.empty(2**50)),
        "killed": (1, lambda: os.kill(os.getpid(), signal.SIGKILL)),
        "silent": (1, lambda: time.sleep(2 * SILENCE)),  # the link carries nothing any more
        "link": (1, lambda: subprocess.run(cut, check=True)),
        "disk": (0, lambda: setattr(os, "fsync", full_disk)),
    }
    with processes(timeout=patience) as comm:
        rank, fails = third.get(kind, (-1, lambda: None))
        in_epoch(3, model, fails if comm.rank == rank else lambda: None)
        given = {"lr": 0.001, "epochs": 5, "batch_size": N + 1 if kind == "batch" else None}
        if comm.rank == 1:
            given |= {"lr": {"lr": 0.002}, "epochs": {"epochs": 7}}.get(kind, {})
            dataset.x[0] += kind == "data"
            if kind == "version":
                distributed.__version__ = "0.0"
        settings = TrainSettings(checkpoint_every=0, **given)
        fit_distributed(model, dataset, split, settings, comm, graph=graph, folder=folder / kind)


def in_epoch(number: int, model: DIFFormer, act: Any) -> None:
    """Act in that step of the model."""
    steps = 0

    def hook(*_: Any) -> None:
        nonlocal steps
        steps += model.training
        if steps == number and model.training:
            act()

    model.output.register_forward_pre_hook(hook)


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
    def work() -> None:
        with processes() as comm:
            import_module("torch.distributed.nn.functional")  # as optimizers do
            comm.barrier()
        names = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]
        (folder / os.environ["RANK"]).write_text("".join(names))

    assert launch(2, work) == [0, 0]


ROWS, WIDTH, FEATURES, DEGREE = 200_000, 8, 160, 2


def memory(folder: Path) -> None:
    """Bytes above the start: mapping, a step, its evaluation."""

    def write(_: Comm) -> None:  # in a process of its own, so that this one stays small
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(ROWS, FEATURES, generator=generator)
        near = torch.randint(-50, 51, (DEGREE * ROWS,), generator=generator)
        rows = torch.arange(ROWS)
        target = rows.repeat(DEGREE)
        graph = Graph.undirected_with_loops(torch.stack([(target + near) % ROWS, target]), ROWS)
        split = Split("s", rows[::3], rows[1::3], rows[2::3])
        dataset = Dataset("large", x, (x[:, 0] > 0).long())
        write_parts(folder, dataset, split, graph, tuple(ROWS * k // 4 for k in range(5)))
        write_parts(folder / "small", *problem(case("graph")))

    def measure(comm: Comm, batch_size: int | None) -> None:
        with seeded(0):
            model = DIFFormer(FEATURES, WIDTH, 2, num_layers=2)
        # A first step loads what every process has, however little data it holds.
        run(case("graph batches" if batch_size else "graph"), comm, folder / "small")
        most = memory_from_here()
        settings = TrainSettings(epochs=2, eval_every=2, batch_size=batch_size)
        fit_from_parts(model, own_parts(folder, comm), settings, comm)
        (folder / f"{comm.size}-{comm.rank}-{batch_size}.txt").write_text(str(most()))

    ranks(1, write)
    for world, batch_size in ((1, None), (2, None), (4, None), (1, 5000)):
        ranks(world, lambda comm, size=batch_size: measure(comm, size))


# With dropout, so that the generators' states matter too; in step 22 the last rank dies.
CASE, STEP = case("graph", dropout=0.3), 22
SETTINGS = TrainSettings(epochs=12, lr=0.02, checkpoint_every=0, batch_size=13)


def train(folder: Path) -> None:
    dataset, split, graph = problem(CASE)

    def mortal(life: str, mark: Path) -> DIFFormer:
        """A model whose process kills itself in step STEP of that life of the job."""

        def die() -> None:
            mark.write_text("here")
            os.kill(os.getpid(), signal.SIGKILL)

        model = model_of(CASE)
        if (os.environ["RANK"], os.environ.get("TORCHELASTIC_RESTART_COUNT")) == ("1", life):
            in_epoch(STEP, model, die)
        return model

    with processes() as comm:
        model, to = mortal("0", folder / "memory.dies"), folder / "memory"
        fit_distributed(model, dataset, split, SETTINGS, comm, graph=graph, folder=to)
        model, to = mortal("1", folder / "parts.dies"), folder / "parts"
        fit_from_parts(model, ShardFolder(folder / "data"), SETTINGS, comm, folder=to)


def calm(folder: Path) -> None:
    write_parts(folder / "data", *problem(CASE))
    sys.exit(max(launch(2, lambda: train(folder))))


if __name__ == "__main__":
    torch.set_num_threads(1)
    chosen = (equal, faults, link, threads, memory, calm, train)
    {each.__name__: each for each in chosen}[sys.argv[1]](Path(sys.argv[2]))

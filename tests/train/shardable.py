"""Run by test_distributed.py in a process of its own, which forks the ranks of a job.

shardable.py equal FOLDER WORLD...    every case of CASES on WORLD processes, for each WORLD:
                                      losses of 20 steps and predictions to FOLDER/WORLD.json
shardable.py bytes FOLDER             what two processes send for two numbers of rows
shardable.py calm FOLDER              the job of `train`, two processes, nobody dies
shardable.py faults FOLDER            jobs in which a rank fails: exit codes, messages, run folders
shardable.py train FOLDER [DIE_AT]    one rank of a job that torchrun started; the last rank
                                      kills itself in step DIE_AT unless it was restarted
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from difformer.core.graph import Graph
from difformer.data import Dataset, Split
from difformer.nn.model import DIFFormer
from difformer.train import (
    Callback,
    Fit,
    Partitions,
    TrainSettings,
    distributed,
    fit,
    objective_for,
    seeded,
)
from difformer.train.batches import FullBatch
from difformer.train.chunks import recompute_layers
from difformer.train.comm import Comm
from difformer.train.distributed import TIMEOUT, fit_distributed, processes
from difformer.train.sharded import ShardedDIFFormer, ShardedObjective, Shards

N = 41
SILENCE = 4  # seconds without a word after which a process gives up, where a link is cut

INPUT = {"learn_qk": False, "compare": "input", "reach": 4.0}

CASES: dict[str, dict[str, Any]] = {
    "s": {},
    "s graph": {"graph": True},
    "s directed weighted graph": {"graph": True, "directed": True},
    "s graph metis": {"graph": True, "partition": "metis"},
    "s graph batches": {"graph": True, "batch_size": 13},
    "s graph metis batches": {"graph": True, "batch_size": 13, "partition": "metis"},
    "s batches of few rows": {"graph": True, "batch_size": 4},
    "s one labelled row": {"graph": True, "train": [3]},
    "s heads, source, centre": {
        "graph": True,
        "model": {"num_heads": 2, "source": 0.2, "center": True, "learn_tau": True},
    },
    "s whole-tensor norm": {"graph": True, "model": {"qk_norm": "tensor"}},
    "s sparse features": {"graph": True, "sparse": True},
    "s sparse features batches": {"sparse": True, "batch_size": 13},
    "s recomputed": {"graph": True, "recompute": True, "model": {"num_heads": 2}},
    "s regression": {"task": "regression"},
    "s multilabel": {"task": "multilabel", "graph": True},
    "a": {"model": {"kernel": "sigmoid"}},
    "a graph": {"graph": True, "model": {"kernel": "sigmoid", "num_heads": 2}, "steps": 20},
    "a graph batches": {"graph": True, "batch_size": 13, "model": {"kernel": "sigmoid"}},
    "a states": {"model": {"kernel": "sigmoid", "learn_qk": False, "use_weight": False}},
    "sharp": {"model": {"kernel": "sharp", "num_heads": 2}, "steps": 5},
    "sharp states": {"graph": True, "model": {"kernel": "sharp", "learn_qk": False}},
    "sharp first": {"model": {"kernel": "sharp", "learn_qk": False, "compare": "first"}},
    "sharp input": {"graph": True, "model": {"kernel": "sharp", **INPUT, "graph_weight": 0.5}},
    "sharp learned": {
        "model": {"kernel": "sharp", **INPUT, "learn_reach": "layer", "num_heads": 1},
        "steps": 5,
    },
    "sharp learned, identity maps": {
        "graph": True,
        "model": {"kernel": "sharp", "learn_reach": "shared", "qk_init": "identity"},
        "steps": 5,
    },
    "sharp input metis": {
        "graph": True,
        "model": {"kernel": "sharp", **INPUT},
        "partition": "metis",
    },
    "sharp near": {"model": {"kernel": "sharp", **INPUT, "exact_rows": 5}},
    "sharp input batches": {"model": {"kernel": "sharp", **INPUT}, "batch_size": 13},
    "sharp input sparse": {"model": {"kernel": "sharp", **INPUT}, "sparse": True},
    "landmarks": {"model": {"kernel": "landmarks", **INPUT, "num_landmarks": 9}},
    "landmarks first": {
        "graph": True,
        "model": {"kernel": "landmarks", "compare": "first", "num_landmarks": 9, "reach": 4.0},
    },
    "own weight": {
        "graph": True,
        "model": {"self_weight": True, "residual": True, "graph_norm": "row"},
    },
    "neighbours' mean, directed, batches": {
        "graph": True,
        "directed": True,
        "batch_size": 13,
        "model": {"graph_norm": "row"},
    },
    "softmax": {"model": {"kernel": "softmax"}},
    "identity": {"graph": True, "model": {"kernel": "identity"}},
    "constant": {"graph": True, "model": {"kernel": "constant"}},
}


# The cases that four processes run, where each collective takes its time on a small machine.
FOUR = (
    "s",
    "s graph",
    "s graph metis batches",
    "s one labelled row",
    "a",
    "a graph",
    "sharp",
    "sharp input",
    "sharp learned",
    "sharp near",
    "landmarks",
)


class Losses(Callback):
    """The loss of every epoch."""

    def __init__(self) -> None:
        self.each: list[float] = []

    def on_epoch(self, fit: Fit) -> None:
        self.each.append(fit.loss)


def problem(case: dict[str, Any], n: int = N) -> tuple[Dataset, Split, Graph | None]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    score = x @ torch.randn(5, 3, generator=generator, dtype=torch.float64)
    task = case.get("task", "multiclass")
    y = {"multiclass": score.argmax(1), "multilabel": (score > 0).double(), "regression": score}
    edges = torch.randint(n, (2, 4 * n), generator=generator)
    graph = None
    if case.get("graph"):
        directed = case.get("directed", False)
        weight = torch.rand(4 * n, generator=generator, dtype=torch.float64) if directed else None
        graph = Graph.from_edges(edges, n, weight, undirected=not directed, self_loops=True)
    train = case.get("train", list(range(0, n, 3)))
    split = Split("s", train, list(range(1, n, 3)), list(range(2, n, 3)))
    x = x.to_sparse_csr() if case.get("sparse") else x
    return Dataset("toy", x, y[task], task), split, graph


def model_of(case: dict[str, Any]) -> DIFFormer:
    with seeded(0):
        return DIFFormer(5, 8, 3, num_layers=2, **case.get("model", {})).double()


def run(case: dict[str, Any], comm: Comm | None) -> dict[str, Any]:
    """Losses of 20 steps (or as many epochs of batches) and predictions after them."""
    dataset, split, graph = problem(case)
    model, size = model_of(case), case.get("batch_size")
    if case.get("recompute") and comm is not None:
        recompute_layers(model)
    epochs = case.get("steps", 20 if len(case) < 2 else 3)
    settings = TrainSettings(
        epochs=epochs,
        lr=0.02,
        eval_every=epochs,
        batch_size=size,
        partition=case.get("partition"),
    )
    losses = Losses()
    if comm is None:
        source: Any = FullBatch(dataset, split, graph)
        if size is not None:
            source = Partitions(dataset, split, graph, batch_size=size)
        objective = objective_for(dataset.task)
        result = fit(model, source, objective, split, settings, callbacks=[losses])
    else:
        result = fit_distributed(
            model,
            dataset,
            split,
            settings,
            comm,
            graph=graph,
            callbacks=[losses],
        )
    model.eval()
    predictions = model(dataset.x, graph).detach()
    return {
        "losses": losses.each,
        "predictions": predictions.tolist(),
        "metrics": result.metrics,
    }


def launch(world: int, work: Callable[[], None]) -> list[int]:
    """Fork processes with the environment torchrun gives them; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    children: list[int] = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.environ["RANK"] = str(rank)
            work()
            os._exit(0)
        children.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]


def ranks(world: int, folder: Path, work: Callable[[Comm], Any]) -> None:
    """Fork `world` processes that join one job; rank 0's answer is written by itself."""
    store = folder / f"store-{world}-{os.getpid()}"
    children: list[int] = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                dist.init_process_group(
                    "gloo", init_method=f"file://{store}", rank=rank, world_size=world
                )
                work(Comm())
                dist.barrier()
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    store.unlink(missing_ok=True)
    if any(codes):
        sys.exit(f"ranks ended with {codes}")


def equal(folder: Path, worlds: list[int]) -> None:
    for world in worlds:

        def work(comm: Comm, world: int = world) -> None:
            small = world < 4
            chosen = {n: c for n, c in CASES.items() if small or n in FOUR}
            answers = {name: run(case, comm) for name, case in chosen.items()}
            (folder / f"{world}-{comm.rank}.json").write_text(json.dumps(answers))

        ranks(world, folder, work)
    alone = {name: run(case, None) for name, case in CASES.items()}
    (folder / "alone.json").write_text(json.dumps(alone))


def count_bytes(folder: Path) -> None:
    """Bytes of one step, forward and backward, for some numbers of rows, with a graph or not."""

    def work(comm: Comm) -> None:
        answers = {}
        for n, joined in ((10_000, False), (1_000_000, False), (100, True), (10_000, True)):
            dataset, split, graph = problem({"graph": joined}, n)
            source, model = (
                Shards(dataset, split, graph, comm),
                ShardedDIFFormer(model_of({}), comm),
            )
            comm.sent.clear()
            batch = source.observed()
            loss = ShardedObjective(objective_for(dataset.task), comm).loss(
                model(batch.x, batch.graph), batch
            )
            loss.backward()
            model.reduce_gradients()
            answers[f"{n} graph" if joined else str(n)] = dict(comm.sent)
        if comm.rank == 0:
            (folder / "bytes.json").write_text(json.dumps(answers))

    ranks(2, folder, work)


def train(folder: Path, die_at: int) -> None:
    """A run with dropout, so that the generators' states matter too."""
    case = {"graph": True, "model": {"dropout": 0.3}}
    dataset, split, graph = problem(case)
    model = model_of(case)
    first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    with processes() as comm:
        steps = 0

        def hook(*_: Any) -> None:
            nonlocal steps
            steps += model.training
            if steps == die_at and first_life and comm.rank == comm.size - 1:
                folder.with_suffix(".dies").write_text(str(steps))
                os.kill(os.getpid(), signal.SIGKILL)

        settings = TrainSettings(epochs=12, lr=0.02, checkpoint_every=0, batch_size=13)
        model.output.register_forward_pre_hook(hook)
        fit_distributed(model, dataset, split, settings, comm, graph=graph, folder=folder)


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
                time.sleep(3 * SILENCE)  # the link carries nothing any more
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    command, where = sys.argv[1], Path(sys.argv[2])
    if command == "equal":
        equal(where, [int(world) for world in sys.argv[3:]])
    elif command == "bytes":
        count_bytes(where)
    elif command == "calm":
        sys.exit(max(launch(2, lambda: train(where, -1))))
    elif command == "faults":
        faults(where)
    elif command == "link":
        link(where)
    else:
        train(where, int(sys.argv[3]) if len(sys.argv) > 3 else -1)

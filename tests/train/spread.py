"""What is trained over processes, from memory and from parts, and how these are forked."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import PARTS, Split
from difformer.nn.model import DIFFormer
from difformer.shards.folder import ShardFolder
from difformer.shards.store import Manifest, PartRecord, array_writer, part_folder
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Callback
from difformer.train.chunks import recompute_layers
from difformer.train.distributed import fit_distributed, fit_from_parts
from difformer.train.loop import Fit, fit
from difformer.train.objective import objective_for
from difformer.train.parts import Parts
from difformer.train.processes import Comm
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

N = 41
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


# Those that are trained from parts on disk too: what a source decides, rows, edges, batches and
# labels; of the diffusivities, one of each kind.
ON_DISK = (
    "s",
    "s graph",
    "s graph batches",
    "s batches of few rows",
    "s one labelled row",
    "s regression",
    "s multilabel",
    "a",
    "a graph",
    "a graph batches",
    "sharp",
    "sharp input",
    "sharp input batches",
    "landmarks",
    "own weight",
    "identity",
)
BOUNDS = (0, 5, 17, 20, 31, 41)

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


def settings_of(case: dict[str, Any]) -> TrainSettings:
    epochs = case.get("steps", 20 if len(case) < 2 else 3)
    chosen = {name: case.get(name) for name in ("batch_size", "partition")}
    return TrainSettings(epochs=epochs, lr=0.02, eval_every=epochs, **chosen)


def run(case: dict[str, Any], comm: Comm | None, parts: Path | None = None) -> dict[str, Any]:
    """Losses of 20 steps (or as many epochs of batches), predictions after them, and metrics.

    From parts in a folder, of which each process sees its own alone; else from memory.
    """
    dataset, split, graph = problem(case)
    model = model_of(case)
    if case.get("recompute") and comm is not None:
        recompute_layers(model)
    settings, losses, more = settings_of(case), Losses(), {}
    if comm is None:
        source: Any = FullBatch(dataset, split, graph)
        if settings.batch_size is not None:
            source = Parts.of(dataset, split, graph, batch_size=settings.batch_size)
        objective = objective_for(dataset.task)
        result = fit(model, source, objective, split, settings, callbacks=[losses])
    elif parts is None:
        told = {"graph": graph, "callbacks": [losses]}
        result = fit_distributed(model, dataset, split, settings, comm, **told)
    else:
        shards = own_parts(parts, comm)
        result, held, _ = fit_from_parts(model, shards, settings, comm, callbacks=[losses])
        assert held.outputs is not None
        more["outputs"] = held.outputs.tolist()
    predictions = model.eval()(dataset.x, graph).detach().tolist()
    return {"losses": losses.each, "predictions": predictions, "metrics": result.metrics, **more}


def write_parts(
    folder: Path, data: Dataset, split: Split, graph: Graph | None, bounds: tuple[int, ...]
) -> ShardFolder:
    """A dataset as parts, its rows in their order."""
    mark = torch.full((data.num_rows,), -1, dtype=torch.int8)
    for index, part in enumerate(PARTS):
        mark[getattr(split, part)] = index
    y = data.y if data.task == "multiclass" else data.y.reshape(data.num_rows, -1)
    records: list[PartRecord] = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        arrays: dict[str, Any] = {"x": data.x[low:high], "y": y[low:high]}
        arrays |= {"split": mark[low:high], "row": torch.arange(low, high)}
        if graph is not None:
            crow = graph.adjacency.csr.crow_indices().long()[low : high + 1]
            arrays["crow"] = crow - crow[0]
            arrays["col"] = graph.edge_index[0, crow[0] : crow[-1]].int()
            if graph.edge_weight is not None:
                arrays["weight"] = graph.edge_weight[crow[0] : crow[-1]]
        files = {}
        for name, tensor in arrays.items():
            path, array = part_folder(folder, number) / f"{name}.npy", tensor.numpy()
            with array_writer(path, array.dtype, array.shape[1:]) as file:
                file.append(array)
            files[name] = file.record
        counts = [int((mark[low:high] == i).sum()) for i in range(3)]
        records.append(PartRecord(high - low, len(arrays.get("col", ())), 0, *counts, files))
    Manifest(
        data.name,
        data.task,
        data.num_features,
        data.num_outputs,
        tuple(records),
        graph=graph is not None,
    ).write(folder)
    return ShardFolder(folder)


def own_parts(folder: Path, comm: Comm) -> ShardFolder:
    """The dataset as one process sees it: the manifest, and its own parts alone."""
    first, last = ShardFolder(folder).share(comm.rank, comm.size)
    mine = folder / f"seen-{comm.size}-{comm.rank}"
    mine.mkdir(exist_ok=True)
    for name in ("manifest.json", *(part_folder(folder, k).name for k in range(first, last))):
        if not (mine / name).exists():
            (mine / name).symlink_to(folder / name)
    return ShardFolder(mine)


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

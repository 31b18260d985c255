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

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import PARTS, Split
from difformer.nn.model import DIFFormer
from difformer.shards.folder import ShardFolder
from difformer.shards.store import Manifest, PartRecord, array_writer, part_folder
from difformer.train.batches import FullBatch
from difformer.train.callbacks import Callback
from difformer.train.chunks import recompute_layers
from difformer.train.distributed import fit_distributed, fit_from_parts, processes
from difformer.train.loop import Fit, fit
from difformer.train.objective import objective_for
from difformer.train.parts import Parts
from difformer.train.processes import Comm
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

N = 41
BOUNDS = (0, 5, 17, 20, 31, 41)  # of the parts on disk
INPUT = {"learn_qk": False, "compare": "input", "reach": 4.0}


def case(words: str = "", /, steps: int = 3, size: int = 13, **model: Any) -> dict[str, Any]:
    """What is trained: a graph, batches, ...; `disk`: from parts too; `four`: by four as well.

    Parts decide about rows, edges, batches and labels, and one diffusivity of each kind is trained
    from them. Four processes take their time on a small machine.
    """
    return {**dict.fromkeys(words.split(), True), "steps": steps, "size": size, "model": model}


CASES = {
    "s": case("disk four", steps=20),
    "s graph": case("graph disk four", steps=20),
    "s directed weighted graph": case("graph directed"),
    "s graph metis": case("graph metis"),
    "s graph batches": case("graph batches disk"),
    "s graph metis batches": case("graph batches metis four"),
    "s batches of few rows": case("graph batches disk", size=4),
    "s one labelled row": case("graph lonely disk four"),
    "s heads": case("graph", num_heads=2, source=0.2, center=True, learn_tau=True),
    "s whole-tensor norm": case("graph", qk_norm="tensor"),
    "s sparse features": case("graph sparse"),
    "s sparse features batches": case("batches sparse"),
    "s recomputed": case("graph recompute", num_heads=2),
    "s regression": case("regression disk"),
    "s multilabel": case("multilabel graph disk"),
    "a": case("disk four", kernel="sigmoid"),
    "a graph": case("graph disk four", steps=20, kernel="sigmoid", num_heads=2),
    "a graph batches": case("graph batches disk", kernel="sigmoid"),
    "a states": case(kernel="sigmoid", learn_qk=False, use_weight=False),
    "sharp": case("disk four", steps=5, kernel="sharp", num_heads=2),
    "sharp states": case("graph", kernel="sharp", learn_qk=False),
    "sharp first": case(kernel="sharp", learn_qk=False, compare="first"),
    "sharp input": case("graph disk four", kernel="sharp", graph_weight=0.5, **INPUT),
    "sharp learned": case(
        "four", steps=5, kernel="sharp", learn_reach="layer", num_heads=1, **INPUT
    ),
    "sharp learned, identity maps": case(
        "graph", steps=5, kernel="sharp", learn_reach="shared", qk_init="identity"
    ),
    "sharp input metis": case("graph metis", kernel="sharp", **INPUT),
    "sharp near": case("four", kernel="sharp", exact_rows=5, **INPUT),
    "sharp input batches": case("batches disk", kernel="sharp", **INPUT),
    "sharp input sparse": case("sparse", kernel="sharp", **INPUT),
    "landmarks": case("disk four", kernel="landmarks", num_landmarks=9, **INPUT),
    "landmarks first": case(
        "graph", kernel="landmarks", compare="first", num_landmarks=9, reach=4.0
    ),
    "own weight": case("graph disk", self_weight=True, residual=True, graph_norm="row"),
    "neighbours' mean, directed, batches": case("graph directed batches", graph_norm="row"),
    "softmax": case(kernel="softmax"),
    "identity": case("graph disk", kernel="identity"),
    "constant": case("graph", kernel="constant"),
}


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
    y = {"multilabel": (score > 0).double(), "regression": score, "multiclass": score.argmax(1)}
    task = next((task for task in y if task in case), "multiclass")
    edges = torch.randint(n, (2, 4 * n), generator=generator)
    graph = None
    if case.get("graph"):
        directed = case.get("directed", False)
        weight = torch.rand(4 * n, generator=generator, dtype=torch.float64) if directed else None
        graph = Graph.from_edges(edges, n, weight, undirected=not directed, self_loops=True)
    train = [3] if case.get("lonely") else list(range(0, n, 3))
    split = Split("s", train, list(range(1, n, 3)), list(range(2, n, 3)))
    x = x.to_sparse_csr() if case.get("sparse") else x
    return Dataset("toy", x, y[task], task), split, graph


def model_of(case: dict[str, Any]) -> DIFFormer:
    with seeded(0):
        return DIFFormer(5, 8, 3, num_layers=2, **case["model"]).double()


def run(case: dict[str, Any], comm: Comm | None, parts: Path | None = None) -> dict[str, Any]:
    """Losses of 20 steps (or as many epochs of batches), predictions after them, and metrics.

    From parts in a folder, of which each process sees its own alone; else from memory.
    """
    dataset, split, graph = problem(case)
    model, losses, more = model_of(case), Losses(), {}
    settings = TrainSettings(
        epochs=case["steps"],
        lr=0.02,
        eval_every=case["steps"],
        batch_size=case["size"] if case.get("batches") else None,
        partition="metis" if case.get("metis") else None,
    )
    if comm is None:
        source: Any = FullBatch(dataset, split, graph)
        if settings.batch_size is not None:
            source = Parts.of(dataset, split, graph, batch_size=settings.batch_size)
        objective = objective_for(dataset.task)
        result = fit(model, source, objective, split, settings, callbacks=[losses])
    elif parts is None:
        if case.get("recompute"):
            recompute_layers(model)
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
    folder: Path,
    data: Dataset,
    split: Split,
    graph: Graph | None,
    bounds: tuple[int, ...] = BOUNDS,
) -> ShardFolder:
    """A dataset as parts, its rows in their order."""
    mark = torch.full((data.num_rows,), -1, dtype=torch.int8)
    for index, part in enumerate(PARTS):
        mark[getattr(split, part)] = index
    y = data.y if data.task == "multiclass" else data.y.reshape(data.num_rows, -1)
    rows = {"x": data.x, "y": y, "split": mark, "row": torch.arange(data.num_rows)}
    records: list[PartRecord] = []
    for number, (low, high) in enumerate(pairwise(bounds)):
        arrays = {name: whole[low:high] for name, whole in rows.items()}
        if graph is not None:
            crow = graph.adjacency.csr.crow_indices().long()[low : high + 1]
            arrays |= {
                "crow": crow - crow[0],
                "col": graph.edge_index[0, crow[0] : crow[-1]].int(),
            }
        files = {}
        for name, tensor in arrays.items():
            path, array = part_folder(folder, number) / f"{name}.npy", tensor.numpy()
            with array_writer(path, array.dtype, array.shape[1:]) as file:
                file.append(array)
            files[name] = file.record
        counts = [int((mark[low:high] == i).sum()) for i in range(3)]
        records.append(PartRecord(high - low, len(arrays.get("col", ())), 0, *counts, files))
    width, joined = (data.num_features, data.num_outputs), graph is not None
    Manifest(data.name, data.task, *width, tuple(records), graph=joined).write(folder)
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


def ranks(world: int, work: Callable[[Comm], Any]) -> None:
    """Fork `world` processes that join one job."""

    def joined() -> None:
        with processes() as comm:
            try:
                work(comm)
            except BaseException:
                traceback.print_exc()
                raise

    codes = launch(world, joined)
    if any(codes):
        sys.exit(f"ranks ended with {codes}")

"""Run by test_fromparts.py in a process of its own, which forks the ranks of a job.

parts.py equal FOLDER WORLD...   the cases of CASES from parts, on WORLD processes, for each WORLD,
                                 each of which sees its own parts alone
parts.py memory FOLDER           the most memory that each of 1, 2 and 4 processes holds above its
                                 start, and one process that trains in batches
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from spread import CASES as ALL
from spread import Losses, answer, model_of, problem, ranks, run, settings_of

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import PARTS, Split
from difformer.nn.model import DIFFormer
from difformer.shards.folder import ShardFolder
from difformer.shards.store import ArrayWriter, Manifest, PartRecord, part_folder
from difformer.train.distributed import fit_from_parts
from difformer.train.memory import memory_from_here
from difformer.train.processes import Comm
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

# What a source decides: rows, edges, batches, labels. Of the diffusivities, one of each kind.
CASES = {
    name: ALL[name]
    for name in (
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
}
FOUR = ("s", "s graph", "s graph batches", "s one labelled row", "a", "a graph", "landmarks")
BOUNDS = (0, 5, 17, 20, 31, 41)


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
            with ArrayWriter(path, array.dtype, array.shape[1:]) as file:
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


def from_parts(case: dict[str, Any], folder: Path, comm: Comm) -> dict[str, Any]:
    """What `spread.run` does, from parts."""
    model, losses, settings = model_of(case), Losses(), settings_of(case)
    shards = own_parts(folder, comm)
    result, source, _ = fit_from_parts(model, shards, settings, comm, callbacks=[losses])
    assert source.outputs is not None
    return {**answer(model, case, losses, result), "outputs": source.outputs.tolist()}


def equal(folder: Path, worlds: list[int]) -> None:
    for name, case in CASES.items():
        write_parts(folder / name, *problem(case), BOUNDS)
    for world in worlds:

        def work(comm: Comm, world: int = world) -> None:
            chosen = {n: c for n, c in CASES.items() if world < 4 or n in FOUR}
            answers = {n: from_parts(case, folder / n, comm) for n, case in chosen.items()}
            (folder / f"{world}-{comm.rank}.json").write_text(json.dumps(answers))

        ranks(world, folder, work)
    alone = {name: run(case, None) for name, case in CASES.items()}
    (folder / "alone.json").write_text(json.dumps(alone))


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
        from_parts({"graph": True, "batch_size": batch_size and 13}, folder / "small", comm)
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
        memory(where)

"""The constants of the cost of a step: time, memory and bytes sent.

python -m benchmarks.scale            writes results/benchmarks/scale.json

Seconds are processor seconds of one core, which depend little on other programs. The cost of a
layer is the difference between models with more and fewer layers, divided by the difference in
layers.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import nn

from benchmarks.measure import extra_memory, write_results
from difformer import DIFFormer, Graph
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.train.chunks import recompute_layers
from difformer.train.objective import CrossEntropy
from difformer.train.parts import Parts
from difformer.train.processes import Comm
from difformer.train.sharded import ShardedDIFFormer

ROWS, DEGREE, WIDTHS = 10_000, 20, (64, 128, 256)


def stepper(
    rows: int, width: int, layers: int, *, degree: int = 0, recompute: bool = False
) -> Callable[[], None]:
    """A step, forward and backward, ready to run."""
    torch.manual_seed(0)
    model = DIFFormer(64, width, 2, num_layers=layers)
    if recompute:
        recompute_layers(model)
    x, y = torch.randn(rows, 64), torch.randint(2, (rows,))
    graph = None
    if degree:
        graph = Graph.from_edges(
            torch.randint(rows, (2, rows * degree // 2)), rows, undirected=True
        )

    def step() -> None:
        nn.functional.cross_entropy(model(x, graph), y).backward()

    return step


def layer_seconds(width: int, rounds: int = 15) -> dict[str, float]:
    """Processor seconds of one layer of a step: plain, with a graph, computed again.

    All models in turn, and of each the least of its times: what else the machine does only adds.
    """
    kinds: dict[str, Any] = {
        "plain": {},
        "joined": {"degree": DEGREE},
        "again": {"recompute": True},
    }
    steps = {
        (kind, layers): stepper(ROWS, width, layers, **options)
        for kind, options in kinds.items()
        for layers in (1, 3)
    }
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(rounds):
        for case, step in steps.items():
            gc.collect()
            begin = time.process_time()
            step()
            least[case] = min(least[case], time.process_time() - begin)
    return {kind: (least[kind, 3] - least[kind, 1]) / 2 for kind in kinds}


def layer_bytes(recompute: bool, width: int = 64, rows: int = 400_000) -> float:
    """Bytes one more layer of a step needs for each row and unit of width.

    States of so many rows are blocks of their own, which the C library does not cut up.
    """
    options = {"rows": rows, "width": width, "recompute": recompute}
    more, fewer = (extra_memory(partial(stepper, layers=n, **options))[0] for n in (6, 2))
    return 1e6 * (more - fewer) / (4 * rows * width)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    comm, width, rows = Comm(), 128, 2_000
    torch.manual_seed(0)
    edges = torch.randint(rows, (2, 5 * rows))
    graph = Graph.from_edges(edges, rows, undirected=True)
    dataset = Dataset("toy", torch.randn(rows, 8), torch.randint(2, (rows,)))
    split = Split("all", torch.arange(rows), torch.zeros(0).long(), torch.zeros(0).long())
    own = DIFFormer(8, width, 2, num_layers=3)
    batch = Parts.of(dataset, split, graph, own, comm).observed()
    model = ShardedDIFFormer(own, comm)
    comm.sent.clear()
    objective = CrossEntropy(comm=comm)
    objective.loss(model(batch.x, batch.graph), batch).backward()
    model.reduce_gradients()
    sent = dict(comm.sent)
    message = torch.zeros(width * width + 2 * width + 1)
    begin = time.perf_counter()
    for _ in range(50):
        dist.all_reduce(message)
    spent = (time.perf_counter() - begin) / 50
    if rank == 0:
        found = {
            "width": width,
            "layers": 3,
            "context": sent["context"],
            "boundary": sent["boundary"],
            "boundary_rows": int(batch.graph.boundary.numel()),
            "gradients": sent["gradients"],
            "all_reduce_ms": 1e3 * spent,
        }
        torch.save(found, f"{folder}/found")
    dist.barrier()
    dist.destroy_process_group()


def sent() -> dict[str, Any]:
    """What one of two processes sends in a step of three layers, and how long a message takes."""
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_rank, (folder,), nprocs=2)
        return torch.load(f"{folder}/found")


def main() -> None:
    """Measure and write the result file."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {"rows": ROWS, "degree": DEGREE, "sent": sent()}
    for width in WIDTHS:
        layer = layer_seconds(width)
        plain = layer["plain"]
        results[f"width {width}"] = {
            "row_width2_ns": 1e9 * plain / (ROWS * width * width),
            "edge_width_ns": 1e9 * (layer["joined"] - plain) / (ROWS * DEGREE * width),
            "recompute_ratio": layer["again"] / plain,
        }
        print(width, results[f"width {width}"], flush=True)
    results["layer_bytes_a_row_and_width"] = layer_bytes(False)
    results["layer_bytes_recomputed"] = layer_bytes(True)
    write_results("scale", results)


if __name__ == "__main__":
    main()

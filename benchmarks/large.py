"""A graph of Pokec's size: mini-batches, PyTorch Geometric's loader, and all rows at once.

python -m benchmarks.large [--rows N] [--loader-batches B] [--cases CASE ...] [--folder DIR]
    writes results/benchmarks/large.json (another NAME.json with --name NAME)

The network is generated once into a temporary folder. Each case runs in its own process and loads
only what it needs. Peak memory is that of the whole process while it trains, data and graph
included. All cases have the same model, the released form with 3 layers of width 128, the loss on
the training rows (10 %), and one step of Adam per batch. The loader is used with our layers
(`theirs`), and with the paper's algorithms as printed (`printed`). Our layers keep freed memory, as
`difformer train` does. The printed algorithms run without, as in a script, and once more with it
(`printed_kept`).
"""

from __future__ import annotations

import argparse
import gc
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.measure import (
    given_words,
    in_fresh_process,
    peak_from_here,
    result_file,
    status,
    write_results,
)
from benchmarks.transcription import Transcription
from difformer import DIFFormer, Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import Batch, Dataset
from difformer.data.split import ratio_split
from difformer.nn.config import RECIPES
from difformer.train.batches import FullBatch
from difformer.train.chunks import CHUNK_ROWS, predict_in_chunks, recompute_layers
from difformer.train.memory import keep_freed_memory
from difformer.train.parts import Parts
from difformer_paper.datasets.social import PEOPLE, load

LAYERS, WIDTH, BATCH = 3, 128, 100_000


def prepare(folder: Path, rows: int) -> None:
    """Generate the network and write what the cases read to the folder, once."""
    if (folder / "edges.npy").exists():
        return
    data = load(rows=rows, features=str(folder / "x.npy"))
    assert data.edge_index is not None
    graph = Graph.from_edges(data.edge_index, rows, undirected=True, self_loops=True)
    np.save(folder / "y.npy", data.y.numpy())
    csr = graph.adjacency.csr
    for name, tensor in {"crow": csr.crow_indices(), "col": csr.col_indices()}.items():
        np.save(folder / f"{name}.npy", tensor.numpy())
    np.save(folder / "value.npy", csr.values().numpy())
    np.save(folder / "edges.npy", graph.edge_index.numpy())


def read(folder: Path, name: str, *, mapped: bool = False) -> Tensor:
    """An array of the folder, in memory or mapped from its file."""
    mode: Any = "c" if mapped else None
    return torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode=mode))


def graph_of(folder: Path) -> Graph:
    """The prepared graph: 8 bytes per edge."""
    crow, col, value = (read(folder, name) for name in ("crow", "col", "value"))
    n = crow.numel() - 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Ss]parse.*")
        csr = torch.sparse_csr_tensor(crow, col, value, size=(n, n), check_invariants=False)
    return Graph(None, n, SparseMatrix(csr, csr))


def model_of(features: int) -> DIFFormer:
    torch.manual_seed(0)
    return DIFFormer(features, WIDTH, 2, **{**RECIPES["released"], "num_layers": LAYERS})


def train(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
    """Train one step per batch: seconds in total, and seconds in the steps of the model."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    number, inside, begin, cpu = 0, 0.0, time.perf_counter(), time.process_time()
    loss = torch.tensor(math.nan)
    for batch in batches:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        output = model(batch.x, batch.graph)
        loss = nn.functional.cross_entropy(output[batch.rows], batch.y[batch.rows])
        del output
        loss.backward()
        optimizer.step()
        number += 1
        inside += time.perf_counter() - start
    seconds = time.perf_counter() - begin
    return {
        "batches": number,
        "seconds": seconds,
        "seconds_in_steps": inside,
        "processor_seconds": time.process_time() - cpu,
        "loss": float(loss.detach()),
    }


def drain(batches: Iterable[Any]) -> dict[str, Any]:
    """Go over the batches without a model."""
    begin, cpu = time.perf_counter(), time.process_time()
    number = sum(1 for _ in batches)
    return {
        "batches": number,
        "seconds": time.perf_counter() - begin,
        "processor_seconds": time.process_time() - cpu,
    }


def partitions_of(folder: Path) -> Parts:
    """Random partitions of the network."""
    dataset = Dataset("social", read(folder, "x"), read(folder, "y"))
    split = ratio_split(dataset.y, (0.1, 0.1, 0.8))
    return Parts.of(dataset, split, graph_of(folder), batch_size=BATCH, chunk=CHUNK_ROWS)


def ours(folder: Path, batches: int) -> dict[str, Any]:
    """An epoch of random partitions."""
    keep_freed_memory()
    source = partitions_of(folder)
    model = model_of(source.observed().x.shape[1])
    peak_from_here()
    return train(model, source.epoch(1))


def feed_only(folder: Path, batches: int) -> dict[str, Any]:
    """The batches of an epoch of random partitions, and no model."""
    source = partitions_of(folder)
    peak_from_here()
    return drain(source.epoch(1))


def loader_of(folder: Path) -> Any:
    from torch_geometric.data import Data
    from torch_geometric.loader import RandomNodeLoader

    x, y, edges = read(folder, "x"), read(folder, "y"), read(folder, "edges")
    trains = torch.zeros(len(y), dtype=torch.bool)
    trains[ratio_split(y, (0.1, 0.1, 0.8)).train] = True
    data = Data(x=x, y=y, edge_index=edges, trains=trains)
    return RandomNodeLoader(data, math.ceil(len(y) / BATCH), shuffle=True)


def first(loader: Any, batches: int) -> Iterable[Batch]:
    for number, part in enumerate(loader):
        if number == batches:
            return
        yield Batch(part.x, part.y, part.edge_index, part.trains.nonzero().squeeze(1))


def theirs(folder: Path, batches: int) -> dict[str, Any]:
    """The same model on the first batches of PyTorch Geometric's RandomNodeLoader."""
    keep_freed_memory()
    return _by_loader(folder, batches, lambda model: model)


def printed(folder: Path, batches: int) -> dict[str, Any]:
    """The same batches, weights and outputs, computed as the paper prints it."""
    return _by_loader(folder, batches, Transcription)


def printed_kept(folder: Path, batches: int) -> dict[str, Any]:
    """The same, freed memory kept as our layers keep it."""
    keep_freed_memory()
    return printed(folder, batches)


def _by_loader(folder: Path, batches: int, run: Callable[[DIFFormer], nn.Module]) -> dict[str, Any]:
    torch.manual_seed(0)
    loader = loader_of(folder)
    model = run(model_of(loader.data.x.shape[1]))
    peak_from_here()
    return train(model, first(loader, batches))


def loader_only(folder: Path, batches: int) -> dict[str, Any]:
    """The first batches of the loader, and no model."""
    torch.manual_seed(0)
    loader = loader_of(folder)
    peak_from_here()
    return drain(first(loader, batches))


def full(folder: Path, batches: int) -> dict[str, Any]:
    """An epoch of one step on all rows, layers computed again, features from a mapped file."""
    keep_freed_memory()
    dataset = Dataset("social", read(folder, "x", mapped=True), read(folder, "y"))
    source = FullBatch(dataset, ratio_split(dataset.y, (0.1, 0.1, 0.8)), graph_of(folder))
    model = recompute_layers(model_of(dataset.num_features))
    peak_from_here()
    return train(model, source.epoch(1))


def evaluation(folder: Path, batches: int) -> dict[str, Any]:
    """All rows through the model in chunks, exactly."""
    x, graph = read(folder, "x", mapped=True), graph_of(folder)
    model = model_of(x.shape[1])
    peak_from_here()
    return drain(predict_in_chunks(model, x, graph) for _ in range(1))


CASES = {
    f.__name__: f
    for f in (feed_only, loader_only, ours, theirs, printed, printed_kept, evaluation, full)
}


def _child(name: str, folder: Path, batches: int, sender: Any) -> None:
    result = CASES[name](folder, batches)
    gc.collect()
    sender.send({**result, "peak_mb": round(status("VmHWM"))})


def main() -> None:
    """Measure every case and write the result file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=PEOPLE)
    parser.add_argument("--loader-batches", type=int, default=5, help="of an epoch of the loader")
    parser.add_argument("--folder", type=Path, help="where the network is, or is put")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--name", default="large", help="of the result file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = given.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, given.rows)
        results: dict[str, Any] = {
            "rows": given.rows,
            "edges": int(np.load(folder / "col.npy", mmap_mode="r").shape[0]),
            "batch": BATCH,
            "layers": LAYERS,
            "width": WIDTH,
            "batches_an_epoch": math.ceil(given.rows / BATCH),
        }
        for name in given.cases:
            results[name] = found = in_fresh_process(_child, name, folder, given.loader_batches)
            found["seconds_a_batch"] = found["seconds"] / found["batches"]
            print(
                f"{name:12} {found['batches']:3} batches {found['seconds']:8.1f} s "
                f"{found['peak_mb']:8,} MB",
                flush=True,
            )
    for key, theirs_, ours_ in (
        ("speed_up", "theirs", "ours"),
        ("speed_up_printed", "printed", "ours"),
        ("speed_up_printed_kept", "printed_kept", "ours"),
        ("speed_up_feeding", "loader_only", "feed_only"),
    ):
        if {theirs_, ours_} <= results.keys():
            a, b = results[theirs_], results[ours_]
            results[key] = a["seconds_a_batch"] / b["seconds_a_batch"]
            spent = [r["processor_seconds"] / r["batches"] for r in (a, b)]
            results[f"{key}_processor"] = spent[0] / spent[1]
    words = given_words(parser, given)
    write_results("large", results, words=words, path=result_file(given.name))


if __name__ == "__main__":
    main()

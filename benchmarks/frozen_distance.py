"""How close frozen predictions of new rows are to running the model on all rows again.

python -m benchmarks.frozen_distance [DATASET ...]   writes results/benchmarks/frozen_distance.json;
datasets that are not given are kept

A tenth of the rows is left out of training and freezing. Their frozen predictions, with their edges
from known rows, are compared with those of the same weights on all rows together.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import difformer
from benchmarks.measure import read_results, result_file, write_results
from difformer.core.graph import Graph
from difformer.data.neighbours import nearest_neighbours
from difformer.data.split import random_split
from difformer.nn.config import RECIPES
from difformer.train.batches import FullBatch
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

EPOCHS = 60
CASES = (
    ("digits", False),
    ("digits", True),
    ("cora", True),
    ("20news", False),
    ("20news", True),
)


def measure(name: str, *, graph: bool, epochs: int = EPOCHS) -> dict[str, Any]:
    data = difformer.load_dataset(name)
    n = data.num_rows
    x = data.x.to_dense() if data.x.layout != torch.strided else data.x
    edges = data.edge_index
    if graph and edges is None:
        found = nearest_neighbours(x, 7)
        edges = torch.cat([found, found.flip(0)], dim=1)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    new = order[: n // 10].sort().values
    known = order[n // 10 :].sort().values
    place = torch.full((n,), -1)
    place[known] = torch.arange(known.numel())
    inner = None
    if graph and edges is not None:
        both = (place[edges] >= 0).all(0)
        inner = Graph.from_edges(place[edges[:, both]], known.numel(), self_loops=True)
    part = difformer.Dataset(name, x[known], data.y[known])
    split = random_split(part.y, 0, num_val=300, num_test=300)
    with seeded(0):
        recipe = RECIPES["stable" if graph else "alone"]
        model = difformer.DIFFormer(data.num_features, 64, data.num_outputs, **recipe)
    settings = TrainSettings(epochs=epochs, lr=0.01, weight_decay=5e-4)
    fit(model, FullBatch(part, split, inner), objective_for("multiclass"), split, settings)
    model = model.double().eval()
    like = torch.zeros(0, dtype=torch.float64)
    frozen = model.freeze(x[known].double(), None if inner is None else inner.to(like))
    incoming = outer = None
    if graph and edges is not None:
        outer = Graph.from_edges(edges, n, self_loops=True).to(like)
        where = torch.full((n,), -1)
        where[new] = torch.arange(new.numel())
        mixed = (place[edges[0]] >= 0) & (where[edges[1]] >= 0)
        incoming = torch.stack([place[edges[0, mixed]], where[edges[1, mixed]]])
    with torch.no_grad():
        again = model(x.double(), outer)[new].softmax(1)
        answer = frozen(x[new].double(), incoming).softmax(1)
    hits = [float((p.argmax(1) == data.y[new]).double().mean()) for p in (answer, again)]
    apart = (answer - again).abs()
    return {
        "known": known.numel(),
        "new": new.numel(),
        "graph": graph,
        "same_label": float((answer.argmax(1) == again.argmax(1)).double().mean()),
        "mean_probability_distance": float(apart.sum(1).mean() / 2),
        "largest_probability_distance": float(apart.max()),
        "accuracy_frozen": hits[0],
        "accuracy_run_again": hits[1],
    }


def main() -> None:
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    kept = read_results(result_file("frozen_distance")) if wanted else {}
    results: dict[str, Any] = {}
    for name, graph in CASES:
        title = f"{name}, {'with a graph' if graph else 'no graph'}"
        if wanted and name not in wanted:
            results |= {title: kept[title]} if title in kept else {}
            continue
        results[title] = measure(name, graph=graph)
        print(title, results[title], flush=True)
    write_results("frozen_distance", results)


if __name__ == "__main__":
    sys.exit(main())

"""A small graph that every system can run on, and models of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Dataset
from difformer.data.split import Split
from difformer.jobs.rows import given_graph, graph_for
from difformer.systems.registry import get_system
from difformer.train.batches import FullBatch
from difformer.train.folder import FitResult
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings


def _make(n: int = 40) -> Dataset:
    """Two communities with features and edges that agree with the labels."""
    generator = torch.Generator().manual_seed(0)
    y = (torch.arange(n) % 2).long()
    x = torch.randn(n, 6, generator=generator) + 1.5 * y.unsqueeze(1)
    same = y.unsqueeze(0) == y.unsqueeze(1)
    edges = torch.rand(n, n, generator=generator) < torch.where(same, 0.2, 0.03)
    source, target = torch.nonzero(edges.triu(1), as_tuple=True)
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return Dataset("small", x, y, edge_index=both, class_names=("a", "b"))


SMALL = _make()
X, N = SMALL.x, SMALL.num_rows
GRAPH: Any = given_graph(SMALL)
THIRDS = Split("thirds", *torch.arange(N).split([N // 3, N // 6 + 1, N - N // 3 - N // 6 - 1]))
_ROW = torch.arange(6)
RING = Graph.from_edges(  # six rows, each with its loop
    torch.stack([_ROW, (_ROW + 1) % 6]), 6, undirected=True, self_loops=True
)


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def build(name: str, data: Dataset = SMALL, seed: int = 3, **options: object) -> Any:
    """A system's model from a fixed seed, in eval mode."""
    system = get_system(name)
    with seeded(seed):
        model = system.build(system.configure(**options), data.num_features, data.num_outputs)
    return model.eval()


def with_labels(rows: Tensor) -> Batch:
    """A batch that knows the labels of those rows alone."""
    y = torch.full_like(SMALL.y, -1)
    y[rows] = SMALL.y[rows]
    return Batch(X, y, GRAPH, rows)


def along(graph: Graph, weight: Tensor | float = 1.0) -> Tensor:
    """The dense matrix of weights along the edges of a graph."""
    dense = torch.zeros(graph.num_nodes, graph.num_nodes)
    dense[graph.edge_index[1], graph.edge_index[0]] = torch.as_tensor(weight).detach()
    return dense


def run(
    name: str, data: Dataset, split: Split, *, seed: int = 0, train: Any = None, **options: Any
) -> tuple[Any, FitResult, Tensor]:
    """The model after a short fit, its result and its output for all rows."""
    system = get_system(name)
    model = build(name, data, seed, **options)
    source = FullBatch(data, split, graph_for(system, system.configure(**options), data))
    settings = TrainSettings(**{**system.train, "epochs": 30, "seed": seed, **(train or {})})
    result = fit(model, source, objective_for(data.task), split, settings)
    with torch.no_grad():
        return model, result, source.evaluate(model.eval())

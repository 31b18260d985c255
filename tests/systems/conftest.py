"""A small graph that every system can run on, and Cora."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Dataset
from difformer.data.registry import load_dataset
from difformer.jobs.rows import graph_for
from difformer.systems.registry import get_system
from difformer.train.seeding import seeded


def make_small(n: int = 40, seed: int = 0) -> Dataset:
    """Two communities with features and edges that agree with the labels."""
    generator = torch.Generator().manual_seed(seed)
    y = (torch.arange(n) % 2).long()
    x = torch.randn(n, 6, generator=generator) + 1.5 * y.unsqueeze(1)
    same = y.unsqueeze(0) == y.unsqueeze(1)
    edges = torch.rand(n, n, generator=generator) < torch.where(same, 0.2, 0.03)
    source, target = torch.nonzero(edges.triu(1), as_tuple=True)
    both = torch.stack([torch.cat([source, target]), torch.cat([target, source])])
    return Dataset("small", x, y, edge_index=both, class_names=("a", "b"))


@pytest.fixture
def small() -> Dataset:
    return make_small()


@pytest.fixture
def ring() -> Graph:
    """Six rows in a ring, each with its loop."""
    row = torch.arange(6)
    return Graph.from_edges(torch.stack([row, (row + 1) % 6]), 6, undirected=True, self_loops=True)


@pytest.fixture
def cora() -> Dataset:
    return load_dataset("cora")


@pytest.fixture
def build() -> Callable[..., nn.Module]:
    """build(name, dataset, **options): a system's model from a fixed seed, in eval mode."""

    def make(name: str, dataset: Dataset, **options: object) -> nn.Module:
        system = get_system(name)
        with seeded(3):
            return system.build(system.configure(**options), dataset.num_features, 2).eval()

    return make


@pytest.fixture
def own_graph() -> Callable[[Dataset], Graph]:
    """own_graph(dataset): its edges, both ways, with loops."""
    return make_graph


@pytest.fixture
def with_labels() -> Callable[[Dataset, Tensor], Batch]:
    """with_labels(dataset, rows): a batch that knows the labels of those rows alone."""

    def make(dataset: Dataset, rows: Tensor) -> Batch:
        y = torch.full_like(dataset.y, -1)
        y[rows] = dataset.y[rows]
        return Batch(dataset.x, y, make_graph(dataset), rows)

    return make


def make_graph(dataset: Dataset) -> Graph:
    system = get_system("gcn")
    graph = graph_for(system, system.configure(), dataset)
    assert graph is not None
    return graph

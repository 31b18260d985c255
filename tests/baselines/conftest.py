"""A small graph that every system can run on, and Cora."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from difformer.core.graph import Graph
from difformer.data import Dataset, load_dataset


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
def cora(data_root: Path) -> Dataset:
    return load_dataset("cora", data_root)

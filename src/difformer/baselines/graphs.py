"""The graph builders: which edges a system sees. kNN and dense variants are these × a model."""

from __future__ import annotations

from typing import Any

import torch

from difformer.baselines.system import System
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset

__all__ = ["dense_graph", "given_graph", "graph_for", "knn_graph"]


def graph_for(system: System, config: Any, dataset: Dataset) -> Graph | None:
    """The graph a system is to be given with this data, or None."""
    if system.graph == "none":
        return None
    if system.graph == "knn":
        return knn_graph(dataset, config.k, config.metric)
    if system.graph == "dense":
        return dense_graph(dataset.num_rows)
    return given_graph(dataset)


def given_graph(dataset: Dataset) -> Graph | None:
    """The data's own graph, undirected and with one loop a row, or None where it has none."""
    if dataset.edge_index is None:
        return None
    return Graph.from_edges(
        dataset.edge_index,
        dataset.num_rows,
        dataset.edge_weight,
        undirected=True,
        self_loops=True,
    )


def knn_graph(dataset: Dataset, k: int, metric: str) -> Graph:
    """Each row and its k nearest by features, in either direction, and one loop a row."""
    from difformer.data.neighbours import nearest_neighbours

    edges = nearest_neighbours(dataset.x, k, metric=metric)
    return Graph.from_edges(edges, dataset.num_rows, undirected=True, self_loops=True)


def dense_graph(n: int) -> Graph:
    """All n² pairs."""
    row = torch.arange(n)
    return Graph.from_edges(torch.stack([row.repeat(n), row.repeat_interleave(n)]), n)

"""The graph builders: which edges a system sees. kNN variants are these × a model."""

from __future__ import annotations

from typing import Any

from difformer.baselines.system import System
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset

__all__ = ["given_graph", "graph_for", "knn_graph"]


def graph_for(system: System, config: Any, dataset: Dataset) -> Graph | None:
    """The graph a system is to be given with this data, or None."""
    if system.graph in ("none", "dense"):  # all pairs of one dataset need no list of them
        return None
    if system.graph == "knn":
        return knn_graph(dataset, config.k, config.metric)
    return given_graph(dataset)


def given_graph(dataset: Dataset) -> Graph | None:
    """The data's own graph, undirected and with one loop a row, or None where it has none."""
    if dataset.edge_index is None:
        return None
    return Graph.undirected_with_loops(dataset.edge_index, dataset.num_rows, dataset.edge_weight)


def knn_graph(dataset: Dataset, k: int, metric: str) -> Graph:
    """Each row and its k nearest by features, in either direction, and one loop a row."""
    from difformer.data.neighbours import nearest_neighbours

    edges = nearest_neighbours(dataset.x, k, metric=metric)
    return Graph.undirected_with_loops(edges, dataset.num_rows)

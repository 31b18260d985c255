"""The graph that a system is given: the data's own, or one of nearest neighbours."""

from __future__ import annotations

from typing import Any

from difformer.baselines.system import Neighbours, System
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset

__all__ = ["given_graph", "graph_for", "knn_graph"]


def graph_for(system: System, config: Any, dataset: Dataset) -> Graph | None:
    """The graph that a system is given with this data, or None."""
    if system.graph in ("none", "dense"):  # all pairs of one dataset need no edge list
        return None
    if system.graph == "knn":
        return knn_graph(dataset, config)
    return given_graph(dataset)


def given_graph(dataset: Dataset) -> Graph | None:
    """The data's own graph, undirected and with one loop per row, or None if it has none."""
    if dataset.edge_index is None:
        return None
    return Graph.undirected_with_loops(dataset.edge_index, dataset.num_rows, dataset.edge_weight)


def knn_graph(dataset: Dataset, options: Neighbours) -> Graph:
    """Each row and its nearest by features, and one loop per row."""
    from difformer.data.neighbours import neighbour_graph

    edges, weight = neighbour_graph(
        dataset.x,
        options.k,
        metric=options.metric,
        mutual=options.mutual,
        weights=options.weights,
    )
    return Graph.undirected_with_loops(edges, dataset.num_rows, weight)

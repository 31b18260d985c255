"""A graph for all steps of a series, or one for each, as edges between its nodes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from difformer.data.series import Series
from difformer.estimators.graphs import Edges, is_pair, read_graph

__all__ = ["read_step_graphs"]


def read_step_graphs(graph: Any, series: Series) -> tuple[Edges, ...]:
    """() without a graph, one entry for one graph, or one for each of the T steps. O(e)."""
    if graph is None:
        return ()
    if not isinstance(graph, list | tuple) or is_pair(graph) or _is_edge_list(graph):
        graphs: list[Any] = [graph]
    else:
        graphs = list(cast("list[Any]", graph))
    steps, nodes = series.values.shape
    if len(graphs) not in (0, 1, steps):
        raise ValueError(f"graph must be one, or one for each of {steps} steps, got {len(graphs)}")
    return tuple(read_graph(one, nodes, ids=series.names or None, what="node") for one in graphs)


def _is_edge_list(graph: Any) -> bool:
    """A nested list of node numbers, (2, e) or (e, 2)."""
    rows = cast("list[Any]", graph)
    return bool(rows) and all(
        isinstance(row, list | tuple) and len(row) and np.isscalar(row[0]) for row in rows
    )

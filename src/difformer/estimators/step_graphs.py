"""A graph for all steps of a series, or one for each, as edges between its nodes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from scipy import sparse

from difformer.core.graph import Graph
from difformer.data.series import Series
from difformer.data.snapshots import Edges
from difformer.estimators.graphs import read_graph

__all__ = ["read_step_graphs"]


def read_step_graphs(graph: Any, series: Series) -> tuple[Edges, ...]:
    """() without a graph, one entry for one graph, or one for each of the T steps. O(e)."""
    if graph is None:
        return ()
    steps = len(series.values)
    if isinstance(graph, tuple) and _is_pair(cast("tuple[Any, ...]", graph)):
        return (_read(graph, series),)
    if not isinstance(graph, list | tuple):
        return (_read(graph, series),)
    graphs = cast("list[Any]", list(graph))
    if not graphs:
        return ()
    if _is_edge_list(graphs):
        return (_read(np.asarray(graphs), series),)
    if len(graphs) not in (1, steps):
        raise ValueError(f"graph must be one, or one for each of {steps} steps, got {len(graphs)}")
    return tuple(_read(one, series) for one in graphs)


def _is_pair(graph: tuple[Any, ...]) -> bool:
    """(edge_index, edge_weight or None), as opposed to a graph a step."""
    if len(graph) != 2:
        return False
    index, weight = graph
    if weight is not None and (isinstance(weight, tuple) or np.ndim(weight) != 1):
        return False
    return not isinstance(index, tuple) and np.ndim(index) == 2


def _is_edge_list(graphs: list[Any]) -> bool:
    """A nested list of node numbers, (2, e) or (e, 2)."""
    return all(isinstance(row, list | tuple) and len(row) and np.isscalar(row[0]) for row in graphs)


def _read(graph: Any, series: Series) -> Edges:
    n, weight = series.values.shape[1], None
    if isinstance(graph, Graph):
        if graph.num_nodes != n:
            raise ValueError(f"graph must have the series' {n} nodes, got {graph.num_nodes}")
        return graph.edge_index, graph.edge_weight
    if sparse.issparse(graph):
        if graph.shape != (n, n):
            raise ValueError(f"graph must be ({n}, {n}), one row a node, got {graph.shape}")
        coo = graph.tocoo()
        index, weight = np.stack([coo.row, coo.col]), coo.data
    elif hasattr(graph, "adjacency") and hasattr(graph, "edges"):  # networkx
        return read_graph(graph, n, index=series.names or None)
    elif hasattr(graph, "columns"):
        index, weight = _from_frame(graph, series)
    elif isinstance(graph, tuple):
        index, weight = cast("tuple[Any, Any]", graph)
    else:
        index = graph
    index = index.cpu().numpy() if isinstance(index, torch.Tensor) else np.asarray(index)
    if index.ndim == 2 and index.shape[0] != 2 and index.shape[1] == 2:
        index = index.T
    if index.ndim != 2 or index.shape[0] != 2 or (index.size and index.dtype.kind not in "iu"):
        raise ValueError(f"graph must be (2, e) node numbers, got {index.dtype} {index.shape}")
    if index.size and not 0 <= index.min() <= index.max() < n:
        bad = index.min() if index.min() < 0 else index.max()
        raise ValueError(f"graph must name the series' nodes 0 to {n - 1}, got {bad}")
    edges = torch.from_numpy(index.astype(np.int64))
    return edges, None if weight is None else _weights(weight, edges.shape[1])


def _from_frame(frame: Any, series: Series) -> tuple[Any, Any]:
    columns = [str(name) for name in frame.columns]
    if not {"source", "target"} <= set(columns):
        raise ValueError(f"graph must have columns source and target, got {', '.join(columns)}")
    number: dict[Any, int] = {name: i for i, name in enumerate(series.names)}
    ends: list[list[int]] = []
    for end in ("source", "target"):
        cells = list(frame[end])
        for cell in cells:
            if str(cell) not in number:
                raise ValueError(f"graph must name nodes of the series, {end} {cell!r} is none")
        ends.append([number[str(cell)] for cell in cells])
    weight = np.asarray(frame["weight"]) if "weight" in columns else None
    return np.asarray(ends, dtype=np.int64).reshape(2, -1), weight


def _weights(weight: Any, edges: int) -> torch.Tensor:
    found = torch.as_tensor(np.asarray(weight, dtype=np.float32))
    if found.shape != (edges,):
        raise ValueError(f"graph must have a weight for each of {edges} edges, got {found.numel()}")
    if not bool(torch.isfinite(found).all()) or bool((found < 0).any()):
        raise ValueError("graph must have finite weights of 0 or more")
    return found

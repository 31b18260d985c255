"""A graph as people have it (edge list, SciPy, networkx, data frame) as edges between rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from difformer.core.graph import Graph

__all__ = ["Edges", "read_graph"]

Edges = tuple[Tensor, Tensor | None]  # (2, e) int64, and (e,) float32 or None for ones


def read_graph(
    graph: Any, num_known: int, *, num_new: int | None = None, index: Any = None
) -> Edges:
    """Edges (2, e), source above target, and their weights, checked. O(e).

    Without `num_new` both ends are rows of the data. With it an edge goes from a known row (first
    line) to a new row (second line), and a SciPy matrix is (new rows, known rows).

    Args:
        graph: (2, e) or (e, 2) integers, a list of pairs, a data frame of two or three columns
            (source, target, weight), a SciPy sparse matrix, a networkx graph, or a Graph.
        index: the labels of the data frame's rows, by which a networkx graph may name them.
    """
    sizes = (num_known, num_known if num_new is None else num_new)
    if isinstance(graph, Graph):
        edges, weight = graph.edge_index, graph.edge_weight
    elif sparse.issparse(graph):
        edges, weight = _from_scipy(graph, sizes, between=num_new is not None)
    elif hasattr(graph, "adjacency") and hasattr(graph, "edges"):
        if num_new is not None:
            raise ValueError("graph must be an edge list or a SciPy matrix for new rows")
        edges, weight = _from_networkx(graph, num_known, index)
    else:
        edges, weight = _from_list(graph)
    _check(edges, sizes, num_new is not None)
    if weight is not None and (not bool(torch.isfinite(weight).all()) or bool((weight < 0).any())):
        bad = int(((~torch.isfinite(weight)) | (weight < 0)).nonzero()[0])
        raise ValueError(
            f"graph must have finite weights, 0 or more, got {float(weight[bad])} for edge {bad}"
        )
    return edges, weight


def _from_scipy(graph: Any, sizes: tuple[int, int], *, between: bool) -> Edges:
    expected = (sizes[1], sizes[0]) if between else sizes
    if graph.shape != expected:
        what = "(new rows, known rows)" if between else "one row and column for each row of X"
        raise ValueError(f"graph must be {expected}, {what}; got {graph.shape}")
    coo = graph.tocoo()
    row, col = (
        torch.from_numpy(coo.row.astype(np.int64)),
        torch.from_numpy(coo.col.astype(np.int64)),
    )
    weight = torch.from_numpy(np.asarray(coo.data, dtype=np.float32))
    edges = torch.stack([col, row] if between else [row, col])
    return edges, None if bool((weight == 1).all()) else weight


def _from_networkx(graph: Any, num_rows: int, index: Any) -> Edges:
    where = {node: node for node in graph.nodes}
    whole = all(isinstance(n, int | np.integer) and 0 <= n < num_rows for n in graph.nodes)
    if not whole or index is not None:
        labels = range(num_rows) if index is None else list(index)
        where = {label: row for row, label in enumerate(labels)}
    for node in graph.nodes:
        if node not in where:
            raise ValueError(f"graph must name the rows of X as its nodes, got node {node!r}")
    triples = list(graph.edges(data="weight"))
    pairs = np.array([(where[a], where[b]) for a, b, _ in triples], np.int64).reshape(-1, 2)
    weight = None
    if triples and all(w is not None for _, _, w in triples):
        weight = torch.tensor([float(w) for _, _, w in triples])
    return torch.from_numpy(pairs.T.copy()), weight


def _from_list(graph: Any) -> Edges:
    weight = None
    table: NDArray[Any]
    frame = hasattr(graph, "columns")
    if isinstance(graph, Tensor):
        table = graph.detach().cpu().numpy()
    elif frame and len(graph.columns) == 3:
        source, target, last = (np.asarray(graph[name]) for name in graph.columns)
        table, weight = np.stack([source, target], axis=1), torch.from_numpy(last.astype("f4"))
    else:
        table = np.asarray(graph)
    if table.size == 0:
        return torch.zeros(2, 0, dtype=torch.int64), None
    if table.ndim != 2 or 2 not in table.shape:
        raise ValueError(f"graph must be (2, e) or (e, 2) edges, got shape {table.shape}")
    if table.dtype.kind not in "iu":
        raise ValueError(f"graph must hold row numbers, got {table.dtype}")
    pairs = table.T if table.shape[0] != 2 or frame else table
    return torch.from_numpy(pairs.astype(np.int64).copy()), weight


def _check(edges: Tensor, sizes: tuple[int, int], between: bool) -> None:
    for line, size in enumerate(sizes):
        bad = (edges[line] < 0) | (edges[line] >= size)
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            what = ("known ", "new ")[line] if between else ""
            got = int(edges[line, at])
            raise ValueError(f"graph must join {what}rows 0 to {size - 1}, got {got} in edge {at}")

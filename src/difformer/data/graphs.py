"""Edges of any common type or file (table, SciPy, networkx, PyTorch Geometric) between rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset, Edges
from difformer.data.split import mask_split
from difformer.data.table.cells import Array, cell_text, format_of, place, read_numbers
from difformer.data.table.files import (
    Chunk,
    Source,
    collected,
    first_line,
    name_of,
    naming,
    numbered_chunks,
    read_rows,
    rows_of,
    without_header,
)
from difformer.errors import DataError, missing_extra
from difformer.files import one_line, reading

if TYPE_CHECKING:
    from difformer.data.series import Series

LARGEST_WEIGHT = float(np.finfo(np.float32).max)


def read_edges(
    source: Source, where: Mapping[str, int], *, unknown: str = "is not a known id"
) -> Edges:
    """Edges (2, e) of a table, and their weights (e,) or None; read in chunks, O(e).

    A CSV file whose first line joins two known ids has no header: that line is an edge as well.

    Args:
        source: two or three columns: source, target and optionally weight.
        where: the row number of each id.
        unknown: what an error says about any other id.
    """
    first = first_line(source)
    if len(first) > 1 and {cell_text(end) for end in first[:2]} <= where.keys():
        warnings.warn(headless(source, first), stacklevel=2)
        source = without_header(source)
    parts: list[Array] = []
    written = ""
    for start, chunk in numbered_chunks(source):
        if len(chunk) not in (2, 3):
            raise DataError(
                f"{name_of(source)}: must have source, target (and weight), has {list(chunk)}"
            )
        rows = range(start, start + rows_of(chunk))
        written = written or format_of(next(islice(chunk.values(), 2, None), ()), "number")
        parts.append(_of_cells(source, chunk, rows, where, unknown, written))
    return _edges(np.concatenate(parts, 1) if parts else np.zeros((2, 0)))


def headless(source: Source, first: Sequence[str]) -> str:
    """What is said of a file of edges whose first line is an edge."""
    ends = " to ".join(map(cell_text, first[:2]))
    return f"{name_of(source)}: has no header: its first line, {ends}, is read as an edge"


def read_step_edges(source: Source, series: Series) -> tuple[Edges, ...]:
    """One graph of the nodes of a series, or with a column `time` one for each of its steps.

    The columns are source and target, and optionally weight and time, in any order. A step without
    a row has no edges.
    """
    columns, rows = read_rows(source)
    known = ("source", "target", "weight", "time")
    if not {"source", "target"} <= set(columns) or not set(columns) <= set(known):
        raise DataError(
            f"{name_of(source)}: must have columns source, target and optionally weight, time; "
            f"it has {', '.join(columns)}"
        )
    where = {name: i for i, name in enumerate(series.names)}
    own = {name: columns[name] for name in known[:3] if name in columns}
    written = format_of(columns.get("weight", ()), "number")
    found = _of_cells(source, own, rows, where, "is not a node of the series", written)
    if "time" not in columns:
        return (_edges(found),)
    step = {stamp: i for i, stamp in enumerate(series.stamps)}
    with naming(source):
        from difformer.data.times import read_times

        times = read_times(columns["time"])
        for row, time, cell in zip(rows, times, columns["time"], strict=True):
            if time not in step:
                raise DataError(f"{place(row, 'time', cell)} is not a step of the series")
    at = np.array([step[time] for time in times])
    return tuple(_edges(found[:, at == t]) for t in range(len(series.values)))


def _of_cells(
    source: Source,
    columns: Chunk,
    rows: Sequence[int],
    where: Mapping[str, int],
    unknown: str,
    written: str,
) -> Array:
    """(2 or 3, m) row numbers of both ends, and the weights if there is a third column."""
    found: list[Array] = []
    for name, cells in columns.items():
        if len(found) < 2:
            values = np.array([where.get(cell_text(cell), -1) for cell in cells], float)
            wrong = unknown
        else:
            values, wrong = read_numbers(cells, written)[0], "must be a weight, 0 or more"
        good = (values >= 0) & (values <= LARGEST_WEIGHT)
        if not good.all():
            i = int((~good).argmax())
            raise DataError(f"{name_of(source)}: {place(rows[i], name, cells[i])} {wrong}")
        found.append(values)
    return np.stack(found)


def _edges(found: Array) -> Edges:
    """Both ends and the weights; a row number is exact as a float64."""
    weight = torch.from_numpy(found[2].copy()) if len(found) > 2 else None
    return torch.from_numpy(found[:2].astype(np.int64)), weight


Ids = Sequence[Any] | None


def read_graph(
    graph: Any,
    num_known: int,
    *,
    num_new: int | None = None,
    ids: Ids = None,
    what: str = "row",
) -> Edges:
    """Edges (2, e), source above target, and their weights, checked. O(e).

    Without `num_new` both ends are among the n known rows. With it, the result numbers the new rows
    n + i. A list of edges has known rows (or n + i for the new row i) in its first line and new
    rows, from 0 on, in its second; a SciPy matrix is (new rows, known rows) or (new rows, known and
    new rows); a data frame or a networkx graph may name rows by id.

    Args:
        graph: (2, e) or (e, 2) integers, a list of pairs, a pair (edges, weights or None), a data
            frame of two or three columns (source, target, weight), a SciPy sparse matrix, a
            networkx graph, or a Graph.
        ids: the ids of the rows, new ones last, which a data frame or a networkx graph may use.
        what: what errors call a row.
    """
    new = num_new or 0
    sizes = (num_known + new, num_known if num_new is None else num_new)
    named, weight, graph = False, None, collected(graph)
    if isinstance(graph, Graph):
        if graph.num_nodes != num_known or num_new is not None:
            raise ValueError(f"graph must have {num_known} nodes, got {graph.num_nodes}")
        edges, weight = graph.edge_index, graph.edge_weight
    elif sparse.issparse(graph):
        edges, weight = _from_scipy(graph, num_known, num_new, what)
    elif hasattr(graph, "adjacency") and hasattr(graph, "edges"):
        if num_new is not None and ids is None:
            raise ValueError("graph must be an edge list or a SciPy matrix for new rows without id")
        edges, weight = _from_networkx(graph, num_known, ids)
        named = True
    elif hasattr(graph, "columns"):
        edges, weight, named = _from_frame(graph, ids)
    elif _is_pair(graph):
        edges, weight = _from_list(graph[0]), graph[1]
    else:
        edges = _from_list(graph)
    if num_new is not None and not named:
        _check(edges, sizes, what, between=True)
        edges = torch.stack([edges[0], num_known + edges[1]])
    else:
        _check(edges, (num_known + new, num_known + new), what)
    return edges, None if weight is None else _weights(weight, edges.shape[1])


def read_step_graphs(graph: Any, series: Series) -> tuple[Edges, ...]:
    """() without a graph, one entry for one graph, or one for each of the T steps. O(e)."""
    if graph is None:
        return ()
    if not isinstance(graph, list | tuple) or _is_pair(graph) or _is_edge_list(graph):
        graphs: list[Any] = [graph]
    else:
        graphs = list(cast("list[Any]", graph))
    steps, nodes = series.values.shape
    if len(graphs) not in (0, 1, steps):
        raise ValueError(f"graph must be one, or one for each of {steps} steps, got {len(graphs)}")
    return tuple(read_graph(one, nodes, ids=series.names or None, what="node") for one in graphs)


def _is_edge_list(graph: Any) -> bool:
    """Whether it is a nested list of numbers, (2, e) or (e, 2)."""
    rows = cast("list[Any]", graph)
    return bool(rows) and all(
        isinstance(row, list | tuple) and len(row) and np.isscalar(row[0]) for row in rows
    )


def _is_pair(graph: Any) -> bool:
    """Whether it is (edge list, weights or None)."""
    if not isinstance(graph, tuple) or len(graph) != 2 or isinstance(graph[0], tuple):
        return False
    index, weight = graph
    return np.ndim(index) == 2 and (weight is None or np.ndim(weight) == 1)


def _from_scipy(graph: Any, num_known: int, num_new: int | None, what: str) -> tuple[Tensor, Any]:
    expected, sides = (num_known, num_known), f"one row and one column per {what}"
    if num_new is not None:
        expected, sides = (num_new, num_known), "(new rows, known rows)"
    whole = num_new is not None and graph.shape == (num_new, num_known + num_new)
    if graph.shape != expected and not whole:
        raise ValueError(f"graph must be {expected}, {sides}; got {graph.shape}")
    coo = graph.tocoo()
    ends = [coo.row, coo.col] if num_new is None else [coo.col, coo.row]
    edges = torch.from_numpy(np.stack(ends).astype(np.int64))
    return edges, None if (coo.data == 1).all() else coo.data


def _from_networkx(graph: Any, num_rows: int, ids: Ids) -> tuple[Tensor, Any]:
    names: Sequence[Any] = range(num_rows) if ids is None else ids
    where: dict[Any, int] = {name: row for row, name in enumerate(names)}
    triples = list(graph.edges(data="weight"))
    for node in graph.nodes:
        if node not in where and str(node) not in where:
            raise ValueError(f"graph must name the rows of X as its nodes, got node {node!r}")
    place = {node: where[node] if node in where else where[str(node)] for node in graph.nodes}
    pairs = np.array([(place[a], place[b]) for a, b, _ in triples], np.int64).reshape(-1, 2)
    weighted = triples and all(w is not None for _, _, w in triples)
    return torch.from_numpy(pairs.T.copy()), [w for _, _, w in triples] if weighted else None


def _from_frame(frame: Any, ids: Ids) -> tuple[Tensor, Any, bool]:
    """From columns source, target and perhaps weight, or two or three columns in that order.

    The last result says whether the cells are ids of rows.
    """
    names = list(frame.columns)
    by_name = {"source", "target"} <= set(names)
    if not by_name and len(names) not in (2, 3):
        columns = ", ".join(map(str, names))
        raise ValueError(f"graph must have columns source and target, got {columns}")
    source, target = ("source", "target") if by_name else names[:2]
    last = "weight" if by_name else (names[2] if len(names) == 3 else None)
    ends = [np.asarray(frame[name]) for name in (source, target)]
    where = {str(name): row for row, name in enumerate(ids or ())}
    named = bool(
        len(ends[0]) and where and (ends[0].dtype.kind not in "iu" or str(ends[0][0]) in where)
    )
    if named:
        for name, cells in zip((source, target), ends, strict=True):
            for cell in cells:
                if str(cell) not in where:
                    raise ValueError(
                        f"graph must name rows by their ids, {name} {cell!r} is not an id"
                    )
        ends = [np.array([where[str(cell)] for cell in cells], np.int64) for cells in ends]
    weight = np.asarray(frame[last]) if last in names else None
    return _from_list(np.stack(ends)), weight, named


def _from_list(graph: Any) -> Tensor:
    table: Array = graph.detach().cpu().numpy() if isinstance(graph, Tensor) else np.asarray(graph)
    if table.size == 0:
        return torch.zeros(2, 0, dtype=torch.int64)
    if table.ndim != 2 or 2 not in table.shape:
        raise ValueError(f"graph must be (2, e) or (e, 2) row numbers, got shape {table.shape}")
    if table.dtype.kind not in "iu":
        raise ValueError(f"graph must be (2, e) row numbers, got {table.dtype}")
    return torch.from_numpy((table if table.shape[0] == 2 else table.T).astype(np.int64).copy())


def _check(edges: Tensor, sizes: tuple[int, int], what: str, *, between: bool = False) -> None:
    for line, size in enumerate(sizes):
        bad = (edges[line] < 0) | (edges[line] >= size)
        if bool(bad.any()):
            at = int(bad.nonzero()[0])
            which = ("known or new ", "new ")[line] if between else ""
            got = f"{int(edges[line, at])} in edge {at}"
            raise ValueError(f"graph must join {which}{what}s 0 to {size - 1}, got {got}")


def _weights(weight: Any, edges: int) -> Tensor:
    found = torch.from_numpy(np.asarray(weight, dtype=np.float64).copy())
    if found.shape != (edges,):
        raise ValueError(f"graph must have a weight for each of {edges} edges, got {found.numel()}")
    bad = (~torch.isfinite(found) | (found < 0)).nonzero()
    if bad.numel():
        at = int(bad[0])
        raise ValueError(
            f"graph must have finite weights, 0 or more, got {float(found[at])} for edge {at}"
        )
    return found


def from_pyg(data: Any, name: str = "data") -> Dataset:
    """A torch_geometric Data as a Dataset, with its train, val and test masks as split "given"."""
    if data.x is None or data.y is None:
        raise DataError(f"{name}: must have x and y")
    y = data.y
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    task = "multiclass"
    if y.ndim == 2 and set(y[~y.isnan()].unique().tolist()) <= {0.0, 1.0}:
        y, task = y.float(), "multilabel"
    elif y.is_floating_point() or y.ndim == 2:
        y, task = y.double(), "regression"
    masks: list[Any] = [getattr(data, f"{part}_mask", None) for part in ("train", "val", "test")]
    whole = all(isinstance(m, Tensor) and m.ndim == 1 for m in masks)
    splits = {"given": mask_split(*masks)} if whole else {}
    weight = getattr(data, "edge_weight", None)
    return Dataset(
        name, data.x.float(), y, task, data.edge_index, weight, splits=splits, source="PyG Data"
    )


def read_pyg(path: str | Path) -> Dataset:
    """The one graph of a .pt file: a Data of PyG, a mapping of its tensors, or its saved dataset.

    Nothing in the file is executed: torch's safe loading may only build tensors, Data and the parts
    of Data.
    """
    try:
        from torch_geometric.data import Data
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import GlobalStorage
    except ImportError as error:
        raise missing_extra("a .pt file", "gnn") from error
    path = Path(path)
    parts: list[Any] = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    with reading(path, error=DataError):
        found = _load(path, parts)
        if isinstance(found, tuple):  # the file of an InMemoryDataset: graphs, and their bounds
            whole = cast("tuple[Any, ...]", found)
            found = whole[0] if whole and whole[1:2] in ((), (None,)) else None
        if isinstance(found, Mapping):
            found = Data.from_dict(dict(cast("Mapping[str, Any]", found)))
        if not isinstance(found, Data):
            raise ValueError("it must hold one Data, or a mapping with x, y and edge_index")
        with naming(path):
            return from_pyg(found, path.stem)


def _load(path: Path, parts: list[Any]) -> Any:
    """What torch's safe loading makes of a file of tensors and these classes."""
    try:
        with torch.serialization.safe_globals(parts), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the protocol of a pickle
            return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise DataError(
            f"{path} holds more than tensors and a Data, which is not loaded: it could execute "
            f"code ({one_line(error, 200)})"
        ) from error

"""Sharding on a Ray cluster: its machines look ids up, sort edges and write parts.

One task per row group encodes its rows, one per block of edges joins their ids with those of the
nodes; Ray Data groups both by part, and one task per part writes them. The caller learns the
columns, copies CSV files to Parquet, numbers the ids, and computes a partition that depends on the
edges. Every machine holds the part and the new number of each row once. The parts equal those that
one machine makes, byte for byte. All machines must see the files and the folder.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError, DifformerError, missing_extra
from difformer.files import counted, one_line
from difformer.shards.build import CHUNK, RowEncoder
from difformer.shards.edges import ROW, keys_of, merged, sorted_keys
from difformer.shards.engine import EdgeFiles, Files, as_pairs, cells_of
from difformer.shards.folder import PartRows, record_of, write_edges
from difformer.shards.partition import Layout

Array = NDArray[Any]
TRIED = re.compile(r" Failed to [\w ]+ after \d+/\d+ attempts")  # what Ray appends to an error


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster or, without an address, started on this machine.

    Ray's usage statistics are off unless the environment turns them on.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise missing_extra("engine 'ray'", "ray") from error
    if not ray.is_initialized():
        own: dict[str, Any] = {"include_dashboard": False} if address is None else {}
        try:
            ray.init(address or "local", log_to_driver=False, logging_level="error", **own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise DifformerError(f"no Ray cluster at {address}: {one_line(error)}") from error
    return ray


def write_parts(
    nodes: Files, edges: EdgeFiles | None, made: RowEncoder, layout: Layout, out: Path, work: Path
) -> None:
    """Write missing parts on the cluster.

    Tables that are not Parquet are copied to the folder `work` first, by this process.
    """
    ray: Any = import_module("ray")
    data: Any = import_module("ray.data")
    enough(ray, 1, "sharding")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # the error says it in one line
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True  # else the reason is left out of the error
    place = out.resolve()
    wanted = [k for k in layout.parts if not record_of(out, k)]
    if wanted:
        groups = _row_groups(nodes.as_parquet(work))
        given = data.from_items(groups, override_num_blocks=len(groups))
        told = replace(made), wanted, ray.put(layout.of(0, nodes.rows))
        encoded = given.map_batches(encoded_rows, batch_size=1, fn_args=told)
        together = encoded.groupby("part", num_partitions=len(wanted))
        _finish(together.map_groups(write_rows, fn_args=(place,), batch_format="numpy"))
    if edges is None:
        return
    starts, new = layout.starts.tolist(), layout.new()
    told = edges.query("edges"), edges.weights, starts, None if new is None else ray.put(new)
    read = data.read_parquet(edges.as_parquet(work))
    keys = read.map_batches(keyed, batch_size=None, batch_format="pyarrow", fn_args=told)
    together = keys.groupby("part", num_partitions=len(layout.parts))
    told = place, starts, edges.weighted
    _finish(together.map_groups(write_group, fn_args=told, batch_format="numpy"))
    for part in layout.parts:  # those that no edge enters
        none: Array = np.zeros(0, np.int64)
        write_group({"part": np.array([part]), "key": none, "w": none}, *told)


def enough(ray: Any, asked: int, what: str) -> None:
    """DifformerError if a cluster has too few processors: Ray would wait for more forever."""
    if ray.cluster_resources().get("CPU", 0) < asked:
        raise DifformerError(lacking(ray, asked, what))


def lacking(ray: Any, asked: int, what: str) -> str:
    """One line: how many processors are needed and how many there are."""
    there, free = (
        int(each().get("CPU", 0)) for each in (ray.cluster_resources, ray.available_resources)
    )
    asks = counted(asked, "processor")
    return f"{what} asks for {asks}, the cluster has {there}, {free} of them free"


def _row_groups(names: list[str]) -> list[dict[str, Any]]:
    """The row groups of files, each with the number of its first row."""
    from pyarrow import parquet

    found: list[dict[str, Any]] = []
    first = 0
    for name in names:
        metadata = parquet.ParquetFile(name).metadata
        for group in range(metadata.num_row_groups):
            found.append({"file": name, "group": group, "first": first})
            first += metadata.row_group(group).num_rows
    return found


def _finish(dataset: Any) -> None:
    """Compute a dataset; the error of a task becomes a DataError of one line."""
    ray: Any = import_module("ray")
    try:
        dataset.materialize()
    except ray.exceptions.RayError as error:
        reason = TRIED.split(one_line(getattr(error, "cause", None) or error))[0]
        raise DataError(f"sharding on the cluster: {reason}") from error


def encoded_rows(
    batch: Mapping[str, Array], made: RowEncoder, wanted: list[int], of: Any
) -> Iterator[dict[str, Any]]:
    """Encode a row group and keep the rows of wanted parts; `of` has the part of each row."""
    from pyarrow import parquet
    from ray import get

    part, first = get(of), int(batch["first"][0])
    with parquet.ParquetFile(str(batch["file"][0]), pre_buffer=False) as file:
        for cells in file.iter_batches(CHUNK, row_groups=[int(batch["group"][0])]):
            encoded = made.encode(cells_of(cells), first)
            first += cells.num_rows
            rows = np.flatnonzero(np.isin(part[encoded["row"]], wanted))
            found = {name: values[rows] for name, values in encoded.items()}
            yield {"part": part[found["row"]], **found}


def write_rows(group: Mapping[str, Array], out: Path) -> Any:
    """Write the rows of a part in the order of the file."""
    with PartRows(out, int(group["part"][0])) as writer:
        writer.append(group, np.argsort(group["row"]))
        writer.finish()
    return {"part": group["part"][:1]}


def keyed(batch: Any, query: str, weights: str, starts: list[int], new: Any) -> dict[str, Array]:
    """Keys of edges, as on one machine, and the part that each enters.

    DuckDB reads the cells, so that ids are compared as there.
    """
    import duckdb
    from ray import get

    with duckdb.connect(config={"threads": 1}) as engine:
        found: Any = engine.register("edges", batch).sql(query).to_arrow_table()
    pairs = as_pairs(found.combine_chunks(), weights)
    key, weight = keys_of(pairs.renumbered(None if new is None else get(new)))
    part = np.searchsorted(starts, key // ROW, side="right") - 1
    made: dict[str, Array] = {"part": part.astype(np.int32), "key": key}
    return made if weight is None else {**made, "w": weight}


def write_group(group: Mapping[str, Array], out: Path, starts: list[int], weighted: bool) -> Any:
    """Sort the edges that enter a part's rows, and write them unless they are."""
    part = int(group["part"][0])
    if "edges" not in record_of(out, part):
        low, high = starts[part : part + 2]
        weights = group["w"].astype(np.float32) if weighted else None
        found = sorted_keys(np.asarray(group["key"], np.int64), weights, low, high)
        write_edges(out, part, (low, high), [merged(*found, high - low)], weighted)
    return {"part": group["part"][:1]}

"""Sharding on a Ray cluster: its machines look ids up, sort edges and write parts.

Ray Data reads the edges, looks their ids up and groups them by part; one task per part sorts and
writes them. One task encodes the rows of a part that is a range of the file; for other partitions,
tasks encode ranges of the file and Ray groups the rows by part. The caller learns the columns,
copies CSV files to Parquet, and computes a partition that depends on the edges. Every machine holds
the ids and the new numbers of the rows once. The parts equal those that one machine makes, byte for
byte. All machines must see the files and the folder.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from difformer.errors import DataError, DifformerError, missing_extra
from difformer.files import counted, one_line
from difformer.shards.edges import ROW, both_ways, merged, sorted_keys, with_loops
from difformer.shards.engine import Files
from difformer.shards.ids import NumberedRows, SortedIds, edge_columns, edge_query, known_pairs
from difformer.shards.rows import RowEncoder
from difformer.shards.write import Layout, finish_part, is_written

if TYPE_CHECKING:
    from difformer.data.table.files import Chunk


Array = NDArray[Any]
TOGETHER = 1 << 18  # rows that one task encodes where parts are not ranges
LEAST = 1  # processors that sharding needs
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
    nodes: Files, edges: Files | None, made: RowEncoder, layout: Layout, out: Path, work: Path
) -> tuple[int, int]:
    """Write missing parts on the cluster; how many edges were kept, and how many are loops.

    Tables that are not Parquet are copied to the folder `work` first, by this process.
    """
    ray: Any = import_module("ray")
    data: Any = import_module("ray.data")
    enough(ray, LEAST, "sharding")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.raise_original_map_exception = True  # else the reason is left out of the error
    job = {"rows": made.to_record(), "starts": layout.starts.tolist(), "out": str(out.resolve())}
    _write_rows(ray, job, _spans(nodes.as_parquet(work)), layout, out)
    if edges is None:
        for part in layout.parts:
            finish_part(out, part)
        return 0, 0
    id, (ends, weight) = made.settings.id, edge_columns(edges)
    whole = id is None or (made.whole and all(edges.whole(end) for end in ends))
    job |= {"edges": str(edges), "ends": ends, "weight": weight, "whole": whole}
    ids = ray.put(NumberedRows(nodes.rows) if id is None else SortedIds.read(nodes, id, whole))
    new = None if layout.part is None else ray.put(layout.new())
    keys = data.read_parquet(edges.as_parquet(work)).map_batches(
        keyed, batch_size=None, batch_format="pyarrow", fn_args=(job, ids, new)
    )
    together = keys.groupby("part", num_partitions=len(layout.parts))
    counts = _finished(
        together.map_groups(write_edges, fn_args=(job,), batch_format="numpy")
    ).take_all()
    for part in layout.parts:  # those that no edge enters
        if not is_written(out, part, "part"):
            none: Array = np.zeros(0, np.int64)
            group = {"part": np.array([part]), "key": none, "w": none.astype(np.float32)}
            write_edges(group, job)
    return sum(int(c["kept"]) for c in counts), sum(int(c["loops"]) for c in counts)


def _write_rows(
    ray: Any, job: dict[str, Any], spans: list[Span], layout: Layout, out: Path
) -> None:
    """Write the rows of parts that have none yet: ranges directly, others after a shuffle."""
    wanted = [k for k in layout.parts if not is_written(out, k, "rows")]
    if not wanted:
        return
    if layout.part is None:
        found = _each([{"part": k} for k in wanted], write_rows, job, spans)
    else:
        rows = len(layout.part)
        ranges = [{"low": a, "high": min(a + TOGETHER, rows)} for a in range(0, rows, TOGETHER)]
        of = ray.put(layout.part)
        encoded = _each(ranges, encoded_rows, job, spans, wanted, of)
        together = encoded.groupby("part", num_partitions=len(wanted))
        found = together.map_groups(write_group, fn_args=(job,), batch_format="numpy")
    _finished(found)


def _each(items: list[dict[str, int]], function: Any, *arguments: Any) -> Any:
    """A dataset of what a function makes of each item, one task per item."""
    data: Any = import_module("ray.data")
    given = data.from_items(items, override_num_blocks=len(items))
    return given.map_batches(function, batch_size=1, fn_args=arguments)


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


def _spans(names: list[str]) -> list[Span]:
    from pyarrow import parquet

    counts = [parquet.ParquetFile(name).metadata.num_rows for name in names]
    starts = list(accumulate(counts, initial=0))
    return [(n, a, a + c) for n, a, c in zip(names, starts[:-1], counts, strict=True)]


def _finished(dataset: Any) -> Any:
    """A dataset, computed; the error of a task becomes a DataError of one line."""
    ray: Any = import_module("ray")
    try:
        return dataset.materialize()
    except ray.exceptions.RayError as error:
        reason = TRIED.split(one_line(getattr(error, "cause", None) or error))[0]
        raise DataError(f"sharding on the cluster: {reason}") from error


Span = tuple[str, int, int]
"""A file, its first row among all, and the row after its last."""


def write_rows(batch: Mapping[str, Array], job: Any, spans: list[Span]) -> Any:
    """Encode and write the rows of parts that are ranges of the file."""
    from difformer.shards.rows import RowEncoder
    from difformer.shards.write import PartRows

    made, starts = RowEncoder.from_record(job["rows"]), job["starts"]
    for part in batch["part"].tolist():
        with PartRows(Path(job["out"]), part) as writer:
            for first, chunk in _chunks(spans, starts[part], starts[part + 1]):
                encoded = made.encode(chunk, first)
                writer.append(encoded, np.arange(len(encoded["row"])))
            writer.finish()
    return {"part": batch["part"]}


def encoded_rows(
    batch: Mapping[str, Array], job: Any, spans: list[Span], wanted: list[int], of: Any
) -> Iterator[dict[str, Any]]:
    """Encode ranges of the file and keep the rows of wanted parts; `of` has the part of each."""
    from ray import get

    from difformer.shards.rows import RowEncoder

    part: Array = get(of)
    made = RowEncoder.from_record(job["rows"])
    for low, high in zip(batch["low"].tolist(), batch["high"].tolist(), strict=True):
        for first, chunk in _chunks(spans, low, high):
            encoded = made.encode(chunk, first)
            rows = np.flatnonzero(np.isin(part[encoded["row"]], wanted))
            found = {name: encoded[name][rows] for name in encoded if name != "texts"}
            if "texts" in encoded:
                found["texts"] = np.array([encoded["texts"][i] for i in rows], object)
            yield {"part": part[found["row"]], **found}


def write_group(group: Mapping[str, Array], job: Any) -> Any:
    """Write the rows of a part in the order of the file."""
    from difformer.shards.write import PartRows

    with PartRows(Path(job["out"]), int(group["part"][0])) as writer:
        writer.append(group, np.argsort(group["row"]))
        writer.finish()
    return {"part": group["part"][:1]}


def _chunks(spans: list[Span], low: int, high: int) -> Iterator[tuple[int, Chunk]]:
    """The cells of a range of rows, with the number of the first, from their row groups."""
    from pyarrow import parquet

    from difformer.shards.engine import cells_of
    from difformer.shards.rows import CHUNK

    for path, begin, end in spans:
        if begin >= high or end <= low:
            continue
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            first = begin
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if first < high and first + rows > low:
                    at = first
                    for batch in file.iter_batches(CHUNK, row_groups=[group]):
                        a, b = max(low - at, 0), min(high - at, batch.num_rows)
                        if b > a:
                            yield at + a, cells_of(batch.slice(a, b - a))
                        at += batch.num_rows
                first += rows


def keyed(batch: Any, job: Mapping[str, Any], ids: Any, new: Any) -> dict[str, Array]:
    """Keys of edges, both ways and loops once, and the part that each enters.

    DuckDB reads the cells, so that ids are compared as on one machine.
    """
    import duckdb
    from ray import get

    query = edge_query(job["ends"], job["weight"], "edges", job["whole"])
    with duckdb.connect(config={"threads": 1}) as engine:
        found: Any = engine.register("edges", batch).sql(query).to_arrow_table()
    pairs = known_pairs(found, get(ids), f"{job['edges']}: column {job['weight']!r}")
    if new is not None:
        pairs = pairs.renumbered(get(new))
    loops = pairs.source[pairs.source == pairs.target] * (ROW + 2)
    keys, weights = both_ways(*pairs)
    keys = np.concatenate([keys, loops])
    part = np.searchsorted(job["starts"], keys // ROW, side="right") - 1
    made: dict[str, Array] = {"part": part.astype(np.int32), "key": keys}
    if weights is not None:
        made["w"] = np.concatenate([weights, np.zeros(len(loops), np.float32)])
    return made


def write_edges(group: Mapping[str, Array], job: Any) -> dict[str, Array]:
    """Sort the edges that enter a part's rows, and write them and the part's record.

    Returns how many edges of the file enter the part, and how many of them are loops.
    """
    from difformer.shards.write import PartEdges, is_written

    part, out = int(group["part"][0]), Path(job["out"])
    bounds = job["starts"][part], job["starts"][part + 1]
    keys, weighted = np.asarray(group["key"], np.int64), job["weight"] is not None
    loop = keys >> 32 == (keys & (ROW - 1)) >> 1
    loops, forward = int(np.count_nonzero(loop)), int(np.count_nonzero(keys & 1 == 0))
    if not is_written(out, part, "part"):
        found = with_loops(keys[~loop], group["w"][~loop] if weighted else None, *bounds)
        with PartEdges(out, part, bounds, weighted) as writer:
            writer.append(merged(*sorted_keys(*found)))
            writer.finish()
    return {"part": group["part"][:1], "kept": np.array([forward]), "loops": np.array([loops])}

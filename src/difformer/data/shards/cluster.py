"""Sharding on a Ray cluster: ids are joined, edges sorted and parts written where there is room.

Ray Data reads the edges, looks their ids up and brings those of each part together; one task per
part sorts and writes them. A part that is a range of the file has its rows encoded by one task;
rows of other partitions are encoded where they are read and brought together by part. The caller
learns the columns, copies CSV files to Parquet, and computes a partition that looks at the edges.
Every machine holds the ids and the new numbers of the rows once. The parts are those that one
machine makes, byte for byte. All machines must see the files and the folder.
"""

from __future__ import annotations

import logging
import os
from dataclasses import asdict
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.shards import tasks
from difformer.data.shards.engine import Files, key, numbers
from difformer.data.shards.ids import edge_columns
from difformer.data.shards.tasks import Span
from difformer.data.shards.write import Layout, RowEncoder, finish_part, is_written
from difformer.errors import DataError, DifformerError, missing_extra
from difformer.files import one_line

__all__ = ["connect", "enough", "lacking", "sorted_ids", "write_parts"]

Array = NDArray[Any]
BATCH = 1 << 20  # ids read together
TOGETHER = 1 << 18  # rows that one task encodes where parts are no ranges
LEAST = 1  # processors that sharding needs


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster, or to one of this machine alone; it sends nothing home."""
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
    task: Any = import_module("ray.data")
    enough(ray, LEAST, "sharding")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    task.DataContext.get_current().enable_progress_bars = False
    parts = range(len(layout.starts) - 1)
    job = _plain(made, layout, out)
    _write_rows(task, job, _spans(nodes.as_parquet(work)), layout)
    if edges is None:
        for part in parts:
            finish_part(out, part)
        return 0, 0
    ends, weight = edge_columns(edges)
    whole = made.settings.id is None or (made.whole and all(edges.whole(e) for e in ends))
    job |= {"ends": ends, "weight": weight, "whole": whole}
    known = new = None
    if made.settings.id is not None:
        known = ray.put(sorted_ids(nodes, made.settings.id, whole))
    if layout.part is not None:
        new = ray.put(layout.new())
    keys = task.read_parquet(edges.as_parquet(work)).map_batches(
        tasks.keyed, batch_size=None, batch_format="pyarrow", fn_args=(job, known, new)
    )
    together = keys.groupby("part", num_partitions=len(parts))
    counts = _finished(
        together.map_groups(tasks.write_edges, fn_args=(job,), batch_format="numpy")
    ).take_all()
    for part in parts:  # those that no edge enters
        if not is_written(out, part, "part"):
            none: Array = np.zeros(0, np.int64)
            group = {"part": np.array([part]), "key": none, "w": none.astype(np.float32)}
            tasks.write_edges(group, job)
    return sum(int(c["kept"]) for c in counts), sum(int(c["loops"]) for c in counts)


def _write_rows(task: Any, job: dict[str, Any], spans: list[Span], layout: Layout) -> None:
    """Write the rows of parts that have none yet: ranges where they are, others by a shuffle."""
    starts, out = job["starts"], Path(job["out"])
    wanted = [k for k in range(len(starts) - 1) if not is_written(out, k, "rows")]
    if not wanted:
        return
    if layout.part is None:
        each = [{"part": k} for k in wanted]
        found = task.from_items(each, override_num_blocks=len(each)).map_batches(
            tasks.write_rows, batch_size=1, fn_args=(job, spans)
        )
    else:
        ray: Any = import_module("ray")
        of, rows = ray.put(layout.part), starts[-1]
        each = [{"low": a, "high": min(a + TOGETHER, rows)} for a in range(0, rows, TOGETHER)]
        encoded = task.from_items(each, override_num_blocks=len(each)).map_batches(
            tasks.encoded_rows, batch_size=1, fn_args=({**job, "wanted": wanted}, spans, of)
        )
        together = encoded.groupby("part", num_partitions=len(wanted))
        found = together.map_groups(tasks.write_group, fn_args=(job,), batch_format="numpy")
    _finished(found)


def enough(ray: Any, asked: int, what: str) -> None:
    """DifformerError if a cluster has too few processors: Ray would wait for more, for ever."""
    if ray.cluster_resources().get("CPU", 0) < asked:
        raise DifformerError(lacking(ray, asked, what))


def lacking(ray: Any, asked: int, what: str) -> str:
    """How many processors are asked for and how many there are, in one line."""
    there, free = (
        int(each().get("CPU", 0)) for each in (ray.cluster_resources, ray.available_resources)
    )
    noun = "processor" if asked == 1 else "processors"
    return f"{what} asks for {asked} {noun}, the cluster has {there}, {free} of them free"


def _plain(made: RowEncoder, layout: Layout, out: Path) -> dict[str, Any]:
    """What a task needs, as plain data."""
    return {
        "settings": asdict(made.settings),
        "coder": asdict(made.coder),
        "encoder": made.encoder.to_json(),
        "whole": made.whole,
        "name": made.name,
        "starts": layout.starts.tolist(),
        "out": str(out.resolve()),
    }


def _spans(names: list[str]) -> list[Span]:
    from pyarrow import parquet

    counts = [parquet.ParquetFile(name).metadata.num_rows for name in names]
    starts = list(accumulate(counts, initial=0))
    return [(n, a, a + c) for n, a, c in zip(names, starts[:-1], counts, strict=True)]


def sorted_ids(nodes: Files, id: str, whole: bool) -> tuple[Array, Array]:
    """The ids in order, numbers or texts of one width, and the row of each.

    DataError where one is empty or repeated. Every machine of the cluster holds them.
    """
    pieces: list[Array] = []
    for batch in nodes.engine.batches(f"SELECT {key(id, whole)} FROM {nodes.sql}", BATCH):
        column = batch.column(0)
        first = sum(map(len, pieces))
        cells = column.to_pylist() if column.null_count or not whole else None
        empty = next((i for i, c in enumerate(cells or []) if c is None or c == ""), None)
        if empty is not None:
            raise DataError(f"{nodes}: row {first + empty + 1}, column {id!r}: the id is empty")
        pieces.append(
            numbers(column) if cells is None else np.array([c.encode() for c in cells], "S")
        )
    ids = np.concatenate(pieces)
    row = np.argsort(ids, kind="stable").astype(np.int32)
    ids = ids[row]
    twice = np.flatnonzero(ids[1:] == ids[:-1])
    if len(twice):
        a, b = row[twice[0]] + 1, row[twice[0] + 1] + 1
        said = ids[twice[0]].item()
        said = said.decode() if isinstance(said, bytes) else str(said)
        raise DataError(f"{nodes}: row {b}, column {id!r}: the id {said!r} is also that of row {a}")
    return ids, row


def _finished(dataset: Any) -> Any:
    """What a dataset holds once it is computed; the error of a task is one line."""
    ray: Any = import_module("ray")
    try:
        return dataset.materialize()
    except ray.exceptions.RayError as error:
        reason = one_line(getattr(error, "cause", None) or error)
        raise DataError(f"sharding on the cluster: {reason}") from error

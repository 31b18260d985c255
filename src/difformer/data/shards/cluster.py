"""Sharding on a Ray cluster: ids are joined, edges sorted and parts written where there is room.

Ray Data reads the edges, looks their ids up and brings those of each part together; one task per
part sorts and writes them, another encodes the part's rows. Columns are learned by the caller. The
ids are held once by every machine. The parts are those that one machine makes, byte for byte. All
machines must see the files and the folder.
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
from difformer.data.shards.engine import Files, numbers
from difformer.data.shards.ids import edge_columns
from difformer.data.shards.tasks import Span
from difformer.data.shards.write import Layout, RowEncoder, is_written
from difformer.errors import DataError, DifformerError, missing_extra
from difformer.files import one_line

__all__ = ["connect", "sorted_ids", "write_parts"]

Array = NDArray[Any]
BATCH = 1 << 20  # ids read together


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
    nodes: Files, edges: Files | None, made: RowEncoder, layout: Layout, out: Path, missing: Any
) -> tuple[int, int]:
    """Write missing parts on the cluster; how many edges were kept, and how many are loops."""
    ray: Any = import_module("ray")
    task: Any = import_module("ray.data")
    job, spans, known = _plain(made, layout, out), _spans(nodes), None
    if edges is not None:
        ends, weight = edge_columns(edges)
        whole = made.settings.id is None or (made.whole and all(edges.whole(e) for e in ends))
        job |= {"ends": ends, "weight": weight, "whole": whole}
        if made.settings.id is not None:
            known = ray.put(sorted_ids(nodes, made.settings.id, whole))
    each = [{"part": int(k)} for k in missing]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    task.DataContext.get_current().enable_progress_bars = False
    found = task.from_items(each, override_num_blocks=max(1, len(each))).map_batches(
        tasks.write_rows, batch_size=1, fn_args=(job, spans, edges is None)
    )
    _finished(found)
    if edges is None:
        return 0, 0
    keyed = task.read_parquet(_names(edges)).map_batches(
        tasks.keyed, batch_size=None, batch_format="pyarrow", fn_args=(job, known)
    )
    together = keyed.groupby("part", num_partitions=max(1, len(each)))
    told = _finished(together.map_groups(tasks.write_edges, fn_args=(job,)))
    counts = told.take_all()
    for part in missing:  # those that no edge enters
        if not is_written(out, part, "part"):
            none: Array = np.zeros(0, np.int64)
            group = {"part": np.array([part]), "key": none, "w": none.astype(np.float32)}
            tasks.write_edges(group, job)
    return sum(int(c["kept"]) for c in counts), sum(int(c["loops"]) for c in counts)


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


def _spans(nodes: Files) -> list[Span]:
    from pyarrow import parquet

    names = _names(nodes)
    counts = [parquet.ParquetFile(name).metadata.num_rows for name in names]
    starts = list(accumulate(counts, initial=0))
    return [(n, a, a + c) for n, a, c in zip(names, starts[:-1], counts, strict=True)]


def _names(files: Files) -> list[str]:
    if files.paths[0].suffix.lower() != ".parquet":
        raise DataError(f"{files}: must be Parquet to be sharded on a cluster")
    return [str(path.resolve()) for path in files.paths]


def sorted_ids(nodes: Files, id: str, whole: bool) -> tuple[Array, Array]:
    """The ids in order, numbers or texts of one width, and the row of each.

    DataError where one is empty or repeated. Every machine of the cluster holds them.
    """
    key = nodes.key(id, whole)
    pieces: list[Array] = []
    for batch in nodes.engine.batches(f"SELECT {key} FROM {nodes.sql}", BATCH):
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

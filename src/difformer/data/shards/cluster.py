"""Sharding on a Ray cluster: ids are joined, edges sorted and parts written where there is room.

Ray Data joins the edges with the ids and brings the edges of each part together; one task per part
sorts them and writes them, another encodes the part's rows. Columns are learned by the caller. The
parts are those that one machine makes, byte for byte. All machines must see the files and the
folder.
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
from difformer.data.shards.engine import Files
from difformer.data.shards.ids import edge_columns
from difformer.data.shards.settings import ShardSettings
from difformer.data.shards.tasks import Span
from difformer.data.shards.write import Layout, RowEncoder, is_written
from difformer.errors import DataError, DifformerError, missing_extra
from difformer.files import one_line

__all__ = ["connect", "write_parts"]

Array = NDArray[Any]


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
    task: Any = import_module("ray.data")
    job = _plain(made, layout, out)
    spans = _spans(nodes)
    each = [{"part": int(k)} for k in missing]
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    task.DataContext.get_current().enable_progress_bars = False
    found = task.from_items(each, override_num_blocks=max(1, len(each))).map_batches(
        tasks.write_rows, batch_size=1, fn_args=(job, spans, edges is None)
    )
    _finished(found)
    if edges is None:
        return 0, 0
    weight = edge_columns(edges)[1]
    pairs = _finished(_mapped(task, nodes, edges, made.settings, spans, max(1, len(each))))
    counts = pairs.map_batches(tasks.counted, batch_size=None).sum(["kept", "loops"])
    keys = pairs.map_batches(
        tasks.keyed, batch_size=None, fn_args=(layout.starts.tolist(), weight is not None)
    )
    _finished(keys.groupby("part").map_groups(tasks.write_edges, fn_args=(job, weight is not None)))
    for part in missing:  # those that no edge enters
        if not is_written(out, part, "part"):
            none: Array = np.zeros(0, np.int64)
            group = {"part": np.array([part]), "key": none, "w": none.astype(np.float32)}
            tasks.write_edges(group, job, weight is not None)
    return int(counts["sum(kept)"] or 0), int(counts["sum(loops)"] or 0)


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

    if nodes.paths[0].suffix.lower() != ".parquet":
        raise DataError(f"{nodes}: must be Parquet to be sharded on a cluster")
    counts = [parquet.ParquetFile(path).metadata.num_rows for path in nodes.paths]
    starts = list(accumulate(counts, initial=0))
    names = [str(path.resolve()) for path in nodes.paths]
    return [(n, a, a + c) for n, a, c in zip(names, starts[:-1], counts, strict=True)]


def _mapped(
    task: Any, nodes: Files, edges: Files, settings: ShardSettings, spans: list[Span], parts: int
) -> Any:
    """A dataset of s, t (and w): the edges by the numbers of their rows, dangling ones left out."""
    ends, weight = edge_columns(edges)
    names = [str(path.resolve()) for path in edges.paths]
    if edges.paths[0].suffix.lower() != ".parquet":
        raise DataError(f"{edges}: must be Parquet to be sharded on a cluster")
    whole = settings.id is None or (
        nodes.whole(settings.id) and all(edges.whole(end) for end in ends)
    )
    pairs = task.read_parquet(names).map_batches(
        tasks.named, batch_size=None, batch_format="pyarrow", fn_args=(ends, weight, whole)
    )
    if settings.id is None:
        rows = spans[-1][2]
        return pairs.map_batches(tasks.numbered, batch_size=None, fn_args=(rows,))
    items = [{"path": path, "first": first} for path, first, _ in spans]
    known = task.from_items(items, override_num_blocks=len(items)).map_batches(
        tasks.ids, batch_size=1, batch_format="numpy", fn_args=(settings.id, whole)
    )
    for end, row in (("source", "s"), ("target", "t")):
        named = known.rename_columns({"id": end, "row": row})
        pairs = pairs.join(named, join_type="inner", num_partitions=parts, on=(end,))
    return pairs


def _finished(dataset: Any) -> Any:
    """What a dataset holds once it is computed; the error of a task is one line."""
    ray: Any = import_module("ray")
    try:
        return dataset.materialize()
    except ray.exceptions.RayError as error:
        reason = one_line(getattr(error, "cause", None) or error)
        raise DataError(f"sharding on the cluster: {reason}") from error

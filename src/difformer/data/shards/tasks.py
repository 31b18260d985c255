"""What the tasks of a Ray cluster run. Started in many processes: heavy imports are inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.shards.edges import ROW, both_ways, merged, sorted_keys, with_loops
from difformer.data.shards.ids import edge_query, known_pairs

if TYPE_CHECKING:
    from difformer.data.rawtable import Chunk

Array = NDArray[Any]
Span = tuple[str, int, int]
"""A file, its first row among all, and the row after its last."""


def write_rows(batch: Mapping[str, Array], job: Any, spans: list[Span]) -> Any:
    """Encode and write the rows of parts that are ranges of the file."""
    from difformer.data.shards.rows import RowEncoder
    from difformer.data.shards.write import PartRows

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

    from difformer.data.shards.rows import RowEncoder

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
    from difformer.data.shards.write import PartRows

    with PartRows(Path(job["out"]), int(group["part"][0])) as writer:
        writer.append(group, np.argsort(group["row"]))
        writer.finish()
    return {"part": group["part"][:1]}


def _chunks(spans: list[Span], low: int, high: int) -> Iterator[tuple[int, Chunk]]:
    """The cells of a range of rows, with the number of the first, from their row groups."""
    from pyarrow import parquet

    from difformer.data.shards.engine import cells_of
    from difformer.data.shards.rows import CHUNK

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
    from difformer.data.shards.write import PartEdges, is_written

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

"""What the tasks of a Ray cluster run. Started in many processes: heavy imports are inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.shards.edges import ROW, both_ways, merged, sorted_keys
from difformer.data.shards.manifest import part_folder
from difformer.errors import DataError

if TYPE_CHECKING:
    from difformer.data.rawtable import Chunk
    from difformer.data.shards.write import PartRows, RowEncoder

CHUNK = 32_768  # rows encoded together
MISSING = -(2**63)  # an id that is not there

Array = NDArray[Any]
Span = tuple[str, int, int]
"""A file, its first row among all, and the row after its last."""


def encoder_of(job: Mapping[str, Any]) -> RowEncoder:
    """What was learned of the nodes, from plain data."""
    from difformer.data.encoder import TableEncoder
    from difformer.data.shards.settings import ShardSettings
    from difformer.data.shards.write import RowEncoder, read_coder

    coder, encoder = read_coder(job["coder"]), TableEncoder.from_json(job["encoder"])
    return RowEncoder(ShardSettings(**job["settings"]), coder, encoder, job["whole"], job["name"])


def write_rows(batch: Mapping[str, Array], job: Any, spans: list[Span]) -> Any:
    """Encode and write the rows of parts that are ranges of the file."""
    from difformer.data.shards.write import PartRows

    made, starts, out = encoder_of(job), job["starts"], Path(job["out"])
    for part in batch["part"].tolist():
        with ExitStack() as stack:
            writer: PartRows | None = None
            for first, chunk in _chunks(spans, starts[part], starts[part + 1]):
                encoded = made.encode(chunk, first)
                if writer is None:
                    writer = stack.enter_context(PartRows(part_folder(out, part), encoded))
                writer.append(encoded, np.arange(len(encoded["row"])))
            assert writer is not None
            writer.finish()
    return {"part": batch["part"]}


def encoded_rows(
    batch: Mapping[str, Array], job: Any, spans: list[Span], of: Any
) -> Iterator[dict[str, Any]]:
    """Encode ranges of the file's rows, those that go to a wanted part; `of` has each one's."""
    from ray import get

    part: Array = get(of)
    made, wanted = encoder_of(job), np.array(job["wanted"])
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

    part = int(group["part"][0])
    with PartRows(part_folder(Path(job["out"]), part), group) as writer:
        writer.append(group, np.argsort(group["row"]))
        writer.finish()
    return {"part": group["part"][:1]}


def _chunks(spans: list[Span], low: int, high: int) -> Iterator[tuple[int, Chunk]]:
    """The cells of a range of rows, from the row groups that hold them."""
    from pyarrow import parquet

    from difformer.data.shards.engine import cells_of

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


def keyed(batch: Any, job: Mapping[str, Any], known: Any, new: Any) -> dict[str, Array]:
    """Edges by the numbers of their rows, both ways, and the part each goes to; loops once."""
    from ray import get

    ids: Any = None if known is None else get(known)
    s, t, weight = _edges(batch, ids, job)
    keep = (s >= 0) & (t >= 0)
    s, t, weight = s[keep], t[keep], None if weight is None else weight[keep]
    if weight is not None and not ((weight >= 0) & (weight < np.inf)).all():
        raise DataError(f"column {job['weight']!r} must hold weights, 0 or more, in every row")
    if new is not None:
        number: Array = get(new)
        s, t = number[s].astype(np.int64), number[t].astype(np.int64)
    loops = s[s == t] * (ROW + 2)
    keys, weights = both_ways(s, t, weight)
    keys = np.concatenate([keys, loops])
    part = np.searchsorted(job["starts"], keys // ROW, side="right") - 1
    found: dict[str, Array] = {"part": part.astype(np.int32), "key": keys}
    if weights is not None:
        found["w"] = np.concatenate([weights, np.zeros(len(loops), np.float32)])
    return found


def _edges(
    batch: Any, known: tuple[Array, Array] | None, job: Mapping[str, Any]
) -> tuple[Array, Array, Array | None]:
    """The rows that the ends of some edges name, -1 where one names none, and the weights.

    DuckDB reads the cells, so that ids are compared as one machine compares them.
    """
    import duckdb

    from difformer.data.shards.engine import key, number, numbers, weights

    cells = [number(e, MISSING) if job["whole"] else key(e, False) for e in job["ends"]]
    query = f"SELECT {cells[0]} AS s, {cells[1]} AS t{weights(job['weight'])} FROM edges"
    with duckdb.connect(config={"threads": 1}) as engine:
        found: Any = engine.register("edges", batch).sql(query).to_arrow_table()
    s, t = (_rows_of(found.column(end), known, job) for end in (0, 1))
    return s, t, None if job["weight"] is None else numbers(found.column(2), np.float32)


def _rows_of(column: Any, known: tuple[Array, Array] | None, job: Mapping[str, Any]) -> Array:
    """The row that each id names, -1 where it names none."""
    if job["whole"]:
        cells: Array = column.to_numpy()
        if known is None:
            return np.where((cells >= 0) & (cells < job["starts"][-1]), cells, -1)
    else:
        assert known is not None
        width = known[0].dtype.itemsize
        texts = [(text or "").encode() for text in column.to_pylist()]
        cells = np.array([b"" if len(text) > width else text for text in texts], known[0].dtype)
    assert known is not None
    ids, row = known
    place = np.searchsorted(ids, cells).clip(max=len(ids) - 1)
    return np.where(ids[place] == cells, row[place], -1).astype(np.int64)


def write_edges(group: Mapping[str, Array], job: Any) -> dict[str, Array]:
    """Sort the edges that enter a part's rows, and write them and the part's record.

    Also says how many edges of the file enter the part, and how many of them are loops.
    """
    from difformer.data.shards.write import PartEdges, is_written

    part, starts, out = int(group["part"][0]), job["starts"], Path(job["out"])
    low, high = starts[part], starts[part + 1]
    keys, weighted = np.asarray(group["key"], np.int64), job["weight"] is not None
    loop = keys >> 32 == (keys & (ROW - 1)) >> 1
    loops, forward = int(np.count_nonzero(loop)), int(np.count_nonzero(keys & 1 == 0))
    if not is_written(out, part, "part"):
        each = np.arange(low, high, dtype=np.int64) * (ROW + 2)
        weights = None
        if weighted:
            weights = np.concatenate([group["w"][~loop], np.ones(high - low, np.float32)])
        keys = np.concatenate([keys[~loop], each])
        with PartEdges(out, part, (low, high), weighted) as writer:
            writer.append(merged(*sorted_keys(keys, weights)))
            writer.finish()
    return {"part": group["part"][:1], "kept": np.array([forward]), "loops": np.array([loops])}

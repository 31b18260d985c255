"""What the tasks of a Ray cluster run. Started in many processes: heavy imports are inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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


def write_rows(batch: Mapping[str, Array], job: Any, spans: list[Span], last: bool) -> Any:
    """Encode and write the rows of a part; its record too where it is all there is."""
    from difformer.data.shards.write import PartRows, finish_part

    made, starts, out = encoder_of(job), job["starts"], Path(job["out"])
    for part in batch["part"].tolist():
        low, high = starts[part], starts[part + 1]
        place = part_folder(out, part)
        if not (place / "rows.json").exists():
            writer: PartRows | None = None
            try:
                for first, chunk in _chunks(spans, low, high):
                    encoded = made.encode(chunk, first)
                    if writer is None:
                        writer = PartRows(place, encoded).__enter__()
                    writer.append(encoded, np.arange(len(encoded["row"])))
                assert writer is not None
                writer.finish()
            except BaseException as error:
                if writer is not None:
                    writer.__exit__(type(error), error, error.__traceback__)
                raise
        if last:
            finish_part(out, part)
    return {"part": batch["part"]}


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


def keyed(batch: Any, job: Mapping[str, Any], known: Any) -> dict[str, Array]:
    """Edges by the numbers of their rows, both ways, and the part each goes to; loops once."""
    from ray import get

    ids: Any = None if known is None else get(known)
    s, t = (rows_of(batch.column(end), ids, job) for end in job["ends"])
    keep = (s >= 0) & (t >= 0)
    s, t, weight = s[keep], t[keep], None
    if job["weight"] is not None:
        weight = batch.column(job["weight"]).to_numpy().astype(np.float32)[keep]
        if not ((weight >= 0) & (weight < np.inf)).all():
            raise DataError(f"column {job['weight']!r} must hold weights, 0 or more, in every row")
    loops = s[s == t] * (ROW + 2)
    keys, weights = both_ways(s, t, weight)
    keys = np.concatenate([keys, loops])
    part = np.searchsorted(job["starts"], keys // ROW, side="right") - 1
    found = {"part": part.astype(np.int32), "key": keys}
    if weights is not None:
        found["w"] = np.concatenate([weights, np.zeros(len(loops), np.float32)])
    return found


def rows_of(column: Any, known: tuple[Array, Array] | None, job: Mapping[str, Any]) -> Array:
    """The row that each id names, -1 where it names none."""
    import pyarrow as pa
    from pyarrow import compute

    if job["whole"]:
        found = column.cast(pa.int64(), safe=False).fill_null(-1 if known is None else MISSING)
        cells: Array = found.to_numpy()
        if known is None:
            return np.where((cells >= 0) & (cells < job["starts"][-1]), cells, -1)
    else:
        of: Any = compute
        texts = of.utf8_trim_whitespace(column.cast(pa.string()).fill_null("")).to_pylist()
        assert known is not None
        width = known[0].dtype.itemsize
        long = [text.encode() for text in texts]
        cells = np.array([b"" if len(text) > width else text for text in long], known[0].dtype)
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

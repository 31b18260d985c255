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


def named(batch: Any, ends: list[str], weight: str | None, whole: bool) -> Any:
    """Columns source, target (and w) in the form in which ids are compared."""
    import pyarrow as pa
    from pyarrow import compute

    of: Any = compute
    columns: dict[str, Any] = {}
    for name, column in zip(("source", "target"), ends, strict=True):
        cells = batch.column(column)
        columns[name] = (
            cells.cast(pa.int64(), safe=False)
            if whole
            else of.utf8_trim_whitespace(cells.cast(pa.string()))
        )
    if weight is not None:
        columns["w"] = batch.column(weight).cast(pa.float32())
    return pa.table(columns)


def ids(batch: Mapping[str, Array], id: str, whole: bool) -> dict[str, Array]:
    """The ids of a file and the numbers of their rows."""
    from pyarrow import parquet

    (path,), (first,) = batch["path"].tolist(), batch["first"].tolist()
    found = parquet.read_table(path, columns=[id]).column(id)
    cells = found.to_numpy() if whole else [str(cell).strip() for cell in found.to_pylist()]
    found = np.asarray(cells, np.int64) if whole else np.asarray(cells, object)
    return {"id": found, "row": np.arange(first, first + len(found), dtype=np.int64)}


def numbered(batch: dict[str, Array], rows: int) -> dict[str, Array]:
    """Edges whose ends are numbers of rows already."""
    s, t = batch["source"], batch["target"]
    keep = (s >= 0) & (s < rows) & (t >= 0) & (t < rows)
    columns = {"s": s, "t": t, **({"w": batch["w"]} if "w" in batch else {})}
    return {name: column[keep] for name, column in columns.items()}


def counted(batch: Mapping[str, Array]) -> dict[str, Array]:
    """How many edges there are, and how many of them are loops."""
    s, t = batch["s"], batch["t"]
    return {"kept": np.array([len(s)]), "loops": np.array([np.count_nonzero(s == t)])}


def keyed(batch: Mapping[str, Array], starts: list[int], weighted: bool) -> dict[str, Array]:
    """Both ways: the key of each directed edge, and the part it goes to."""
    weight = batch["w"].astype(np.float32) if weighted else None
    if weight is not None and not ((weight >= 0) & (weight < np.inf)).all():
        raise DataError("edges: weights must be 0 or more, in every row")
    keys, weights = both_ways(batch["s"].astype(np.int64), batch["t"].astype(np.int64), weight)
    part = np.searchsorted(starts, keys // ROW, side="right") - 1
    found = {"part": part.astype(np.int32), "key": keys}
    return found if weights is None else {**found, "w": weights}


def write_edges(group: Mapping[str, Array], job: Any, weighted: bool) -> dict[str, Array]:
    """Sort the edges that enter a part's rows, and write them and the part's record."""
    from difformer.data.shards.write import PartEdges

    part, starts = int(group["part"][0]), job["starts"]
    low, high = starts[part], starts[part + 1]
    loop = np.arange(low, high, dtype=np.int64) * (ROW + 2)
    weights = None
    if weighted:
        weights = np.concatenate([group["w"], np.ones(high - low, np.float32)])
    keys = np.concatenate([np.asarray(group["key"], np.int64), loop])
    if not (part_folder(Path(job["out"]), part) / "part.json").exists():
        with PartEdges(Path(job["out"]), part, (low, high), weighted) as writer:
            writer.append(merged(*sorted_keys(keys, weights)))
            writer.finish()
    return {"part": group["part"][:1]}

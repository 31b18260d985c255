"""From files of nodes and edges to a sharded dataset, in bounded memory.

Two passes over the nodes (one learns the columns and labels, one encodes and writes), DuckDB's
joins and sort for the edges. Finished stages are kept: the same call resumes where a killed one
ended.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.cells import is_missing
from difformer.data.encoder import TableEncoder
from difformer.data.labels import LabelCoder
from difformer.data.rawtable import Chunk
from difformer.data.shards.arrays import ArrayWriter
from difformer.data.shards.edges import EdgeTable, Pairs
from difformer.data.shards.engine import Engine, Files, Tell, matching, named
from difformer.data.shards.ids import edge_columns, pairs_of
from difformer.data.shards.manifest import MANIFEST, Manifest, part_folder
from difformer.data.shards.nearest import nearest_pairs
from difformer.data.shards.parts import Block, hashed, metis_parts, stream_parts
from difformer.data.shards.settings import ShardSettings, memory_bytes
from difformer.data.shards.write import (
    Layout,
    PartEdges,
    PartRows,
    RowEncoder,
    finish_part,
    is_written,
    part_array,
    part_record,
    read_coder,
)
from difformer.errors import DataError
from difformer.files import reading, write_atomic

__all__ = ["make_shards"]

WORK = ".work"
ASKED = "asked.json"  # the settings and the files read, by which a repeated call is recognised
CHUNK = 32_768  # rows encoded together
MOST_NUMBERS = 1 << 16  # numbers of a column that are held to learn from, see `columns.Numbers`
MOST_LABELS = 10_000  # the most classes
BY_EDGES = ("metis", "streaming")  # partitions that look at the edges
METIS_BYTES = 60  # bytes of memory that METIS takes per directed edge, about

Array = NDArray[Any]


def make_shards(
    settings: ShardSettings, out: Path, *, tell: Tell, held: int = 0, cluster: bool = False
) -> Manifest:
    """Shard files into the folder `out`; `held` are bytes that this process holds already.

    An interrupted call is resumed if files and settings are the same; a finished one returns its
    manifest. On a `cluster` Ray, to which this process is connected, joins, sorts and writes.
    """
    if cluster and settings.neighbours:
        raise ValueError("neighbours must be 0 on a cluster: one machine looks for them")
    if out.exists() and not out.is_dir():
        raise DataError(f"{out} is a file: give a folder")
    work = out / WORK
    asked = _asked(settings)
    same = (out / ASKED).exists() and (out / ASKED).read_text(encoding="utf-8") == asked
    if (out / MANIFEST).exists():
        if not same:
            raise DataError(f"{out} holds a sharded dataset already: give another folder")
        shutil.rmtree(work, ignore_errors=True)
        return Manifest.read(out)
    if not same:
        _clear(out, work)
        write_atomic(out / ASKED, asked, error=DataError)
    engine = Engine(work, memory_bytes(settings.memory), held, tell)
    try:
        manifest = _Job(settings, out, engine, tell).run(cluster=cluster)
    finally:
        engine.close()
    manifest.write(out)
    shutil.rmtree(work, ignore_errors=True)
    return manifest


def _asked(settings: ShardSettings) -> str:
    names = (*settings.nodes, *settings.edges, *settings.features)
    files = [path for name in names for path in matching(name)]
    seen = [[str(p), p.stat().st_size, p.stat().st_mtime_ns] for p in files]
    asked = {**asdict(settings), "files": seen}
    del asked["memory"]  # the same answer, whatever it took
    return json.dumps(asked, sort_keys=True)


def _clear(out: Path, work: Path) -> None:
    """Delete what a call with other settings left, if the folder holds nothing else."""
    others = [p for p in out.iterdir() if not _ours(p)] if out.exists() else []
    if others:
        raise DataError(f"{out} must be empty or new, it holds {others[0].name}")
    for path in out.glob("part-*"):
        shutil.rmtree(path)
    shutil.rmtree(work, ignore_errors=True)


def _ours(path: Path) -> bool:
    # The second is what a call leaves that was killed during its first write.
    return path.name in (WORK, f".{ASKED}.part", ASKED) or bool(
        re.fullmatch(r"part-\d{5}", path.name)
    )


class _Job:
    """One sharding, stage by stage; each stage reuses its earlier results."""

    def __init__(self, settings: ShardSettings, out: Path, engine: Engine, tell: Tell) -> None:
        self.settings, self.out, self.engine, self.tell = settings, out, engine, tell
        self.nodes = Files(engine, settings.nodes, "nodes")
        self.edges = Files(engine, settings.edges, "edges") if settings.edges else None
        wanted = (*settings.label, settings.id, settings.split_column)
        for column in wanted:
            if column is not None and column not in self.nodes.types:
                known = ", ".join(self.nodes.types)
                raise DataError(f"{self.nodes}: has no column {column!r}; it has {known}")

    def run(self, *, cluster: bool = False) -> Manifest:
        settings = self.settings
        rows = self.nodes.count()
        if rows < settings.parts:
            raise DataError(f"parts must be at most the {rows} rows, got {settings.parts}")
        coder, encoder = self._learned(rows)
        whole = settings.id is not None and self.nodes.whole(settings.id)
        made = RowEncoder(settings, coder, encoder, whole, str(self.nodes))
        made.check(rows)
        if cluster:
            return self._manifest(made, None, self._on_cluster(made, rows))
        part, table, found = None, None, dict[str, int]()
        if self.edges is not None:
            part, table, total = self._graph(rows, self.edges)
            kept, loops = table.state.kept, table.state.loops
            found = {"edges read": total, "dangling edges": total - kept, "loops": loops}
        elif settings.partition == "hash":
            part = self._spread_evenly(rows)
        self.engine.shrink(0.0)  # what is left to do is not DuckDB's
        layout = Layout.make(part, rows, settings.parts)
        self._write_rows(made, layout)
        if settings.neighbours:
            table = self._nearest(made, rows)
        self._write_parts(layout, table)
        return self._manifest(made, table, found)

    def _nearest(self, made: RowEncoder, rows: int) -> EdgeTable:
        """The edges of each row and its nearest ones, from the rows that are written."""
        settings, place = self.settings, self.out / WORK / "nearest"
        table = EdgeTable.read(place)
        if table is None:
            if settings.neighbours >= rows:
                raise DataError(f"neighbours must be fewer than the {rows} rows")
            parts = [part_array(self.out, k, "x") for k in range(settings.parts)]
            memory, edges = memory_bytes(settings.memory), rows * settings.neighbours
            pairs = nearest_pairs(
                parts, settings.neighbours, memory, partial(self.tell, "looking for neighbours")
            )
            table = EdgeTable.spread(place, rows, pairs, edges, False)
        return table

    def _on_cluster(self, made: RowEncoder, rows: int) -> dict[str, int]:
        """Write the parts with Ray; what was found."""
        from difformer.data.shards.cluster import write_parts

        settings, total = self.settings, 0 if self.edges is None else self.edges.count()
        part = self._spread_evenly(rows) if settings.partition == "hash" else None
        if self.edges is not None and settings.partition in BY_EDGES:
            part = self._parts(rows, self.edges, total)
        layout = Layout.make(part, rows, settings.parts)
        self.tell("writing parts on the cluster", None)
        work = self.out / WORK
        kept, loops = write_parts(self.nodes, self.edges, made, layout, self.out, work)
        if self.edges is None:
            return {}
        return {"edges read": total, "dangling edges": total - kept, "loops": loops}

    def _manifest(
        self, made: RowEncoder, table: EdgeTable | None, found: dict[str, int]
    ) -> Manifest:
        settings = self.settings
        records = [part_record(self.out, k) for k in range(settings.parts)]
        if table is not None or self.edges is not None:
            settled = None if table is None else table.state.repeated
            repeated = sum(count for _, count in records) if settled is None else settled
            found = {**found, "repeated edges": repeated}
        coder = made.coder
        return Manifest(
            name=Path(settings.nodes[0]).stem,
            task=coder.task,
            features=made.width,
            outputs=coder.outputs,
            parts=tuple(record for record, _ in records),
            partition=settings.partition,
            class_names=coder.class_names,
            split=settings.split,
            graph=self.edges is not None or table is not None,
            encoder=made.encoder.to_json(),
            found=found,
        )

    def _learned(self, rows: int) -> tuple[LabelCoder, TableEncoder]:
        """Columns and labels from one pass over the nodes, or from an earlier call."""
        settings, kept = self.settings, self.out / WORK / "learned.json"
        if kept.exists():
            with reading(kept, error=DataError):
                record = json.loads(kept.read_text(encoding="utf-8"))
                return read_coder(record["coder"]), TableEncoder.from_json(record["encoder"])
        coder = self._labels()
        label = settings.label[0] if len(settings.label) == 1 else tuple(settings.label)
        source = _Counted(self.nodes, rows, self.tell, "learning columns")
        kinds = dict(settings.kinds or {})
        if settings.split_column is not None:
            kinds[settings.split_column] = "skip"
        encoder = TableEncoder.learn(
            source, label=label, id=settings.id, kinds=kinds, size=CHUNK, most=MOST_NUMBERS
        )
        text = next((c.name for c in encoder.columns if c.kind == "text"), None)
        if text is not None:
            raise DataError(
                f"{self.nodes}: column {text!r} is free text, which is not sharded: leave it out "
                f"(--kind {text}=skip), or turn it into numbers first (difformer features)"
            )
        record = {"coder": asdict(coder), "encoder": encoder.to_json()}
        write_atomic(kept, json.dumps(record), error=DataError)
        return coder, encoder

    def _labels(self) -> LabelCoder:
        """The distinct labels and how many rows have one, by DuckDB."""
        distinct: dict[str, list[Any]] = {}
        rows = 0
        for column in self.settings.label:
            query = (
                f"SELECT {named(column)}, count(*) FROM {self.nodes.sql} "
                f"WHERE {named(column)} IS NOT NULL GROUP BY 1 LIMIT {MOST_LABELS + 1}"
            )
            found = self.engine.run(query, "looking at labels")
            distinct[column] = [row[0] for row in found]
            rows = max(rows, sum(row[1] for row in found if not is_missing(row[0])))
            if not found:
                raise DataError(f"{self.nodes}: the label column {column!r} is empty in every row")
        task = self.settings.task
        many = any(len(cells) > MOST_LABELS for cells in distinct.values())
        if many and (task or "regression") == "regression":
            task = "regression"
        elif many:
            raise DataError(f"{self.nodes}: labels must be at most {MOST_LABELS:,} classes")
        return LabelCoder.learn(distinct, rows, file=str(self.nodes), task=task)

    def _graph(self, rows: int, edges: Files) -> tuple[Array | None, EdgeTable, int]:
        """The part of each row, None for ranges; the edges by their new numbers; edges read."""
        settings, work = self.settings, self.out / WORK
        total = edges.count()
        if settings.partition not in BY_EDGES:
            part = self._spread_evenly(rows) if settings.partition == "hash" else None
            new = None if part is None else Layout.make(part, rows, settings.parts).new()
            return part, self._table(work / "edges", rows, edges, total, new), total
        part, moved = self._parts(rows, edges, total), EdgeTable.read(work / "moved")
        if moved is None:
            table = self._table(work / "edges", rows, edges, total)
            new = Layout.make(part, rows, settings.parts).new()
            self.tell("sorting edges by part", None)
            moved = table.settle().renumbered(new, work / "moved")
            table.remove()
        return part, moved, total

    def _table(
        self, place: Path, rows: int, edges: Files, total: int, new: Array | None = None
    ) -> EdgeTable:
        """The edges by the numbers of rows in the file, or by `new` ones."""
        settings = self.settings
        table = EdgeTable.read(place)
        if table is not None:
            return table

        def pairs() -> Iterator[Pairs]:
            done, memory = 0, memory_bytes(settings.memory)
            for found in pairs_of(self.engine, edges, self.nodes, settings.id, rows, memory):
                self.tell("reading edges", min(1.0, done / max(total, 1)))
                done += len(found.source)
                yield found if new is None else found.renumbered(new)

        weighted = edge_columns(edges)[1] is not None
        return EdgeTable.spread(place, rows, pairs(), total, weighted)

    def _spread_evenly(self, rows: int) -> Array:
        spread = hashed(np.arange(rows, dtype=np.uint64)) % np.uint64(self.settings.parts)
        return spread.astype(np.int32)

    def _parts(self, rows: int, edges: Files, total: int) -> Array:
        """The part of each row by its edges, written to a file and read from it the next time."""
        settings, kept = self.settings, self.out / WORK / "parts.npy"
        if kept.exists():
            with reading(kept, error=DataError):
                return np.load(kept, allow_pickle=False)
        table = self._table(self.out / WORK / "edges", rows, edges, total)
        each = 2 * (table.state.kept - table.state.loops)
        if settings.partition == "metis" and METIS_BYTES * each > memory_bytes(settings.memory):
            need = METIS_BYTES * each / 1e9
            raise DataError(
                f"partition metis needs about {need:.1f}GB for {each:,} edges, --memory is "
                f"{settings.memory}: use --partition streaming"
            )
        self.tell(f"partitioning by {settings.partition}", None)
        blocks = table.settle().blocks
        if settings.partition == "streaming":
            part = stream_parts(blocks, rows, settings.parts)
        else:
            part = metis_parts(*_whole(blocks()), settings.parts)
        with ArrayWriter(kept, np.int32) as file:
            file.append(part)
        return part

    def _write_parts(self, layout: Layout, table: EdgeTable | None) -> None:
        """Write the edges and the record of each part that is not whole yet."""
        parts = range(len(layout.starts) - 1)
        missing = [k for k in parts if not is_written(self.out, k, "part")]
        if table is None:
            for k in missing:
                finish_part(self.out, k)
            return
        for first, last in _runs(missing):  # of neighbouring parts
            self._write_edges(layout.starts[first : last + 1].tolist(), first, table)

    def _write_edges(self, bounds: list[int], first: int, table: EdgeTable) -> None:
        """Write the edges of neighbouring parts from one pass over them."""
        parts = len(bounds) - 1
        with ExitStack() as stack:
            writer: PartEdges | None = None
            for place, piece in table.between(bounds):
                if writer is None or writer.part != first + place:
                    if writer is not None:
                        writer.finish()
                    self.tell("writing edges", place / parts)
                    ends = bounds[place], bounds[place + 1]
                    made = PartEdges(self.out, first + place, ends, table.weighted)
                    writer = stack.enter_context(made)
                writer.append(piece)
            if writer is not None:
                writer.finish()

    def _write_rows(self, encoder: RowEncoder, layout: Layout) -> None:
        """One pass over the nodes; with ranges one part is open at a time, else all are."""
        sizes = np.diff(layout.starts)
        missing = [k for k in range(len(sizes)) if not is_written(self.out, k, "rows")]
        if not missing:
            return
        wanted = np.zeros(len(sizes), bool)
        wanted[missing] = True
        rows = int(layout.starts[-1])
        source, first = _Counted(self.nodes, rows, self.tell, "writing rows"), 0
        with ExitStack() as stack:
            writers: dict[int, PartRows] = {}
            for chunk in source.chunks(CHUNK):
                size = len(next(iter(chunk.values())))
                of = layout.of(first, first + size)
                if wanted[of].any():
                    encoded = encoder.encode(chunk, first)
                    for k in np.unique(of[wanted[of]]).tolist():
                        if k not in writers:
                            made = PartRows(part_folder(self.out, k), encoded)
                            writers[k] = stack.enter_context(made)
                        writers[k].append(encoded, np.flatnonzero(of == k))
                first += size
                for k in [k for k, w in writers.items() if w.rows == sizes[k]]:
                    writers.pop(k).finish()
            if writers or first < rows:
                raise DataError(f"{self.nodes}: changed while it was read: it has fewer rows now")


def _whole(blocks: Iterable[Block]) -> tuple[Array, Array]:
    """All compressed rows together: where each begins, and the rows its edges come from."""
    ends, sources, before = [np.zeros(1, np.int64)], list[Array](), 0
    for _, block_ends, block_sources in blocks:
        ends.append(block_ends + before)
        sources.append(block_sources)
        before += len(block_sources)
    return np.concatenate(ends), np.concatenate(sources)


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Sorted numbers as ranges of neighbours, the last one of each excluded."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


@dataclass(frozen=True)
class _Counted:
    """A source of chunks that reports its progress."""

    files: Files
    rows: int
    tell: Tell
    stage: str

    def chunks(self, size: int) -> Iterator[Chunk]:
        done = 0
        for chunk in self.files.chunks(size):
            self.tell(self.stage, done / self.rows)
            yield chunk
            done += len(next(iter(chunk.values())))

    def __str__(self) -> str:
        return str(self.files)

"""From files of nodes and edges to a sharded dataset, in bounded memory.

Two passes over the nodes: one learns the columns and labels, one encodes and writes the rows. One
pass over the edges spreads them over buckets, which are sorted one by one. Finished stages are
kept, so that the same call resumes where an interrupted one ended.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.data.table.files import rows_of
from difformer.errors import DataError
from difformer.files import json_text, reading, write_atomic
from difformer.shards.edges import EdgeTable, Pairs
from difformer.shards.engine import Engine, Files, Tell, matching
from difformer.shards.ids import edge_columns, edge_files, pairs_of
from difformer.shards.nearest import nearest_pairs
from difformer.shards.partition import METIS_BYTES, hashed, metis_parts, stream_parts
from difformer.shards.rows import CHUNK, RowEncoder
from difformer.shards.settings import ShardSettings, memory_bytes
from difformer.shards.store import MANIFEST, ArrayWriter, Manifest
from difformer.shards.write import (
    WORK,
    Layout,
    PartRows,
    finish_part,
    is_written,
    part_array,
    part_record,
    write_edges,
)

ASKED = "asked.json"  # the settings and the files read, by which a repeated call is recognised

Array = NDArray[Any]


def make_shards(
    settings: ShardSettings, out: Path, *, tell: Tell, held: int = 0, cluster: bool = False
) -> Manifest:
    """Shard files into the folder `out` and return the manifest.

    An interrupted call is resumed if files and settings are the same; a finished one only reads
    its manifest.

    Args:
        tell: called with the progress.
        held: bytes that this process uses already, of the memory in the settings.
        cluster: use the Ray cluster that this process is connected to.
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
        manifest = _Job(settings, out, engine).run(cluster=cluster)
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
    if settings.header:  # as calls of earlier versions wrote it
        del asked["header"]
    del asked["memory"]  # it does not change the result
    return json_text(asked, sort_keys=True)


def _clear(out: Path, work: Path) -> None:
    """Delete what a call with other settings left; DataError if the folder holds anything else."""
    # The third name is what a call leaves that is killed during its first write.
    ours = re.compile(rf"part-\d{{5}}|{re.escape(WORK)}|\.{ASKED}\.part|{ASKED}")
    others = [p for p in out.iterdir() if not ours.fullmatch(p.name)] if out.exists() else []
    if others:
        raise DataError(f"{out} must be empty or new, it holds {others[0].name}")
    for path in out.glob("part-*"):
        shutil.rmtree(path)
    shutil.rmtree(work, ignore_errors=True)


class _Job:
    """One sharding, stage by stage; each stage reuses what an earlier call finished."""

    def __init__(self, settings: ShardSettings, out: Path, engine: Engine) -> None:
        self.settings, self.out, self.engine, self.tell = settings, out, engine, engine.tell
        self.work, self.memory = out / WORK, memory_bytes(settings.memory)
        self.nodes = Files(engine, settings.nodes, "nodes", header=settings.header)
        for column in (*settings.label, settings.id, settings.split_column):
            if column is not None and column not in self.nodes.types:
                known = ", ".join(self.nodes.types)
                raise DataError(f"{self.nodes}: has no column {column!r}; it has {known}")
        self.edges = edge_files(self.nodes, settings) if settings.edges else None

    def run(self, *, cluster: bool) -> Manifest:
        settings, rows = self.settings, self.nodes.rows
        if rows < settings.parts:
            raise DataError(f"parts must be at most the {rows} rows, got {settings.parts}")
        made = RowEncoder.learn(settings, self.nodes)
        made.check(rows)
        layout = Layout.make(self._partition(), rows, settings.parts)
        if cluster:
            from difformer.shards.cluster import write_parts

            self.tell("writing parts on the cluster", None)
            kept, loops = write_parts(self.nodes, self.edges, made, layout, self.out, self.work)
            return self._manifest(made, kept, loops)
        table = None if self.edges is None else self._sorted_edges(self.edges, layout)
        self.engine.shrink()  # DuckDB has nothing more to do
        self._write_rows(made, layout)
        if settings.neighbours:
            table = self._nearest()
        self._write_edges(layout, table)
        return self._manifest(made, *((table.state.kept, table.state.loops) if table else (0, 0)))

    def _manifest(self, made: RowEncoder, kept: int, loops: int) -> Manifest:
        """The manifest of the written parts."""
        settings, coder = self.settings, made.coder
        records = [part_record(self.out, k) for k in range(settings.parts)]
        found: dict[str, int] = {}
        if self.edges is not None:
            total = self.edges.rows
            found = {"edges read": total, "dangling edges": total - kept, "loops": loops}
        graph = self.edges is not None or settings.neighbours > 0
        if graph:
            found["repeated edges"] = sum(count for _, count in records)
        return Manifest(
            name=Path(settings.nodes[0]).stem,
            task=coder.task,
            features=made.width,
            outputs=coder.outputs,
            parts=tuple(record for record, _ in records),
            partition=settings.partition,
            class_names=coder.class_names,
            split=settings.split,
            graph=graph,
            encoder=made.encoder.to_json(),
            found=found,
        )

    def _partition(self) -> Array | None:
        """The part of each row, None for ranges."""
        settings, rows = self.settings, self.nodes.rows
        if settings.partition == "range":
            return None
        if settings.partition == "hash":
            spread = hashed(np.arange(rows, dtype=np.uint64)) % np.uint64(settings.parts)
            return spread.astype(np.int32)
        kept = self.work / "parts.npy"
        if kept.exists():
            with reading(kept, error=DataError):
                return np.load(kept, allow_pickle=False)
        assert self.edges is not None  # the settings check it
        table = self._edge_table(self.edges, None)
        each = 2 * (table.state.kept - table.state.loops)
        if settings.partition == "metis" and METIS_BYTES * each > self.memory:
            need = METIS_BYTES * each / 1e9
            raise DataError(
                f"partition metis needs about {need:.1f}GB for {each:,} edges, --memory is "
                f"{settings.memory}: use --partition streaming"
            )
        self.tell(f"partitioning by {settings.partition}", None)
        chosen = metis_parts if settings.partition == "metis" else stream_parts
        part = chosen(table.blocks, rows, settings.parts)
        with ArrayWriter(kept, np.int32) as file:
            file.append(part)
        return part

    def _sorted_edges(self, edges: Files, layout: Layout) -> EdgeTable:
        """The edges by the new numbers of the rows."""
        if self.settings.partition in ("range", "hash"):
            return self._edge_table(edges, layout.new())
        moved = EdgeTable.read(self.work / "moved")
        if moved is None:  # the partition has read and sorted them by the file's numbers
            table, new = self._edge_table(edges, None), layout.new()
            assert new is not None
            self.tell("sorting edges by part", None)
            moved = table.renumbered(new, self.work / "moved")
            table.remove()
        return moved

    def _edge_table(self, edges: Files, new: Array | None) -> EdgeTable:
        """The edges by the numbers of the rows in the file, or by `new` ones."""
        place = self.work / "edges"
        table = EdgeTable.read(place)
        if table is not None:
            return table
        total = edges.rows

        def pairs() -> Iterator[Pairs]:
            done = 0
            for found in pairs_of(edges, self.nodes, self.settings.id, self.work):
                self.tell("reading edges", min(1.0, done / max(total, 1)))
                done += len(found.source)
                yield found if new is None else found.renumbered(new)

        weighted = edge_columns(edges)[1] is not None
        return EdgeTable.spread(place, self.nodes.rows, pairs(), total, weighted)

    def _nearest(self) -> EdgeTable:
        """The edges of each row and its nearest ones, from the rows that are written."""
        k, rows, place = self.settings.neighbours, self.nodes.rows, self.work / "nearest"
        table = EdgeTable.read(place)
        if table is None:
            if k >= rows:
                raise DataError(f"neighbours must be fewer than the {rows} rows, got {k}")
            parts = [part_array(self.out, part, "x") for part in range(self.settings.parts)]
            pairs = nearest_pairs(
                parts, k, self.memory, partial(self.tell, "looking for neighbours")
            )
            table = EdgeTable.spread(place, rows, pairs, rows * k, False)
        return table

    def _write_rows(self, encoder: RowEncoder, layout: Layout) -> None:
        """One pass over the nodes; with ranges one part is open at a time, else all are."""
        sizes, first = np.diff(layout.starts), 0
        wanted = np.array([not is_written(self.out, k, "rows") for k in layout.parts])
        if not wanted.any():
            return
        with ExitStack() as stack:
            writers: dict[int, PartRows] = {}
            for chunk in self.nodes.chunks(CHUNK, "writing rows"):
                size = rows_of(chunk)
                of = layout.of(first, first + size)
                if wanted[of].any():
                    encoded = encoder.encode(chunk, first)
                    for k in np.unique(of[wanted[of]]).tolist():
                        if k not in writers:
                            writers[k] = stack.enter_context(PartRows(self.out, k))
                        writers[k].append(encoded, np.flatnonzero(of == k))
                first += size
                for k in [k for k, w in writers.items() if w.rows == sizes[k]]:
                    writers.pop(k).finish()
            if writers or first < self.nodes.rows:
                raise DataError(f"{self.nodes}: changed while it was read: it has fewer rows now")

    def _write_edges(self, layout: Layout, table: EdgeTable | None) -> None:
        """Write the edges and the record of each part that has none yet."""
        missing = [k for k in layout.parts if not is_written(self.out, k, "part")]
        if table is None or not missing:
            for k in missing:
                finish_part(self.out, k, {}, edges=0, cut=0, repeated=0)
            return
        first, bounds = missing[0], layout.starts[missing[0] : missing[-1] + 2].tolist()
        for place, pieces in groupby(table.between(bounds), itemgetter(0)):
            if first + place in missing:
                self.tell("writing edges", place / (len(bounds) - 1))
                ends, found = (bounds[place], bounds[place + 1]), (piece for _, piece in pieces)
                write_edges(self.out, first + place, ends, found, table.weighted)

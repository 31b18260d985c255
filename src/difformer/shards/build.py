"""From files of nodes and edges to a sharded dataset, in bounded memory, from top to bottom.

Two passes over the nodes: one learns the columns and labels, one encodes and writes the rows. One
pass over the edges spreads them over buckets, which are sorted one by one. Finished stages are
kept, so that the same call resumes where an interrupted one ended.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.split import PARTS
from difformer.data.table.cells import is_missing
from difformer.data.table.encoder import TableEncoder
from difformer.data.table.files import Chunk, rows_of
from difformer.data.table.read import LabelCoder
from difformer.errors import DataError
from difformer.files import json_text, reading, write_atomic
from difformer.shards.edges import EdgeTable, Pairs, nearest_pairs
from difformer.shards.engine import EdgeFiles, Engine, Files, Tell, matching, named
from difformer.shards.folder import WORK, PartRows, record_of, write_edges
from difformer.shards.partition import (
    METIS_BYTES,
    Layout,
    ShardSettings,
    hashed,
    memory_bytes,
    metis_parts,
    stream_parts,
)
from difformer.shards.store import MANIFEST, Manifest, PartRecord, array_writer, part_folder

ASKED = "asked.json"  # the settings and the files read, by which a repeated call is recognised
CHUNK = 32_768  # rows encoded together
MOST_NUMBERS = 1 << 16  # numbers of a column that are held to learn from, see `columns.Numbers`
MOST_LABELS = 10_000  # the most classes
SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}

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
        manifest = _Stages(settings, out, engine).run(cluster=cluster)
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


class _Stages:
    """One sharding, stage by stage; each stage reuses what an earlier call finished."""

    def __init__(self, settings: ShardSettings, out: Path, engine: Engine) -> None:
        self.settings, self.out, self.engine, self.tell = settings, out, engine, engine.tell
        self.work, self.memory = out / WORK, memory_bytes(settings.memory)
        self.nodes = Files(engine, settings.nodes, "nodes", header=settings.header)
        for column in (*settings.label, settings.id, settings.split_column):
            if column is not None and column not in self.nodes.types:
                known = ", ".join(self.nodes.types)
                raise DataError(f"{self.nodes}: has no column {column!r}; it has {known}")
        self.edges = None
        if settings.edges:
            self.edges = EdgeFiles(self.nodes, settings, self.work)

    def run(self, *, cluster: bool) -> Manifest:
        settings, rows = self.settings, self.nodes.rows
        if rows < settings.parts:
            raise DataError(f"parts must be at most the {rows} rows, got {settings.parts}")
        made = RowEncoder.learn(settings, self.nodes)
        layout = Layout.make(self._partition(), rows, settings.parts)
        if cluster:
            from difformer.shards.far import write_parts

            self.tell("writing parts on the cluster", None)
            write_parts(self.nodes, self.edges, made, layout, self.out, self.work)
            return self._manifest(made)
        table = None if self.edges is None else self._sorted_edges(layout.new())
        self.engine.shrink()  # DuckDB has nothing more to do
        self._write_rows(made, layout)
        if settings.neighbours:
            table = self._nearest()
        if table is not None:
            self._write_edges(layout, table)
        return self._manifest(made)

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
        table = self._table("edges", self._read_edges())
        if settings.partition == "metis" and METIS_BYTES * table.size > self.memory:
            need = METIS_BYTES * table.size / 1e9
            raise DataError(
                f"partition metis needs about {need:.1f}GB for {table.size:,} edges, --memory is "
                f"{settings.memory}: use --partition streaming"
            )
        self.tell(f"partitioning by {settings.partition}", None)
        chosen = metis_parts if settings.partition == "metis" else stream_parts
        part = chosen(table.blocks, rows, settings.parts)
        with array_writer(kept, np.int32) as file:
            file.append(part)
        return part

    def _sorted_edges(self, new: Array | None) -> EdgeTable:
        """The edges by the new numbers of the rows."""
        if self.settings.partition in ("range", "hash"):
            return self._table("edges", self._read_edges(new))
        return self._table("moved", self._moved(new))

    def _table(self, name: str, pairs: Iterator[Pairs]) -> EdgeTable:
        """A table of the edges of the file, if no earlier call has finished it."""
        assert self.edges is not None  # the settings check it
        told = self.nodes.rows, self.edges.rows, self.edges.weighted
        return EdgeTable(self.work / name, *told).fill(pairs)

    def _read_edges(self, new: Array | None = None) -> Iterator[Pairs]:
        """The edges by the numbers of the rows in the file, or by `new` ones."""
        assert self.edges is not None
        done, total = 0, max(self.edges.rows, 1)
        for pairs in self.edges.pairs():
            self.tell("reading edges", min(1.0, done / total))
            done += len(pairs.source)
            yield pairs.renumbered(new)

    def _moved(self, new: Array | None) -> Iterator[Pairs]:
        """The edges, which the partition has read by the numbers in the file, by `new` ones."""
        table = self._table("edges", self._read_edges())
        self.tell("sorting edges by part", None)
        for pairs in table.pairs():
            yield pairs.renumbered(new)
        shutil.rmtree(table.folder)

    def _nearest(self) -> EdgeTable:
        """The edges of each row and its nearest ones, from the rows that are written."""
        k, rows = self.settings.neighbours, self.nodes.rows
        if k >= rows:
            raise DataError(f"neighbours must be fewer than the {rows} rows, got {k}")
        tell = partial(self.tell, "looking for neighbours")
        parts = [
            np.load(part_folder(self.out, part) / "x.npy", mmap_mode="r", allow_pickle=False)
            for part in range(self.settings.parts)
        ]
        table = EdgeTable(self.work / "nearest", rows, rows * k, weighted=False)
        return table.fill(nearest_pairs(parts, k, self.memory, tell))

    def _write_rows(self, encoder: RowEncoder, layout: Layout) -> None:
        """One pass over the nodes; with ranges one part is open at a time, else all are."""
        sizes, first = np.diff(layout.starts), 0
        wanted = np.array([not record_of(self.out, k) for k in layout.parts])
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

    def _write_edges(self, layout: Layout, table: EdgeTable) -> None:
        """Write the edges of each part from the first on that has none yet, in order."""
        missing = [k for k in layout.parts if "edges" not in record_of(self.out, k)]
        if not missing:
            return
        bounds = layout.starts[missing[0] :].tolist()
        for place, pieces in groupby(table.between(bounds), itemgetter(0)):
            self.tell("writing edges", place / (len(bounds) - 1))
            ends, found = (bounds[place], bounds[place + 1]), (piece for _, piece in pieces)
            write_edges(self.out, missing[0] + place, ends, found, table.weighted)

    def _manifest(self, made: RowEncoder) -> Manifest:
        """The manifest of the written parts."""
        settings, coder = self.settings, made.coder
        records = [record_of(self.out, k) for k in range(settings.parts)]
        found: dict[str, int] = {}
        graph = self.edges is not None or settings.neighbours > 0
        if graph:
            read, loops, repeated = (
                sum(record[name] for record in records) for name in ("read", "loops", "repeated")
            )
            if self.edges is not None:
                total = self.edges.rows
                found = {"edges read": total, "dangling edges": total - read, "loops": loops}
            found["repeated edges"] = repeated
        return Manifest(
            name=Path(settings.nodes[0]).stem,
            task=coder.task,
            features=made.width,
            outputs=coder.outputs,
            parts=tuple(PartRecord.from_json({"edges": 0, "cut": 0, **each}) for each in records),
            partition=settings.partition,
            class_names=coder.class_names,
            split=settings.split,
            graph=graph,
            encoder=made.encoder.to_json(),
            found=found,
        )


@dataclass(frozen=True)
class RowEncoder:
    """What was learned about the nodes, and how their rows become arrays."""

    settings: ShardSettings
    coder: LabelCoder
    encoder: TableEncoder
    whole: bool  # the ids are whole numbers by their type
    name: str  # of the files, for errors

    @classmethod
    def learn(cls, settings: ShardSettings, nodes: Files) -> RowEncoder:
        """Learn the labels by queries, and the columns in one pass over the nodes."""
        coder = _learn_labels(settings, nodes)
        label = settings.label[0] if len(settings.label) == 1 else tuple(settings.label)
        kinds = dict(settings.kinds or {})
        if settings.split_column is not None:
            kinds[settings.split_column] = "skip"
        told: Any = {"label": label, "id": settings.id, "kinds": kinds}
        encoder = TableEncoder.learn(nodes, **told, size=CHUNK, most=MOST_NUMBERS)
        text = next((c.name for c in encoder.columns if c.kind == "text"), None)
        if text is not None:
            raise DataError(
                f"{nodes}: column {text!r} is free text, which is not sharded: leave it out "
                f"(--kind {text}=skip), or turn it into numbers first (difformer features)"
            )
        whole = settings.id is not None and nodes.whole(settings.id)
        learned = cls(settings, coder, encoder, whole, str(nodes))
        for path, array in zip(settings.features, learned.more, strict=True):
            if len(array) != nodes.rows:
                raise DataError(f"{path} has {len(array):,} rows, the nodes have {nodes.rows:,}")
        return learned

    @cached_property
    def more(self) -> list[Array]:
        """Features that an encoder of texts or images wrote, (n, p) each, mapped."""
        found: list[Array] = []
        for path in self.settings.features:
            with reading(Path(path), error=DataError):
                found.append(np.load(path, mmap_mode="r", allow_pickle=False))
            if found[-1].ndim != 2 or found[-1].dtype.kind != "f":
                raise DataError(f"{path} must hold one row of numbers per node")
        return found

    @property
    def width(self) -> int:
        """How many features a row has."""
        return self.encoder.width + sum(array.shape[1] for array in self.more)

    def encode(self, chunk: Chunk, first: int) -> dict[str, Any]:
        """The arrays of a chunk that starts with row `first`; ids are numbers, or texts' bytes."""
        settings = self.settings
        x = self.encoder.encode_chunk(chunk, first + 1, self.name, strict=False)
        assert not sparse.issparse(x)
        if self.more:
            rows = slice(first, first + len(x))
            x = np.hstack([x, *(array[rows].astype(np.float32) for array in self.more)])
        y = self.coder.encode(chunk)
        row = np.arange(first, first + len(x))
        known = y >= 0 if y.ndim == 1 else ~np.isnan(y).all(1)
        found: dict[str, Any] = {
            "x": x,
            "y": y,
            "split": np.where(known, self._split(chunk, row), -1).astype(np.int8),
            "row": row,
        }
        if settings.id is not None and self.whole:
            found["ids"] = np.asarray(chunk[settings.id]).astype(np.int64)
        elif settings.id is not None:
            texts = [str(cell).strip().encode() for cell in chunk[settings.id]]
            found["ids"] = np.array(texts, object)
        return found

    def _split(self, chunk: Chunk, row: Array) -> Array:
        """0, 1, 2 or -1 for each row: drawn by its number, or read from its column."""
        column, ratios = self.settings.split_column, self.settings.ratios
        if column is not None:
            words = ["" if is_missing(c) else str(c).strip().lower() for c in chunk[column]]
            unknown = next((w for w in words if w and w not in SPLITS), None)
            if unknown is not None:
                raise DataError(
                    f"{self.name}: column {column!r} must say train, val or test, got {unknown!r}"
                )
            return np.array([SPLITS.get(word, -1) for word in words])
        assert ratios is not None
        drawn = hashed(row.astype(np.uint64), ratios[3] + 1) / 2.0**64
        bounds = np.cumsum(ratios[:3])
        bounds[-1] = np.inf if bounds[-1] > 1 - 1e-9 else bounds[-1]
        place = np.searchsorted(bounds, drawn, side="right")
        return np.where(place < len(PARTS), place, -1)


def _learn_labels(settings: ShardSettings, nodes: Files) -> LabelCoder:
    """From the distinct labels and how many rows have one, which DuckDB counts."""
    distinct: dict[str, list[Any]] = {}
    rows = 0
    for column in settings.label:
        query = (
            f"SELECT {named(column)}, count(*) FROM {nodes.sql} "
            f"WHERE {named(column)} IS NOT NULL GROUP BY 1 LIMIT {MOST_LABELS + 1}"
        )
        found = nodes.engine.run(query, "looking at labels")
        distinct[column] = [row[0] for row in found]
        rows = max(rows, sum(row[1] for row in found if not is_missing(row[0])))
        if not found:
            raise DataError(f"{nodes}: the label column {column!r} is empty in every row")
    task = settings.task
    if any(len(cells) > MOST_LABELS for cells in distinct.values()):
        task = task or "regression"
        if task != "regression":
            raise DataError(f"{nodes}: labels must be at most {MOST_LABELS:,} classes")
    return LabelCoder.learn(distinct, rows, file=str(nodes), task=task)

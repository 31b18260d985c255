"""From files of nodes and edges to a sharded dataset, in bounded memory.

Two passes over the nodes (one learns the columns and labels, one encodes and writes), DuckDB's
joins and sort for the edges. Finished stages are kept: the same call resumes where a killed one
ended.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from difformer.data.cells import is_missing
from difformer.data.encoder import TableEncoder
from difformer.data.labels import LabelCoder
from difformer.data.rawtable import Chunk
from difformer.data.shards.arrays import ArrayWriter
from difformer.data.shards.edges import EdgeTable, map_edges
from difformer.data.shards.engine import Engine, Files, Tell, matching, named
from difformer.data.shards.manifest import MANIFEST, ArrayRecord, Manifest, PartRecord, part_folder
from difformer.data.shards.parts import hashed, metis_parts, stream_parts
from difformer.data.shards.settings import ShardSettings, memory_bytes
from difformer.data.split import PARTS
from difformer.errors import DataError
from difformer.files import reading, write_atomic

__all__ = ["make_shards"]

WORK = ".work"
ASKED = "asked.json"  # the settings and the files read, by which a repeated call is recognised
CHUNK = 32_768  # rows encoded together
MOST_NUMBERS = 1 << 16  # numbers of a column that are held to learn from, see `columns.Numbers`
MOST_LABELS = 10_000  # the most classes
METIS_BYTES = 60  # bytes of memory that METIS takes per directed edge, about
SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}

Array = NDArray[Any]


def make_shards(settings: ShardSettings, out: Path, *, tell: Tell, held: int = 0) -> Manifest:
    """Shard files into the folder `out`; `held` are bytes that this process holds already.

    An interrupted call is resumed if files and settings are the same; a finished one returns its
    manifest.
    """
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
        manifest = _Job(settings, out, engine, tell).run()
    finally:
        engine.close()
    manifest.write(out)
    shutil.rmtree(work, ignore_errors=True)
    return manifest


def _asked(settings: ShardSettings) -> str:
    files = [path for name in (*settings.nodes, *settings.edges) for path in matching(name)]
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

    def run(self) -> Manifest:
        settings = self.settings
        rows = self.nodes.count()
        if rows < settings.parts:
            raise DataError(f"parts must be at most the {rows} rows, got {settings.parts}")
        coder, encoder = self._learned(rows)
        found: dict[str, int] = {}
        table = None
        if self.edges is not None:
            table, found = self._edges(rows, self.edges)
        part, table = self._partition(rows, table)
        layout = _Layout.make(part, rows, settings.parts)
        writing = _Writing(self, coder, encoder, layout, table)
        records, repeated = writing.all()
        if table is not None:
            found |= {"repeated edges": repeated}
        return Manifest(
            name=Path(settings.nodes[0]).stem,
            task=coder.task,
            features=encoder.width,
            outputs=coder.outputs,
            parts=tuple(records),
            partition=settings.partition,
            class_names=coder.class_names,
            split=settings.split,
            graph=table is not None,
            encoder=encoder.to_json(),
            found=found,
        )

    def _learned(self, rows: int) -> tuple[LabelCoder, TableEncoder]:
        """Columns and labels from one pass over the nodes, or from an earlier call."""
        settings, kept = self.settings, self.out / WORK / "learned.json"
        if kept.exists():
            with reading(kept, error=DataError):
                record = json.loads(kept.read_text(encoding="utf-8"))
                known: dict[str, Any] = record["coder"]
                for name in ("columns", "class_names", "written"):
                    known[name] = tuple(known[name])
                return LabelCoder(**known), TableEncoder.from_json(record["encoder"])
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

    def _edges(self, rows: int, edges: Files) -> tuple[EdgeTable, dict[str, int]]:
        """The sorted table of edges by the numbers of rows in the file."""
        engine, kept = self.engine, self.out / WORK / "edges.json"
        table = EdgeTable(engine, rows, len(edges.types) == 3)
        if kept.exists():
            with reading(kept, error=DataError):
                return table, json.loads(kept.read_text(encoding="utf-8"))
        for name in ("ids", "pairs", "sorted"):
            engine.run(f"DROP TABLE IF EXISTS {name}")
        if self.settings.id is not None:
            self._number_ids(self.settings.id)
        pairs, found = map_edges(engine, edges, rows, self.settings.id is not None)
        engine.run("DROP TABLE IF EXISTS ids")
        table.make(pairs)
        engine.run(f"DROP TABLE {pairs}")
        engine.run("CHECKPOINT")
        write_atomic(kept, json.dumps(found), error=DataError)
        return table, found

    def _number_ids(self, id: str) -> None:
        key = self.nodes.key(id, self.nodes.whole(id))
        self.engine.run(
            f"CREATE TABLE ids AS SELECT row_number() OVER () - 1 AS row, {key} AS id "
            f"FROM {self.nodes.sql}",
            "numbering ids",
        )
        empty = self.engine.one(
            "SELECT row FROM ids WHERE id IS NULL OR CAST(id AS VARCHAR) = '' LIMIT 1"
        )
        if empty is not None:
            raise DataError(f"{self.nodes}: row {empty[0] + 1}, column {id!r}: the id is empty")
        twice = self.engine.one(
            "SELECT id, min(row), max(row) FROM ids GROUP BY id HAVING count(*) > 1 LIMIT 1",
            "looking for repeated ids",
        )
        if twice is not None:
            where = f"{self.nodes}: row {twice[2] + 1}, column {id!r}"
            raise DataError(f"{where}: the id {str(twice[0])!r} is also that of row {twice[1] + 1}")

    def _partition(self, rows: int, table: EdgeTable | None) -> tuple[Array | None, Any]:
        """The part of each row, None for ranges, and the edges by the new numbers of the rows."""
        settings, kept = self.settings, self.out / WORK / "parts.npy"
        if settings.partition == "range":
            return None, table
        if kept.exists():
            with reading(kept, error=DataError):
                part = np.load(kept, allow_pickle=False)
        else:
            part = self._parts(rows, table)
            with ArrayWriter(kept, np.int32) as file:
                file.append(part)
        if table is None:
            return part, None
        moved = EdgeTable(self.engine, rows, table.weighted, "moved")
        if not self.engine.has("moved"):
            moved = table.renumbered(_Layout.make(part, rows, settings.parts).new(), "moved")
            self.engine.run("CHECKPOINT")
        return part, moved

    def _parts(self, rows: int, table: EdgeTable | None) -> Array:
        settings = self.settings
        if settings.partition == "hash" or table is None:
            spread = hashed(np.arange(rows, dtype=np.uint64)) % np.uint64(settings.parts)
            return spread.astype(np.int32)
        self.tell(f"partitioning by {settings.partition}", None)
        if settings.partition == "streaming":
            return stream_parts(table.blocks, rows, settings.parts)
        edges = int(self.engine.one(f"SELECT count(*) FROM {table.table}")[0])
        if METIS_BYTES * edges > memory_bytes(settings.memory):
            need = METIS_BYTES * edges / 1e9
            raise DataError(
                f"partition metis needs about {need:.1f}GB for {edges:,} edges, --memory is "
                f"{settings.memory}: use --partition streaming"
            )
        blocks = list(table.blocks())
        total = np.cumsum([0, *(len(sources) for _, _, sources in blocks)])
        ends = [ends + before for (_, ends, _), before in zip(blocks, total, strict=False)]
        starts = np.concatenate([[0], *ends])
        return metis_parts(starts, np.concatenate([b[2] for b in blocks]), settings.parts)


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


@dataclass(frozen=True)
class _Layout:
    """Where each row goes: part by part, within a part in the order of the file."""

    part: Array | None  # (n,), None for ranges
    starts: Array  # (parts + 1,)

    @classmethod
    def make(cls, part: Array | None, rows: int, parts: int) -> _Layout:
        if part is None:
            return cls(None, np.array([rows * k // parts for k in range(parts + 1)]))
        return cls(part, np.cumsum([0, *np.bincount(part, minlength=parts)]))

    def new(self) -> Array:
        """(n,): the new number of each row."""
        assert self.part is not None
        order = np.argsort(self.part, kind="stable")
        new: Array = np.empty(len(order), np.int32)
        new[order] = np.arange(len(order), dtype=np.int32)
        return new

    def of(self, first: int, last: int) -> Array:
        """The parts of a range of the file's rows."""
        if self.part is not None:
            return self.part[first:last]
        return np.searchsorted(self.starts, np.arange(first, last), side="right") - 1


class _Writing:
    """The parts being written: rows in one pass over the nodes, edges part by part."""

    def __init__(
        self,
        job: _Job,
        coder: LabelCoder,
        encoder: TableEncoder,
        layout: _Layout,
        table: EdgeTable | None,
    ) -> None:
        self.job, self.coder, self.encoder = job, coder, encoder
        self.layout, self.table = layout, table

    def all(self) -> tuple[list[PartRecord], int]:
        """Write what is missing; the records of all parts, and the edges found repeated."""
        parts = len(self.layout.starts) - 1
        self._rows([k for k in range(parts) if not self._file(k, "rows").exists()])
        records: list[PartRecord] = []
        repeated = 0
        for k in range(parts):
            self.job.tell("writing edges", k / parts)
            if not self._file(k, "part").exists():
                self._finish(k)
            with reading(self._file(k, "part"), error=DataError):
                record = json.loads(self._file(k, "part").read_text(encoding="utf-8"))
                records.append(PartRecord.from_json(record))
                repeated += record["repeated"]
        return records, repeated

    def _file(self, part: int, name: str) -> Path:
        return part_folder(self.job.out, part) / f"{name}.json"

    def _rows(self, missing: list[int]) -> None:
        """One pass over the nodes; with ranges one part is open at a time, else all are."""
        if not missing:
            return
        wanted = np.zeros(len(self.layout.starts) - 1, bool)
        wanted[missing] = True
        nodes, rows = self.job.nodes, int(self.layout.starts[-1])
        source, first = _Counted(nodes, rows, self.job.tell, "writing rows"), 0
        with ExitStack() as stack:
            writers: dict[int, _PartWriter] = {}
            for chunk in source.chunks(CHUNK):
                size = len(next(iter(chunk.values())))
                of = self.layout.of(first, first + size)
                if wanted[of].any():
                    encoded = self._encoded(chunk, first)
                    for k in np.unique(of[wanted[of]]).tolist():
                        if k not in writers:
                            made = _PartWriter(part_folder(self.job.out, k), encoded)
                            writers[k] = stack.enter_context(made)
                        writers[k].append(encoded, np.flatnonzero(of == k))
                first += size
                for k in [k for k, w in writers.items() if w.rows == self._size(k)]:
                    writers.pop(k).finish()
            for k, writer in writers.items():
                if writer.rows < self._size(k):
                    raise DataError(f"{nodes}: changed while it was read: it has fewer rows now")

    def _size(self, part: int) -> int:
        return int(self.layout.starts[part + 1] - self.layout.starts[part])

    def _encoded(self, chunk: Chunk, first: int) -> dict[str, Any]:
        """The arrays of some rows of the file, and the ids as texts or numbers."""
        nodes, settings = self.job.nodes, self.job.settings
        x = self.encoder.encode_chunk(chunk, first + 1, nodes, strict=False)
        assert not sparse.issparse(x)
        y = self.coder.encode(chunk)
        row = np.arange(first, first + len(x))
        known = y >= 0 if y.ndim == 1 else ~np.isnan(y).all(1)
        found: dict[str, Any] = {
            "x": x,
            "y": y,
            "split": np.where(known, self._split(chunk, row), -1).astype(np.int8),
            "row": row,
        }
        if settings.id is not None and nodes.whole(settings.id):
            found["ids"] = np.asarray(chunk[settings.id]).astype(np.int64)
        elif settings.id is not None:
            found["texts"] = [str(cell).strip().encode() for cell in chunk[settings.id]]
        return found

    def _split(self, chunk: Chunk, row: Array) -> Array:
        """0, 1, 2 or -1 for each row: drawn by its number, or as its column says."""
        column, ratios = self.job.settings.split_column, self.job.settings.ratios
        if column is not None:
            words = ["" if is_missing(c) else str(c).strip().lower() for c in chunk[column]]
            unknown = next((w for w in words if w and w not in SPLITS), None)
            if unknown is not None:
                raise DataError(
                    f"{self.job.nodes}: column {column!r} must say train, val or test, "
                    f"got {unknown!r}"
                )
            return np.array([SPLITS.get(word, -1) for word in words])
        assert ratios is not None
        drawn = hashed(row.astype(np.uint64), ratios[3] + 1) / 2.0**64
        bounds = np.cumsum(ratios[:3])
        bounds[-1] = np.inf if bounds[-1] > 1 - 1e-9 else bounds[-1]
        place = np.searchsorted(bounds, drawn, side="right")
        return np.where(place < len(PARTS), place, -1)

    def _finish(self, part: int) -> None:
        """Write the edges of a part whose rows are there, and then its record."""
        place, starts = part_folder(self.job.out, part), self.layout.starts
        with reading(self._file(part, "rows"), error=DataError):
            record = json.loads(self._file(part, "rows").read_text(encoding="utf-8"))
        low, high = int(starts[part]), int(starts[part + 1])
        edges = cut = repeated = 0
        if self.table is not None:
            with ExitStack() as stack:
                col = stack.enter_context(ArrayWriter(place / "col.npy", np.int32))
                crow = stack.enter_context(ArrayWriter(place / "crow.npy", np.int64))
                weight = None
                if self.table.weighted:
                    weight = stack.enter_context(ArrayWriter(place / "weight.npy", np.float32))
                entering: Array = np.zeros(high - low + 1, np.int64)
                for piece in self.table.between(low, high):
                    col.append(piece.source)
                    if weight is not None and piece.weight is not None:
                        weight.append(piece.weight)
                    entering[1:] += np.bincount(piece.target - low, minlength=high - low)
                    cut += int(((piece.source < low) | (piece.source >= high)).sum())
                    repeated += piece.repeated
                edges = col.rows
                crow.append(np.cumsum(entering))
                made = {"col": col, "crow": crow, **({"weight": weight} if weight else {})}
            record["files"] |= {n: asdict(w.record) for n, w in made.items()}
        record |= {"edges": edges, "cut": cut, "repeated": repeated}
        write_atomic(self._file(part, "part"), json.dumps(record), error=DataError)


class _PartWriter:
    """The files of one part's rows while they are written."""

    TYPES = (("x", np.float32), ("split", np.int8), ("row", np.int64))

    def __init__(self, place: Path, first: Mapping[str, Any]) -> None:
        self.place, self.rows = place, 0
        self._counts: Array = np.zeros(len(PARTS), np.int64)
        self._bytes = 0
        self._stack = ExitStack()
        types: list[tuple[str, Any]] = [*self.TYPES, ("y", first["y"].dtype)]
        types += [("ids", np.int64)] if "ids" in first else []
        types += [("ids", np.uint8), ("id_ends", np.int64)] if "texts" in first else []
        tails = {name: first[name].shape[1:] for name in ("x", "y")}
        self._files = {
            name: ArrayWriter(place / f"{name}.npy", dtype, tails.get(name, ()))
            for name, dtype in types
        }

    def __enter__(self) -> _PartWriter:
        for file in self._files.values():
            self._stack.enter_context(file)
        return self

    def append(self, encoded: Mapping[str, Any], rows: Array) -> None:
        """Add some rows of a chunk."""
        for name in ("x", "y", "split", "row"):
            self._files[name].append(encoded[name][rows])
        if "ids" in encoded:
            self._files["ids"].append(encoded["ids"][rows])
        if "texts" in encoded:
            texts = [encoded["texts"][i] for i in rows]
            self._files["ids"].append(np.frombuffer(b"".join(texts), np.uint8))
            ends = self._bytes + np.cumsum([len(text) for text in texts])
            self._files["id_ends"].append(ends)
            self._bytes = int(ends[-1])
        split = encoded["split"][rows]
        self._counts += np.bincount(split[split >= 0], minlength=len(PARTS))
        self.rows += len(rows)

    def finish(self) -> None:
        """Put the files in place, and then their record."""
        self._stack.close()
        files: dict[str, ArrayRecord] = {n: f.record for n, f in self._files.items()}
        counts = dict(zip(PARTS, self._counts.tolist(), strict=True))
        record = {"rows": self.rows, **counts, "files": {n: asdict(f) for n, f in files.items()}}
        write_atomic(self.place / "rows.json", json.dumps(record), error=DataError)

    def __exit__(self, *error: Any) -> bool | None:
        return self._stack.__exit__(*error)

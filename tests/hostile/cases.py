"""What is fuzzed: for each format whole samples, damage, and a use whose answer can be checked.

A use returns where the answer is right, raises a DifformerError where the file is refused, and
AssertionError where the answer is wrong.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import tomli_w
import torch
from mutate import TEXTS, VALUES, change_value, damage_bytes, damage_header, damage_json
from samples import (
    HEADER,
    as_csv,
    make_rows,
    prepare_models,
    prepare_runs,
    train_small,
    train_table,
)

from difformer.data.graphs import read_step_edges
from difformer.data.series import read_series_file
from difformer.data.table.read import read_table
from difformer.errors import DifformerError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.files import read_toml
from difformer.jobs.own import OwnRun
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.model import DIFFormer
from difformer.runs.answer import predict_run
from difformer.runs.open import load_run
from difformer.runs.run import find_runs, summary
from difformer.tensorfiles import read_tensors, write_tensors

Damage = Callable[[bytes, Random], bytes]
Case = Callable[[Path, Path, Random], None]
Use = Callable[[Path, Path], None]  # the folder of the samples, the damaged file

PROBE = torch.linspace(-2, 2, 5 * 6, dtype=torch.float64).reshape(5, 6)


# --- damage ----------------------------------------------------------------------------------


def odd_cells(content: bytes, draw: Random) -> bytes:
    rows = make_rows()
    for _ in range(draw.randrange(1, 6)):
        rows[draw.randrange(len(rows))][draw.choice(HEADER)] = draw.choice(VALUES[:-6])
    return as_csv(rows)


def odd_parquet(content: bytes, draw: Random) -> bytes:
    """A column of a type that a table has seldom, with extreme values."""
    table, n = pyarrow.Table.from_pylist(make_rows()), 40
    ints = [draw.choice((0, 1, -1, 2**62, -(2**63), 2**63 - 1, None)) for _ in range(n)]
    large = pyarrow.array(ints, pyarrow.int64())
    small = pyarrow.array([i and i % 2**16 for i in ints], pyarrow.int32())
    floats = [draw.choice((1e308, float("inf"), float("nan"))) for _ in range(n)]
    columns = [
        *(large.cast(pyarrow.timestamp(unit), safe=False) for unit in ("s", "ms", "us", "ns")),
        large.cast(pyarrow.duration("us"), safe=False),
        small.cast(pyarrow.date32()),
        small.cast(pyarrow.time32("s")),
        pyarrow.array([[1, 2]] * n),
        pyarrow.array([{"a": 1}] * n),
        pyarrow.array([b"\xff\x00"] * n),
        pyarrow.array([str(i) for i in ints]).dictionary_encode(),
        pyarrow.nulls(n),
        pyarrow.array(floats),
        pyarrow.array([i % 2 == 0 for i in range(n)]),
        pyarrow.array([str(i) * 1000 for i in range(n)]),
        pyarrow.array(range(n)).cast(pyarrow.decimal128(38, 10)),
    ]
    name, column, file = draw.choice([*HEADER, "more", "kind"]), draw.choice(columns), io.BytesIO()
    if name in HEADER and draw.random() < 0.7:
        table = table.set_column(HEADER.index(name), name, column)
    else:
        table = table.append_column(name, column)
    try:
        parquet.write_table(table, file)
    except pyarrow.ArrowException:  # no such file can be written
        return content
    return file.getvalue()


def odd_npz(content: bytes, draw: Random) -> bytes:
    n, file = 40, io.BytesIO()
    odd: list[Any] = [
        np.full(n, 1 + 2j),
        np.array(["2020-01-01"] * n, "datetime64[D]"),
        np.full(n, np.iinfo(np.int64).min).view("datetime64[s]"),
        np.full(n, 2**62).view("datetime64[ns]"),
        *(np.zeros((n, 0)), np.zeros((n, 3, 2)), np.zeros(n, [("a", "f8")]), np.zeros(n, "V8")),
        *(np.array(5.0), np.zeros(n, bool), np.zeros(3), np.arange(n, dtype=np.timedelta64)),
        *(np.full(n, b"\xff"), np.full(n, 1e308), np.full((n, 2), np.inf, np.float16)),
        *(np.full(n, 2**63, np.uint64), np.longdouble([1e300] * n) ** 2),
    ]
    with np.load(io.BytesIO(content)) as kept:
        arrays = dict(kept)
    arrays[draw.choice([*arrays, "more", "kind", "name"])] = draw.choice(odd)
    np.savez(file, **arrays)
    return file.getvalue()


def odd_toml(content: bytes, draw: Random) -> bytes:
    try:
        changed = change_value(read_toml(content.decode()), draw, VALUES[1:16])
        return tomli_w.dumps(changed).encode("utf-8", "replace")
    except (TypeError, ValueError, AttributeError):
        return b"x = 1\n"


def forge(source: Path, target: Path, kind: str, draw: Random) -> None:
    """A file with a right checksum over a description or tensors that were changed."""
    tensors, description = read_tensors(source, kind)
    if draw.random() < 0.7:
        values = tuple(v for v in VALUES if v != TEXTS[7])  # a lone surrogate is no text
        description = change_value(description, draw, values)
        description = description if isinstance(description, dict) else {}
    else:
        name = draw.choice(sorted(tensors))
        t = tensors.pop(name)
        changes: list[Callable[[], Any]] = [
            lambda: t[:0] if t.ndim else t.reshape(1),
            lambda: torch.cat([t, t]) if t.ndim else t.expand(2),
            lambda: t.reshape(-1),
            *(partial(t.to, kind) for kind in (torch.float16, torch.int64, torch.bool)),
            lambda: torch.full_like(t, -1),
            lambda: torch.full_like(t, 2**62) if not t.is_floating_point() else t * 1e3,
            lambda: t.to(torch.float64) * float("nan"),
            lambda: None,
        ]
        new = draw.choice(changes)()
        if new is not None:
            tensors[name if draw.random() < 0.9 else "other"] = new
    try:
        write_tensors(target, kind, tensors, description)
    except (ValueError, TypeError, OverflowError, RecursionError):  # no such file can be written
        shutil.copy(source, target)


# --- uses ------------------------------------------------------------------------------------


def read_as_table(root: Path, path: Path) -> None:
    """Read in one chunk and in many: the same finite numbers, one per row and column."""
    edges = path if path.name == "edges.csv" else None
    path = root / "t.csv" if edges else path
    whole = read_table(path, "kind", id="name", edges=edges)
    assert whole.num_rows == len(whole.y)
    x = whole.x if whole.x.layout == torch.strided else whole.x.to_dense()
    assert x.shape == (whole.num_rows, whole.encoder.width)
    assert bool(torch.isfinite(x).all()), "features that are not finite"
    assert not bool(torch.isinf(whole.y.float()).any()), "an infinite target"
    small = read_table(path, "kind", id="name", edges=edges, size=max(1, whole.num_rows // 3))
    assert small.fingerprint == whole.fingerprint, "another table in other chunks"


def read_as_series(root: Path, path: Path) -> None:
    files = {name: root / name for name in ("s.csv", "s_edges.csv")} | {path.name: path}
    series = read_series_file(files["s.csv"])
    assert not bool(np.isinf(series.values).any()), "an infinite value"
    assert series.values.shape == (len(series.stamps), len(series.names))
    for index, weight in read_step_edges(files["s_edges.csv"], series):
        assert index.numel() == 0 or int(index.max()) < len(series.names)
        finite = weight is None or bool(torch.isfinite(weight).all())
        assert finite, "a weight that is not finite"
    predict_run(root / "series", files["s.csv"], path.parent / "out.csv")
    for row in _lines(path.parent / "out.csv")[1:]:
        assert all(np.isfinite(float(cell)) for cell in row[1:]), f"not finite: {row}"


def _lines(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def answers_of(path: Path) -> Any:
    """What the model in a file answers."""
    with torch.no_grad():
        if path.stem == "model":
            return DIFFormer.load(path).double()(PROBE).numpy()
        if path.stem == "frozen":
            return FrozenDIFFormer.load(path)(PROBE).numpy()
    try:
        return DIFFormerClassifier.load(path).predict_proba(PROBE.numpy())
    except ValueError as error:  # a forged description wants other columns
        raise DifformerError(str(error)) from error


# --- cases -----------------------------------------------------------------------------------


def of_file(use: Use, name: str, *damages: Damage) -> Case:
    """Damage a sample in one of these ways, and use it."""

    def case(root: Path, place: Path, draw: Random) -> None:
        damage = draw.choice(damages)
        (place / name).write_bytes(damage((root / name).read_bytes(), draw))
        use(root, place / name)

    return case


def series_case(root: Path, place: Path, draw: Random) -> None:
    name = draw.choice(("s.csv", "s.csv", "s_edges.csv"))
    of_file(read_as_series, name, damage_bytes)(root, place, draw)


def tensors_case(name: str, root: Path, place: Path, draw: Random) -> None:
    source, path, way = root / name, place / name, draw.random()
    kind = source.stem
    if way < 0.4:
        forge(source, path, kind, draw)
    else:
        damage = damage_bytes if way < 0.7 else damage_header
        path.write_bytes(damage(source.read_bytes(), draw))
    if kind == "checkpoint":
        shutil.copytree(root / "cut", place / "cut")
        shutil.copy(path, place / "cut")
        train_small(place / "cut")
        found, right = (
            (folder / "model.safetensors").read_bytes()
            for folder in (place / "cut", root / "whole")
        )
        assert way < 0.4 or found == right, "other weights after a damaged checkpoint"
        return
    found = answers_of(path)
    assert np.isfinite(found).all(), "an answer that is not finite"
    assert way < 0.4 or np.array_equal(found, answers_of(source)), "another answer"


def run_case(root: Path, place: Path, draw: Random) -> None:
    """All that reads a run folder; each may refuse it, and what answers must answer as before."""
    kind = draw.choice(("own", "own", "dataset", "series"))
    folder = place / kind
    shutil.copytree(root / kind, folder)
    files = sorted(p.name for p in folder.iterdir() if p.is_file() and p.suffix != ".html")
    path, way = folder / draw.choice(files), draw.random()
    damages = {".json": damage_json, ".toml": odd_toml, ".safetensors": damage_header}
    damage = damages.get(path.suffix, damage_bytes) if way < 0.6 else damage_bytes
    path.write_bytes(damage(path.read_bytes(), draw))
    if way < 0.05:
        path.unlink()
    new = {"own": root / "t.csv", "series": root / "s.csv"}.get(kind)

    def predict() -> None:
        if new is None:
            return
        predict_run(folder, new, place / "out.csv")
        predict_run(root / kind, new, place / "right.csv")
        # Id, label and probability; how many influential rows are named is a setting.
        found, right = ([row[:3] for row in _lines(place / f"{n}.csv")] for n in ("out", "right"))
        settings = path.name == "series.json"  # which say how many steps are forecast
        assert settings or found == right, "other predictions"

    uses: list[Callable[[], Any]] = [
        lambda: [json.dumps(summary(run)) for run in find_runs(folder)],
        predict,
        lambda: load_run(folder),
        lambda: train_table(root, folder, resume=True) if kind == "own" else None,
    ]
    refused: DifformerError | None = None
    for use in uses:
        try:
            use()
        except DifformerError as error:
            refused = error
    if refused is not None:
        raise refused


_asking: dict[Path, tuple[Any, OwnRun]] = {}


async def ask(app: Any, body: bytes, headers: list[tuple[bytes, bytes]], path: str) -> Any:
    """The status and body of one request to an app without a server."""
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"}
    scope |= {"path": path, "raw_path": path.encode("utf-8", "replace"), "query_string": b""}
    scope |= {"root_path": "", "scheme": "http", "headers": [(b"host", b"localhost"), *headers]}
    scope |= {"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80)}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(m.get("body", b"") for m in sent)


def requests_case(root: Path, place: Path, draw: Random) -> None:
    from difformer.app.service.app import Service

    if root not in _asking:
        run = OwnRun.load(root / "own")
        _asking[root] = Service(run), run
    app, run = _asking[root]
    columns = [column.name for column in run.encoder.columns]
    rows = [{name: row[name] for name in columns} for row in make_rows(draw.randrange(1, 6))]
    damage, path = damage_json if draw.random() < 0.5 else damage_bytes, "/predict"
    body = damage(json.dumps({"rows": rows}).encode(), draw)
    headers = [(b"content-type", b"application/json")]
    if draw.random() < 0.1:
        headers = [(b"content-type", damage_bytes(b"application/json", draw)[:1000])]
    if draw.random() < 0.1:
        headers.append((b"content-length", damage_bytes(b"%d" % len(body), draw)[:1000]))
    if draw.random() < 0.05:
        path = damage_bytes(b"/predict", draw)[:500].decode("latin-1")
    status, found = asyncio.run(ask(app, body, headers, path))
    assert status in (200, 400, 404, 405, 408, 413, 415, 422), f"status {status}"
    if status != 200:
        raise DifformerError(json.loads(found)["detail"])
    answers, asked = json.loads(found)["predictions"], json.loads(body)["rows"]
    assert len(answers) == len(asked), "another number of answers"
    for row, answer in zip(asked, answers, strict=True):
        alone = {name: [row[name]] for name in columns}
        ids = [str("" if row.get("name") is None else row["name"]).strip()]
        right = run.answer(run.encoder.encode_chunk(alone), ids=ids)[0]
        assert json.loads(json.dumps(right)) == answer, "another answer than alone"


TABLES: dict[str, tuple[Damage, ...]] = {
    "csv": (damage_bytes, odd_cells),
    "jsonl": (damage_bytes, damage_json),
    "parquet": (damage_bytes, odd_parquet),
    "npz": (damage_bytes, odd_npz),
}
TENSORS = ("model", "frozen", "estimator", "checkpoint")
FORMATS: dict[str, tuple[Callable[[Path], None], Case]] = {
    **{n: (prepare_runs, of_file(read_as_table, f"t.{n}", *ways)) for n, ways in TABLES.items()},
    "edges": (prepare_runs, of_file(read_as_table, "edges.csv", damage_bytes)),
    "series": (prepare_runs, series_case),
    **{name: (prepare_models, partial(tensors_case, f"{name}.safetensors")) for name in TENSORS},
    "run": (prepare_runs, run_case),
    "requests": (prepare_runs, requests_case),
}
"""What makes the samples of each format, and what damages one and uses it."""

"""What is fuzzed: for each format whole samples, damage, and a use whose answer can be checked.

A use returns nothing where the answer is right, raises a DifformerError where the file is refused,
and raises AssertionError where the answer is wrong.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tomli_w
import torch
from mutate import VALUES, change_value, damage_bytes, dumps

from difformer.data.dataset import Dataset
from difformer.data.edges import read_step_edges
from difformer.data.series_files import read_series_file
from difformer.data.split import Split
from difformer.data.tables import read_table
from difformer.errors import DifformerError
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.experiments.answers import predict_run
from difformer.experiments.forecast import SeriesSettings, train_series
from difformer.experiments.loaded import load_run
from difformer.experiments.own import peers
from difformer.experiments.own.run import OwnRun
from difformer.experiments.own.table import OwnTable
from difformer.experiments.own.train import train_own
from difformer.experiments.runs import find_runs
from difformer.nn.frozen import FrozenDIFFormer
from difformer.nn.model import DIFFormer
from difformer.tensorfiles import read_tensors, write_tensors
from difformer.train import FullBatch, TrainSettings, fit, objective_for, seeded

peers.PEERS = ("logistic", "knn")  # what a table is compared with is not what is attacked
HEADER = ("name", "size", "weight", "colour", "day", "note", "kind")


@dataclass(frozen=True)
class Format:
    """`prepare(root)` makes the samples; `case(root, place, draw)` damages one and uses it."""

    prepare: Callable[[Path], None]
    case: Callable[[Path, Path, Random], None]


def make_rows(n: int = 40) -> list[dict[str, Any]]:
    draw, rows = Random(0), []
    for i in range(n):
        kind = i % 2
        cells = (
            f"r{i}",
            round(draw.gauss(3 * kind, 1), 3),
            1000 + i if i % 9 else None,
            ("red", "blue")[kind] if draw.random() < 0.8 else "green",
            f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}",
            ("likes to swim in the sea", "likes to climb in the trees")[kind],
            ("fish", "ape")[kind] if i % 3 else None,
        )
        rows.append(dict(zip(HEADER, cells, strict=True)))
    return rows


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([["" if v is None else v for v in row.values()] for row in rows])
    return text.getvalue().encode("utf-8", "surrogatepass")


def write_edges(path: Path) -> None:
    lines = [f"r{i},r{(i + 7) % 40},{1 + i % 3}" for i in range(40)]
    path.write_text("\n".join(["source,target,weight", *lines]) + "\n")


# --- tables ------------------------------------------------------------------------------------


def check_table(path: Path, edges: Path | None = None) -> None:
    """Read in one chunk and in many: the same finite numbers, one per row and column."""
    whole = read_table(path, "kind", id="name", edges=edges)
    assert whole.num_rows == len(whole.y)
    x = whole.x if whole.x.layout == torch.strided else whole.x.to_dense()
    assert x.shape == (whole.num_rows, whole.encoder.width)
    assert bool(torch.isfinite(x).all()), "features that are not finite"
    assert not bool(torch.isinf(whole.y.float()).any()), "an infinite target"
    small = read_table(path, "kind", id="name", edges=edges, size=max(1, whole.num_rows // 3))
    assert small.fingerprint == whole.fingerprint, "another table in other chunks"


def prepare_tables(root: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    rows = make_rows()
    (root / "t.csv").write_bytes(as_csv(rows))
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "t.parquet")
    columns = {name: [row[name] for row in rows] for name in HEADER}
    arrays = {
        "name": np.array(columns["name"]),
        "size": np.array(columns["size"]),
        "weight": np.array(columns["weight"], np.float64),
        "note": np.array(columns["note"]),
        "kind": np.array(["" if v is None else v for v in columns["kind"]]),
    }
    np.savez(root / "t.npz", **arrays)
    write_edges(root / "edges.csv")


def csv_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "t.csv"
    if draw.random() < 0.5:
        content = damage_bytes((root / "t.csv").read_bytes(), draw)
    else:
        rows = make_rows()
        for _ in range(draw.randrange(1, 6)):
            rows[draw.randrange(len(rows))][draw.choice(HEADER)] = draw.choice(VALUES[:-6])
        content = as_csv(rows)
    path.write_bytes(content)
    check_table(path)


def jsonl_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "t.jsonl"
    if draw.random() < 0.5:
        content = damage_bytes((root / "t.jsonl").read_bytes(), draw)
    else:
        rows = make_rows()
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(rows))
            rows[at] = change_value(rows[at], draw)
        content = b"".join(dumps(row, draw) + b"\n" for row in rows)
    path.write_bytes(content)
    check_table(path)


def parquet_case(root: Path, place: Path, draw: Random) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    path = place / "t.parquet"
    if draw.random() < 0.5:
        path.write_bytes(damage_bytes((root / "t.parquet").read_bytes(), draw))
    else:
        rows = make_rows()
        table = pyarrow.Table.from_pylist(rows)
        name = draw.choice([*HEADER, "more", "kind"])
        column = _odd_column(draw, len(rows), pyarrow)
        if name in HEADER and draw.random() < 0.7:
            table = table.set_column(HEADER.index(name), name, column)
        else:
            table = table.append_column(name, column)
        try:
            parquet.write_table(table, path)
        except pyarrow.ArrowException:  # no such file can be written
            shutil.copy(root / "t.parquet", path)
    check_table(path)


def _odd_column(draw: Random, n: int, pyarrow: Any) -> Any:
    """A column of a type that a table has seldom, with extreme values."""
    ints = [draw.choice((0, 1, -1, 2**62, -(2**63), 2**63 - 1, None)) for _ in range(n)]
    makers: list[Callable[[], Any]] = [
        lambda: pyarrow.array(ints, pyarrow.int64()).cast(
            pyarrow.timestamp(draw.choice(["s", "ms", "us", "ns"])), safe=False
        ),
        lambda: pyarrow.array(ints, pyarrow.int64()).cast(pyarrow.duration("us"), safe=False),
        lambda: pyarrow.array([i and i % 2**31 for i in ints], pyarrow.int32()).cast(
            pyarrow.date32()
        ),
        lambda: pyarrow.array([[1, 2]] * n),
        lambda: pyarrow.array([{"a": 1}] * n),
        lambda: pyarrow.array([b"\xff\x00"] * n),
        lambda: pyarrow.array([str(i) for i in ints]).dictionary_encode(),
        lambda: pyarrow.nulls(n),
        lambda: pyarrow.array([draw.choice((1e308, float("inf"), float("nan"))) for _ in range(n)]),
        lambda: pyarrow.array([i % 2 == 0 for i in range(n)]),
        lambda: pyarrow.array([str(i) * 1000 for i in range(n)]),
        lambda: pyarrow.array(range(n)).cast(pyarrow.decimal128(38, 10)),
        lambda: pyarrow.array([i and i % (24 * 3600) for i in ints], pyarrow.int32()).cast(
            pyarrow.time32("s")
        ),
    ]
    return draw.choice(makers)()


def npz_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "t.npz"
    if draw.random() < 0.6:
        path.write_bytes(damage_bytes((root / "t.npz").read_bytes(), draw))
    else:
        with np.load(root / "t.npz") as file:
            arrays = dict(file)
        n = 40
        odd: list[Any] = [
            np.full(n, 1 + 2j),
            np.array(["2020-01-01"] * n, "datetime64[D]"),
            np.full(n, np.iinfo(np.int64).min).view("datetime64[s]"),
            np.full(n, 2**62).view("datetime64[ns]"),
            np.zeros((n, 0)),
            np.zeros((n, 3, 2)),
            np.zeros(n, [("a", "f8")]),
            np.array(5.0),
            np.zeros(n, "V8"),
            np.full(n, b"\xff"),
            np.full(n, 1e308),
            np.full((n, 2), np.inf, np.float16),
            np.zeros(n, bool),
            np.arange(n, dtype=np.timedelta64),
            np.full(n, 2**63, np.uint64),
            np.zeros(3),
            np.longdouble([1e300] * n) ** 2,
        ]
        name = draw.choice([*arrays, "more", "kind", "name"])
        arrays[name] = draw.choice(odd)
        np.savez(path, **arrays)
    check_table(path)


def edges_case(root: Path, place: Path, draw: Random) -> None:
    path = place / "edges.csv"
    path.write_bytes(damage_bytes((root / "edges.csv").read_bytes(), draw))
    check_table(root / "t.csv", path)


# --- series ------------------------------------------------------------------------------------


def prepare_series(root: Path) -> None:
    draw = Random(1)
    lines = ["time,a,b,c"]
    for t in range(30):
        cells = [f"{draw.gauss(0, 1):.3f}" if draw.random() > 0.1 else "" for _ in range(3)]
        lines.append(f"2020-01-{t + 1:02d},{','.join(cells)}")
    (root / "s.csv").write_text("\n".join(lines) + "\n")
    (root / "s_edges.csv").write_text("source,target,weight\na,b,1\nb,c,2\n")
    settings = SeriesSettings(lags=2, steps=2, origins=0, epochs=2)
    train_series(root / "s.csv", root / "s_edges.csv", root / "series", settings)


def series_case(root: Path, place: Path, draw: Random) -> None:
    files = {name: (root / name).read_bytes() for name in ("s.csv", "s_edges.csv")}
    name = draw.choice(("s.csv", "s.csv", "s_edges.csv"))
    files[name] = damage_bytes(files[name], draw)
    for each, content in files.items():
        (place / each).write_bytes(content)
    series = read_series_file(place / "s.csv")
    assert not bool(np.isinf(series.values).any()), "an infinite value"
    assert series.values.shape == (len(series.stamps), len(series.names))
    edges = read_step_edges(place / "s_edges.csv", series)
    for index, weight in edges:
        assert index.numel() == 0 or int(index.max()) < len(series.names)
        finite = weight is None or bool(torch.isfinite(weight).all())
        assert finite, "a weight that is not finite"
    predict_run(root / "series", place / "s.csv", place / "out.csv")
    _finite_csv(place / "out.csv")


def _finite_csv(path: Path) -> None:
    with path.open() as file:
        for row in list(csv.reader(file))[1:]:
            assert all(np.isfinite(float(cell)) for cell in row[1:]), f"not finite: {row}"


# --- files of tensors --------------------------------------------------------------------------

PROBE = torch.linspace(-2, 2, 5 * 6, dtype=torch.float64).reshape(5, 6)


def prepare_models(root: Path) -> None:
    with seeded(0):
        model = DIFFormer(6, 8, 3).double()
    model.save(root / "model.safetensors")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.freeze(x).save(root / "frozen.safetensors")
    y = (x[:, 0] > 0).long()
    own = DIFFormerClassifier(epochs=2, hidden_channels=8, random_state=0, graph="knn")
    own.fit(x.numpy(), y.numpy()).save(root / "estimator.safetensors")


def forge(source: Path, target: Path, kind: str, draw: Random) -> None:
    """A file with a right checksum over a description or tensors that were changed."""
    tensors, description = read_tensors(source, kind)
    if draw.random() < 0.7:
        description = change_value(description, draw, tuple(v for v in VALUES if v != "\ud800"))
        if not isinstance(description, dict):
            description = {}
    else:
        name = draw.choice(sorted(tensors))
        t = tensors[name]
        changes: list[Callable[[], Any]] = [
            lambda: t[:0] if t.ndim else t.reshape(1),
            lambda: torch.cat([t, t]) if t.ndim else t.expand(2),
            lambda: t.reshape(-1),
            lambda: t.to(torch.float16),
            lambda: t.to(torch.int64),
            lambda: t.to(torch.bool),
            lambda: torch.full_like(t, -1),
            lambda: torch.full_like(t, 2**62) if not t.is_floating_point() else t * 1e3,
            lambda: t.to(torch.float64) * float("nan"),
            lambda: None,
        ]
        new = draw.choice(changes)()
        tensors.pop(name)
        if new is not None:
            tensors[name if draw.random() < 0.9 else "other"] = new
    try:
        write_tensors(target, kind, tensors, description)
    except (ValueError, TypeError, OverflowError, RecursionError):  # no such file can be written
        shutil.copy(source, target)


def damage_header(content: bytes, draw: Random) -> bytes:
    """The JSON header of a safetensors file changed, its length made to fit or not."""
    size = int.from_bytes(content[:8], "little")
    header = change_value(json.loads(content[8 : 8 + size]), draw)
    text = dumps(header, draw)
    length = len(text) if draw.random() < 0.9 else draw.choice((0, 2**40, len(text) * 2))
    return length.to_bytes(8, "little") + text + content[8 + size :]


def tensors_case(
    name: str, kind: str, use: Callable[[Path], Any]
) -> Callable[[Path, Path, Random], None]:
    def case(root: Path, place: Path, draw: Random) -> None:
        source, path = root / f"{name}.safetensors", place / f"{name}.safetensors"
        way = draw.random()
        if way < 0.4:
            forge(source, path, kind, draw)
            found = use(path)
            assert np.isfinite(found).all(), "an answer that is not finite"
            return
        damage = damage_bytes if way < 0.7 else damage_header
        path.write_bytes(damage(source.read_bytes(), draw))
        found = use(path)
        assert np.array_equal(found, use(source)), "another answer from a damaged file"

    return case


def use_model(path: Path) -> Any:
    with torch.no_grad():
        return DIFFormer.load(path).double()(PROBE).numpy()


def use_frozen(path: Path) -> Any:
    with torch.no_grad():
        return FrozenDIFFormer.load(path)(PROBE).numpy()


def use_estimator(path: Path) -> Any:
    estimator = DIFFormerClassifier.load(path)
    try:
        return estimator.predict_proba(PROBE.numpy())
    except ValueError as error:  # a forged description wants other columns
        raise DifformerError(str(error)) from error


def train_small(folder: Path, epochs: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator)
    data = Dataset("toy", x, (x[:, 0] > 0).long())
    split = Split("toy", list(range(10)), list(range(10, 20)), list(range(20, 30)))
    with seeded(0):
        model = DIFFormer(4, 4, 2, dropout=0.5)
    settings = TrainSettings(epochs=epochs, threads=1, checkpoint_every=0)
    batch, objective = FullBatch(data, split), objective_for(data.task)
    return fit(model, batch, objective, split, settings, folder=folder)


CHECKPOINT = "checkpoint.safetensors"


def prepare_checkpoint(root: Path) -> None:
    """A run cut short after two of three epochs, and the same one whole."""
    import os

    train_small(root / "whole", 3)
    pid = os.fork()
    if pid == 0:
        import difformer.train.loop as loop

        saved, count = loop.save_checkpoint, 0

        def save(*words: Any) -> None:
            nonlocal count
            saved(*words)
            count += 1
            if count == 2:
                os._exit(0)

        loop.save_checkpoint = save
        train_small(root / "cut", 3)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "no checkpoint was written"
    assert (root / "cut" / CHECKPOINT).exists()


def checkpoint_case(root: Path, place: Path, draw: Random) -> None:
    folder = place / "cut"
    shutil.copytree(root / "cut", folder)
    source, path, way = root / "cut" / CHECKPOINT, folder / CHECKPOINT, draw.random()
    if way < 0.5:
        forge(source, path, "checkpoint", draw)
    else:
        damage = damage_bytes if way < 0.75 else damage_header
        path.write_bytes(damage(source.read_bytes(), draw))
    train_small(folder, 3)
    if way >= 0.5:
        name = "model.safetensors"
        same = (folder / name).read_bytes() == (root / "whole" / name).read_bytes()
        assert same, "other weights after a damaged checkpoint"


# --- run folders -------------------------------------------------------------------------------


def prepare_runs(root: Path) -> None:
    from difformer.experiments.experiment import Experiment
    from difformer.experiments.run import run_experiment

    prepare_tables(root)
    table = OwnTable(nodes=str(root / "t.csv"), label="kind", id="name")
    params = {"epochs": 2, "hidden_channels": 8, "graph": None}
    train_own(table.read(), root / "own", params, table=table)
    train = {"epochs": 2}
    experiment = Experiment.make("digits", system="mlp", split="ratio:0.5/0.25/0.25:0", train=train)
    run_experiment(experiment, folder=root / "dataset")
    prepare_series(root)


def run_case(root: Path, place: Path, draw: Random) -> None:
    kind = draw.choice(("own", "own", "dataset", "series"))
    folder = place / kind
    shutil.copytree(root / kind, folder)
    files = sorted(p.name for p in folder.iterdir() if p.is_file() and p.suffix != ".html")
    path = folder / draw.choice(files)
    content, way = path.read_bytes(), draw.random()
    if way < 0.05:
        path.unlink()
    elif path.suffix == ".json" and way < 0.6:
        path.write_bytes(dumps(change_value(json.loads(content), draw), draw))
    elif path.suffix == ".toml" and way < 0.6:
        import tomllib

        changed = change_value(tomllib.loads(content.decode()), draw, VALUES[1:16])
        try:
            text = tomli_w.dumps(changed)
        except (TypeError, ValueError, AttributeError):
            text = "x = 1\n"
        path.write_text(text, encoding="utf-8", errors="replace")
    elif path.suffix == ".safetensors" and way < 0.6:
        path.write_bytes(damage_header(content, draw))
    else:
        path.write_bytes(damage_bytes(content, draw))
    refused = _use_run(kind, root, folder, place, path.name)
    if refused is not None:
        raise refused


def _use_run(kind: str, root: Path, folder: Path, place: Path, name: str) -> Exception | None:
    """All that reads a run folder; each may refuse it, and what answers must answer as before."""
    refused: Exception | None = None
    new = {"own": root / "t.csv", "series": root / "s.csv"}.get(kind)
    out, right = place / "out.csv", place / "right.csv"
    for use in ("list", "predict", "load", "resume"):
        try:
            if use == "list":
                for run in find_runs(folder):
                    json.dumps(run.summary())
            elif use == "predict" and new is not None:
                predict_run(folder, new, out)
                predict_run(root / kind, new, right)
                settings = name == "series.json"  # which say how many steps are forecast
                assert settings or _answers(out) == _answers(right), "other predictions"
            elif use == "load":
                load_run(folder)
            elif use == "resume" and kind == "own":
                table = OwnTable(nodes=str(root / "t.csv"), label="kind", id="name")
                params = {"epochs": 2, "hidden_channels": 8, "graph": None}
                train_own(table.read(), folder, params, table=table, resume=True)
        except DifformerError as error:
            refused = error
    return refused


def _answers(path: Path) -> list[list[str]]:
    """Id, label and probability; how many influential rows are named is a setting."""
    with path.open(encoding="utf-8") as file:
        return [row[:3] for row in csv.reader(file)]


# --- requests ----------------------------------------------------------------------------------


class Asgi:
    """Calls an app without a server: one request, one status and body."""

    def __init__(self, app: Any) -> None:
        import asyncio

        self.app, self.loop = app, asyncio.new_event_loop()

    def __call__(
        self, body: bytes, headers: list[tuple[bytes, bytes]], path: str = "/predict"
    ) -> tuple[int, bytes]:
        return self.loop.run_until_complete(self._ask(body, headers, path))

    async def _ask(
        self, body: bytes, headers: list[tuple[bytes, bytes]], path: str
    ) -> tuple[int, bytes]:
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            return parts.pop() if parts else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent)


_asking: dict[Path, tuple[Asgi, OwnRun]] = {}


def requests_case(root: Path, place: Path, draw: Random) -> None:
    from difformer.experiments.service import make_app

    if root not in _asking:
        run = OwnRun.load(root / "own")
        _asking[root] = Asgi(make_app(run)), run
    ask, run = _asking[root]
    columns = [column.name for column in run.encoder.columns]
    rows = [{name: row[name] for name in columns} for row in make_rows(draw.randrange(1, 6))]
    content: Any = {"rows": rows}
    headers = [(b"content-type", b"application/json")]
    way = draw.random()
    if way < 0.5:
        body = dumps(change_value(content, draw), draw)
    else:
        body = damage_bytes(json.dumps(content).encode(), draw)
    if draw.random() < 0.1:
        headers = [(b"content-type", damage_bytes(b"application/json", draw)[:1000])]
    if draw.random() < 0.1:
        headers.append((b"content-length", damage_bytes(b"%d" % len(body), draw)[:1000]))
    path = (
        "/predict"
        if draw.random() < 0.95
        else damage_bytes(b"/predict", draw)[:500].decode("latin-1")
    )
    status, found = ask(body, headers, path)
    refusals = (400, 404, 405, 408, 413, 415, 422)
    assert status == 200 or status in refusals, f"status {status}"
    if status != 200:
        if path == "/predict":
            raise DifformerError(json.loads(found)["detail"])
        return
    answers = json.loads(found)["predictions"]
    asked = json.loads(body)["rows"]
    assert len(answers) == len(asked), "another number of answers"
    for row, answer in zip(asked, answers, strict=True):
        alone = {name: [row[name]] for name in columns}
        ids = None if run.encoder.id is None else ["" if row.get("name") is None else row["name"]]
        ids = ids and [str(i).strip() for i in ids]
        right = run.answer(run.encoder.encode_chunk(alone), ids=ids)[0]
        assert json.loads(json.dumps(right)) == answer, "another answer than alone"


FORMATS: dict[str, Format] = {
    "csv": Format(prepare_tables, csv_case),
    "jsonl": Format(prepare_tables, jsonl_case),
    "parquet": Format(prepare_tables, parquet_case),
    "npz": Format(prepare_tables, npz_case),
    "edges": Format(prepare_tables, edges_case),
    "series": Format(prepare_series, series_case),
    "model": Format(prepare_models, tensors_case("model", "model", use_model)),
    "frozen": Format(prepare_models, tensors_case("frozen", "frozen", use_frozen)),
    "estimator": Format(prepare_models, tensors_case("estimator", "estimator", use_estimator)),
    "checkpoint": Format(prepare_checkpoint, checkpoint_case),
    "run": Format(prepare_runs, run_case),
    "requests": Format(prepare_runs, requests_case),
}

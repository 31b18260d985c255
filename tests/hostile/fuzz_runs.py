"""Fuzzed run folders, and fuzzed requests to the service of a run."""

from __future__ import annotations

import asyncio
import csv
import json
import shutil
from pathlib import Path
from random import Random
from typing import Any

import tomli_w
from fuzz_tables import make_rows, prepare_series, prepare_tables
from fuzz_tensors import damage_header
from mutate import VALUES, change_value, damage_bytes, dumps

from difformer.errors import DifformerError
from difformer.files import read_toml
from difformer.jobs import table as peers
from difformer.jobs.job import Experiment, OwnTable
from difformer.jobs.own import OwnRun
from difformer.jobs.rows import run_experiment
from difformer.jobs.table import train_own
from difformer.runs.answer import predict_run
from difformer.runs.open import load_run
from difformer.runs.run import find_runs, summary

peers.PEERS = ("logistic", "knn")  # what a table is compared with is not what is attacked


def prepare_runs(root: Path) -> None:
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
        changed = change_value(read_toml(content.decode()), draw, VALUES[1:16])
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
                    json.dumps(summary(run))
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


class Asgi:
    """Calls an app without a server: one request, one status and body."""

    def __init__(self, app: Any) -> None:
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
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        await self.app(scope, receive, send)
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent)


_asking: dict[Path, tuple[Asgi, OwnRun]] = {}


def requests_case(root: Path, place: Path, draw: Random) -> None:
    from difformer.app.service.app import Service

    if root not in _asking:
        run = OwnRun.load(root / "own")
        _asking[root] = Asgi(Service(run)), run
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

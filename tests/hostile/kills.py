"""Kill commands at each of their writes and go on: python kills.py FOLDER COMMAND:FIRST:LAST ...

The writes are those of an undisturbed run: every time a file gets its name, and every time one is
removed. Each is a kill before it, one with half of the file written, and one after it. The same
command (with --resume, for train) must then leave the files that the undisturbed run left, bit by
bit. A process forks for each run, so the libraries are imported once.

`demo` trains two epochs and leaves out what it does not write; `datasets fetch` fetches made-up
files from a server on this machine; `bench` measures in its own process, where it can be killed.

One line of JSON per kill.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from fuzz_runs import prepare_runs

MODES = ("before", "half", "after")
TIMES = (
    "seconds",
    "cost",
    "tuning_seconds",
    "peak_memory",
    "memory",
    "date",
    "duration",
    "when",
    "machine",
)


def commands(root: Path, out: Path) -> dict[str, list[str]]:
    """The words of each command; what they write is in `out`."""
    table = ["--nodes", str(root / "t.csv"), "--label", "kind", "--id", "name"]
    quick = ["--epochs", "2", "--hidden-channels", "8", "--quiet"]
    answers = ["-o", str(out / "p.csv"), "--overwrite"]
    # The settings name the table: a run on a dataset, of 40 rows.
    asked = ["train", "--config", str(root / "asked.toml"), *quick, "--no-report"]
    asked += ["--checkpoint-every", "0"]
    cell = ["reproduce", "table2", "--datasets", "cora", "--protocols", "random", "--seeds", "1"]
    return {
        "train": [*asked, "--out", str(out)],
        "train with seeds": [*asked, "--seeds", "2", "--out", str(out)],
        "train with a page": ["train", *table, *quick, "--out", str(out)],
        "train --nodes": ["train", *table, *quick, "--no-report", "--out", str(out)],
        "train --series": [
            *["train", "--series", str(root / "s.csv"), "--edges", str(root / "s_edges.csv")],
            *["--epochs", "2", "--set", "origins=1", "--no-report", "--out", str(out)],
        ],
        "compare": [
            *["compare", str(root / "t.csv"), "--label", "kind", "--models", "mlp,lp"],
            *["--splits", "2", "--epochs", "2", "--workers", "0", "--out", str(out)],
        ],
        "tune": [
            *["tune", str(root / "t.csv"), "--label", "kind", "--model", "mlp", "--trials", "2"],
            *["--epochs", "2", "--storage", str(out / "s.sqlite")],
        ],
        "predict": ["predict", str(root / "own"), str(root / "t.csv"), *answers],
        "predict a series": ["predict", str(root / "series"), str(root / "s.csv"), *answers],
        "report": ["report", str(root / "own"), "--out", str(out / "r.html")],
        "runs": ["runs", str(root / "own"), str(root / "dataset"), "-o", str(out / "r.html")],
        "reproduce": [*cell, "--models", "lp", "--out", str(out)],
        "reproduce --runs": [
            *[*cell, "--models", "sgc", "--splits", "random:0,random:1"],
            *["--out", str(out), "--runs", str(out / "runs")],
        ],
        "shard": [
            *["shard", str(out), *table, "--edges", str(root / "edges.csv")],
            *["--parts", "2", "--quiet"],
        ],
        "demo": ["demo", "--out", str(out), "--picture", str(out / "states.png"), "--quiet"],
        "export": ["export", str(root / "own"), "--onnx", str(out / "m.onnx"), "--overwrite"],
        "datasets fetch": ["datasets", "fetch", "actor", "--data-dir", str(out)],
        "bench": [
            *["bench", "suite", "--datasets", "iris", "--systems", "logistic,knn"],
            *["--splits", "2", "--workers", "0"],
        ],
        "features": [
            *["features", str(root / "pictures"), "--side", "8", "--width", "4", "--epochs", "2"],
            *[
                "--batch-size",
                "4",
                "--quiet",
                "--out",
                str(out / "f.npz"),
                "--run",
                str(out / "simclr"),
            ],
        ],
    }


REPOSITORY = Path(__file__).resolve().parents[2]
FETCHED = {"actor.npz": Random(0).randbytes(1_600_000)}


class Files(BaseHTTPRequestHandler):
    """Serves FETCHED, from where a client asks for them."""

    def do_GET(self) -> None:
        content = FETCHED[self.path.rsplit("/", 1)[-1]]
        first = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        self.wfile.write(content[first:])

    def log_message(self, *_: Any) -> None:
        pass


def stand_in(names: set[str]) -> None:
    """What the commands of these names need to be killed often, and on a machine by itself."""
    if "demo" in names:
        from difformer_paper import demo
        from difformer_paper import demo as poster

        demo.FEWER_EPOCHS = dict.fromkeys(demo.CELLS, 2)
        demo._digits = lambda tell: []  # writes nothing
        poster.ROWS = 60
    if "bench" in names:
        from difformer.app.commands import bench

        bench.subprocess = SimpleNamespace(run=_measure_here)  # type: ignore[assignment]
    if "datasets fetch" in names:
        from difformer.data.fetch import Web
        from difformer_paper.datasets import heterophilous

        heterophilous.SHA256["actor"] = hashlib.sha256(FETCHED["actor.npz"]).hexdigest()
        heterophilous.REPOSITORY = Web(f"http://127.0.0.1:{_serve()}")
        os.environ["no_proxy"] = "127.0.0.1"


def _measure_here(words: list[str], **_: Any) -> Any:
    from difformer.app.commands import bench

    _, *rest = words[words.index(bench.__name__) + 1 :]
    try:
        bench.measure(os.getppid(), *rest)
        return SimpleNamespace(returncode=0)
    except SystemExit as end:
        return SimpleNamespace(returncode=end.code or 0)


def _serve() -> int:
    """The port of a server in a process of its own, which ends with this one."""
    server = HTTPServer(("127.0.0.1", 0), Files)
    server.timeout = 1.0
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            server.handle_request()
        os._exit(0)
    server.server_close()
    return server.server_port


def begin(name: str, out: Path) -> None:
    """Nothing is left in `out`; the folder to work in is a clone, for those who ask for one."""
    os.chdir(out.parent)
    shutil.rmtree(out, ignore_errors=True)
    if name == "bench":
        out.mkdir()
        (out / "benchmarks").symlink_to(REPOSITORY / "benchmarks")
        os.chdir(out)


class Writes:
    """Counts the writes of this process, and ends it at one of them."""

    def __init__(self, at: int | None = None, mode: str = "before") -> None:
        self.at, self.mode, self.count = at, mode, 0
        for name in ("replace", "unlink"):
            setattr(os, name, self.wrapped(getattr(os, name)))
        wrapped = self.wrapped

        class Connection(sqlite3.Connection):  # a search keeps its trials in SQLite
            def commit(self) -> None:
                wrapped(lambda _: super(Connection, self).commit())("")

        connect = sqlite3.dbapi2.connect
        sqlite3.dbapi2.connect = partial(connect, factory=Connection)  # type: ignore[assignment]

    def wrapped(self, function: Callable[..., None]) -> Callable[..., None]:
        def call(path: Any, *words: Any, **options: Any) -> None:
            mine = self.count
            self.count += 1
            if mine == self.at and self.mode == "half" and words:
                with open(path, "rb+") as file:
                    file.truncate(os.path.getsize(path) // 2)
            if mine == self.at and self.mode != "after":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                function(path, *words, **options)
            finally:
                if mine == self.at:
                    os.kill(os.getpid(), signal.SIGKILL)

        return call


def in_child(words: list[str], setup: Callable[[], Any] = Writes) -> tuple[int, int, str]:
    """Run a command in a child: its wait status, how many writes `setup()` counted, its output."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(send, 1)
            os.dup2(send, 2)
            from difformer.app.cli import main

            found = setup()
            try:
                main(words)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            sys.stdout.flush()
            if found is not None:
                print(f"\0{found.count}", end="", flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(send)
    with os.fdopen(receive, errors="replace") as pipe:
        said, _, count = pipe.read().partition("\0")
    return os.waitpid(child, 0)[1], int(count or 0), said


def kept(folder: Path) -> dict[str, str]:
    """Every file below a folder with what it says, times left out."""
    found: dict[str, str] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(_timeless(json.loads(content))).encode()
        if path.suffix == ".sqlite":
            content = _trials(path).encode()
        if path.suffix == ".html":  # names the time and how long it took
            content = re.sub(rb"[\d.,:]+", b"", content)
        found[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def _trials(path: Path) -> str:
    """The finished trials of a search: settings and values."""
    with sqlite3.connect(path) as store:
        query = (
            "select param_name, param_value from trial_params join trials using (trial_id) "
            "where state = 'COMPLETE' order by trial_id, param_name"
        )
        values = "select value from trial_values order by trial_id"
        return repr([store.execute(query).fetchall(), store.execute(values).fetchall()])


def prepared(folder: Path) -> Path:
    """What the commands read."""
    root = folder / "prepared"
    if not root.exists():
        root.mkdir()
        prepare_runs(root)
        text = f'dataset = "{root / "t.csv"}"\n[data]\nlabel = "kind"\nid = "name"\n'
        (root / "asked.toml").write_text(text)
        _draw_pictures(root / "pictures")
    return root


def _draw_pictures(folder: Path) -> None:
    """Two classes of small images, for `features`."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for kind in range(2):
        place = folder / f"class{kind}"
        place.mkdir(parents=True)
        for i in range(4):
            pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(place / f"{i}.png")


def main() -> None:
    import torch

    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root = prepared(folder)
    asked = [word.rsplit(":", 2) for word in sys.argv[2:]]
    stand_in({name for name, *_ in asked})
    for name, first, last in asked:
        out = folder / "out"
        words = commands(root, out)[name]
        begin(name, out)
        status, count, said = in_child(words)
        if status:
            _tell(command=name, fault=f"undisturbed: status {status}: {said[-500:]}")
            continue
        whole = kept(out)
        points = [(at, mode) for at in range(count) for mode in MODES]
        Random(0).shuffle(points)  # so that a few of them are spread over all writes
        _tell(command=name, writes=count, points=len(points))
        for at, mode in points[int(first) : int(last)]:
            begin(name, out)
            killed, _, _ = in_child(words, partial(Writes, at, mode))
            again = [*words, "--resume"] if words[0] == "train" else words
            if words[0] == "train" and not (out / "config.toml").exists():
                again = words  # nothing is there to go on with
            status, _, said = in_child(again)
            fault = None
            if not os.WIFSIGNALED(killed):
                fault = "it was not killed"
            elif status:
                fault = f"status {status}: {said[-500:]}"
            elif kept(out) != whole:
                now = kept(out)
                names = {n for n in {*now, *whole} if now.get(n) != whole.get(n)}
                fault = f"other files: {', '.join(sorted(names))}"
            _tell(command=name, at=at, mode=mode, fault=fault)
    _tell(done=True)


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()

"""Kill commands at each of their writes, or forbid those: python kills.py FOLDER CASE ...

COMMAND:FIRST:LAST are kills, after which the command must go on.

The writes are those of an undisturbed run: every time a file gets its name, and every time one is
removed. Each is a kill before it, one with half of the file written, and one after it. The same
command (with --resume, for train) must then leave the files that the undisturbed run left, bit by
bit. A process forks for each run, so the libraries are imported once.

COMMAND:CONDITION is a command that cannot write: a number of bytes that no file may exceed, which
is a disk that fills; `read-only`, a folder that is not ours; `homeless`, a home and a cache that
are not ours; `taken`, a folder that another run writes to. The command must end with exit code 2
and one line, leave nothing half-written, and go on once there is room.

`demo` trains two epochs and leaves out what it does not write; `datasets fetch` fetches made-up
files from a server on this machine; `bench` measures in its own process, where it can be killed.

One line of JSON per case.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import resource
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

from mutate import tell
from samples import prepare_runs

STAGES = ".work"  # finished stages of `shard`, from which the same command goes on
MODES = ("before", "half", "after")
TIMES = {"seconds", "tuning_seconds", "cost", "date", "duration", "when"}
TIMES |= {"memory", "peak_memory", "machine"}


def commands(root: Path, out: Path) -> dict[str, list[str]]:
    """The words of each command; what they write is in `out`."""
    quick = "--epochs 2 --hidden-channels 8 --quiet"
    table = f"--nodes {root}/t.csv --label kind --id name"
    # The settings name the table: a run on a dataset, of 40 rows.
    asked = f"train --config {root}/asked.toml {quick} --no-report --checkpoint-every 0"
    cell = "reproduce table2 --datasets cora --protocols random --seeds 1"
    series = f"--series {root}/s.csv --edges {root}/s_edges.csv --epochs 2 --set origins=1"
    kind, page = f"{root}/t.csv --label kind", f"{out}/r.html"
    simclr = f"--batch-size 4 --quiet --out {out}/f.npz --run {out}/simclr"
    found = {
        "train": f"{asked} --out {out}",
        "train with seeds": f"{asked} --seeds 2 --out {out}",
        "train with a page": f"train {table} {quick} --out {out}",
        "train --nodes": f"train {table} {quick} --no-report --out {out}",
        "train --series": f"train {series} --no-report --out {out}",
        "compare": f"compare {kind} --models mlp,lp --splits 2 --epochs 2 --workers 0 --out {out}",
        "tune": f"tune {kind} --model mlp --trials 2 --epochs 2 --storage {out}/s.sqlite",
        "predict": f"predict {root}/own {root}/t.csv -o {out}/p.csv --overwrite",
        "predict a series": f"predict {root}/series {root}/s.csv -o {out}/p.csv --overwrite",
        "report": f"report {root}/own --out {page}",
        "runs": f"runs {root}/own {root}/dataset -o {page}",
        "reproduce": f"{cell} --models lp --out {out}",
        "reproduce --runs": f"{cell} --models sgc --splits random:0,random:1 --out {out} "
        f"--runs {out}/runs",
        "shard": f"shard {out} {table} --edges {root}/edges.csv --parts 2 --quiet",
        "demo": f"demo --out {out} --picture {out}/states.png --quiet",
        "export": f"export {root}/own --onnx {out}/m.onnx --overwrite",
        "datasets fetch": f"datasets fetch actor --data-dir {out}",
        "bench": "bench suite --datasets iris --systems logistic,knn --splits 2 --workers 0",
        "features": f"features {root}/pictures --side 8 --width 4 --epochs 2 {simclr}",
    }
    return {name: words.split() for name, words in found.items()}


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


def small_disk(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def not_ours(*folders: Path) -> None:
    """Folders without permission to write; root has it everywhere, and gives that up."""
    for folder in folders:
        folder.chmod(0o555)
    libc, header = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable capabilities, twice
    assert libc.capget(header, sets) == 0
    sets[0] &= ~0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    assert libc.capset(header, sets) == 0
    for folder in folders:
        assert not os.access(folder, os.W_OK, effective_ids=True), "root can write everywhere"


def taken(out: Path) -> None:
    """Locked, as by another process, until this one ends."""
    out.mkdir(exist_ok=True)
    fcntl.flock(os.open(out, os.O_RDONLY), fcntl.LOCK_EX)


def homeless(home: Path, out: Path) -> None:
    os.environ.update(HOME=str(home), XDG_CACHE_HOME=str(home / "cache"))
    out.mkdir(exist_ok=True)
    not_ours(home)


def forbid(root: Path, place: Path, name: str, condition: str) -> None:
    """Run a command that cannot write."""
    os.chdir(place.parent)
    shutil.rmtree(place, ignore_errors=True)
    (place / "home").mkdir(parents=True)
    out = place / "deep" / "out" if condition == "read-only" else place / "out"
    out.parent.mkdir(exist_ok=True)
    words = commands(root, out)[name]
    begin(name, out)
    setup: Callable[[], Any] = {
        "read-only": partial(not_ours, out if out.exists() else out.parent),
        "taken": partial(taken, out),
        "homeless": partial(homeless, place / "home", out),
    }.get(condition) or partial(small_disk, int(condition))
    status, _, said = in_child(words, setup)
    tell(command=name, condition=condition, fault=_left(status, said, out, condition))


def _left(status: int, said: str, out: Path, condition: str) -> str | None:
    """What is wrong with how a command ended that could not write."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0 and condition not in ("read-only", "taken"):
        return None  # all of it was small enough, or needs no home
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code != 2 or len(errors) != 1 or "fault of difformer" in said or "Traceback" in said:
        return f"exit code {code}: {said[-600:]}"
    for path in out.rglob("*") if out.exists() else ():
        if STAGES in (path.name, path.parent.name):
            continue
        if path.name.endswith((".part", ".tmp")) or path.name.startswith("."):
            return f"{path.name} is left"
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
            return f"half of {path.name} is left"
    return None


def kill(root: Path, out: Path, name: str, chosen: slice) -> None:
    """Kill a command at some of its writes, and run it again."""
    words = commands(root, out)[name]
    begin(name, out)
    status, count, said = in_child(words)
    if status:
        return tell(command=name, fault=f"undisturbed: status {status}: {said[-500:]}")
    whole = kept(out)
    points = [(at, mode) for at in range(count) for mode in MODES]
    Random(0).shuffle(points)  # so that a few of them are spread over all writes
    tell(command=name, writes=count, points=len(points))
    for at, mode in points[chosen]:
        begin(name, out)
        killed, _, _ = in_child(words, partial(Writes, at, mode))
        again = words[0] == "train" and (out / "config.toml").exists()  # else nothing is there yet
        status, _, said = in_child([*words, "--resume"] if again else words)
        fault, now = None, kept(out)
        if not os.WIFSIGNALED(killed):
            fault = "it was not killed"
        elif status:
            fault = f"status {status}: {said[-500:]}"
        elif now != whole:
            names = {n for n in {*now, *whole} if now.get(n) != whole.get(n)}
            fault = f"other files: {', '.join(sorted(names))}"
        tell(command=name, at=at, mode=mode, fault=fault)
    return None


def main() -> None:
    import torch

    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    root, asked = prepared(folder), [word.split(":") for word in sys.argv[2:]]
    stand_in({name for name, *_ in asked})
    for name, *how in asked:
        if len(how) == 2:
            kill(root, folder / "out", name, slice(*map(int, how)))
        else:
            forbid(root, folder / "place", name, *how)
    tell(done=True)


if __name__ == "__main__":
    main()

"""From tables to parts to predictions, on the command line: one process, and several."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer.app.cli import main
from difformer.errors import DataError
from difformer.jobs.shards import _first  # pyright: ignore[reportPrivateUsage]

pytest.importorskip("duckdb")
pq = pytest.importorskip("pyarrow.parquet")

N = 120
CALM = ("--dropout", "0", "--input-dropout", "0")  # what is drawn depends on the processes
OPTIONS = ("--epochs", "4", "--hidden-channels", "8", *CALM, "--threads", "1", "-q")
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
}


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def over_processes(*words: object) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [sys.executable, *launcher, "-m", "difformer", *(str(word) for word in words)]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 3))
    y = np.where(x[:, 0] > 0, "up", "down")
    rows = [f"u{i},{a:.4f},{b:.4f},{c:.4f},{y[i]}" for i, (a, b, c) in enumerate(x)]
    (folder / "nodes.csv").write_text("\n".join(["name,a,b,c,way", *rows]) + "\n")
    edges = [f"u{i},u{j}" for i, j in rng.integers(N, size=(300, 2))]
    (folder / "edges.csv").write_text("\n".join(["from,to", *edges]) + "\n")
    words = ("--nodes", folder / "nodes.csv", "--edges", folder / "edges.csv", "--id", "name")
    # The limit includes what this process holds already: gigabytes, after many other tests.
    more = ("--label", "way", "--parts", 4, "--partition", "streaming", "--memory", "12GB", "-q")
    assert run("shard", folder / "parts", *words, *more) == 0
    return folder / "parts"


def predictions(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("predictions-*.parquet")):
        table = pq.read_table(file).to_pydict()
        each = zip(table["prediction"], table["p(up)"], table["split"], strict=True)
        found |= dict(zip(table["id"], each, strict=True))
    return found


def test_several_processes_write_the_predictions_of_one(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", parts, "--out", tmp_path / "one", *OPTIONS) == 0
    done = over_processes("train", parts, "--out", tmp_path / "two", *OPTIONS)
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "two").glob("predictions-*"))
    assert names == ["predictions-00000-of-00002.parquet", "predictions-00001-of-00002.parquet"]
    one, two = predictions(tmp_path / "one"), predictions(tmp_path / "two")
    assert one.keys() == two.keys() == {f"u{i}" for i in range(N)}
    for name, (word, chance, part) in one.items():
        assert two[name][1] == pytest.approx(chance, abs=1e-4)
        assert two[name][2] == part
        assert word == ("up" if chance > 0.5 else "down")
    results = [json.loads((tmp_path / n / "result.json").read_text()) for n in ("one", "two")]
    for part in ("train", "val", "test"):
        first, second = (result["metrics"][part] for result in results)
        assert first == pytest.approx(second, abs=1e-4)
    assert len(list(tmp_path.glob("*/report.html"))) == 2
    assert run("energy", tmp_path / "one") == 2  # which needs the data in memory
    assert "was trained from shards" in capsys.readouterr().err


def test_a_finished_run_writes_its_predictions_again(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    batches = ("--batch-size", "40", "--no-report")
    assert run("train", parts, "--out", out, *batches, *OPTIONS) == 0
    before = predictions(out)
    file = next(out.glob("predictions-*"))
    file.rename(out / "predictions-00000-of-00003.parquet")
    assert run("train", parts, "--out", out, "--resume", *batches, *OPTIONS) == 0
    assert [p.name for p in out.glob("predictions-*")] == [file.name]
    assert predictions(out) == before
    monkeypatch.setattr("difformer.jobs.shards.find_spec", lambda _: None)  # without pyarrow
    assert run("train", parts, "--out", out, "--resume", *batches, *OPTIONS) == 0
    with (out / "predictions-00000-of-00001.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    found = {r["id"]: (r["prediction"], float(r["p(up)"]), r["split"]) for r in lines}
    assert found == before


def said_by_rank_1(done: subprocess.CompletedProcess[str]) -> str:
    """The only line of the second of two processes that failed."""
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("difformer: rank 1")]
    return line


def test_a_tampered_part_stops_every_process_with_one_line(parts: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "parts"
    shutil.copytree(parts, damaged)
    file = damaged / "part-00003" / "x.npy"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    done = over_processes("train", damaged, "--out", tmp_path / "run", *OPTIONS)
    assert "part-00003/x.npy changed after it was written" in said_by_rank_1(done)
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_full_disk_under_one_process_is_one_line_and_nothing_is_lost(
    parts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    name = "predictions-00001-of-00002.parquet"
    full = out / f".{name}.part"
    full.symlink_to("/dev/full")  # where the second process writes its predictions
    line = said_by_rank_1(over_processes("train", parts, "--out", out, "--no-report", *OPTIONS))
    assert "cannot write" in line
    assert name in line
    assert "No space left on device" in line
    trained = (out / "model.safetensors").read_bytes()
    assert not (out / name).exists()
    full.unlink(missing_ok=True)
    assert run("train", parts, "--out", out, "--resume", "--no-report", *OPTIONS) == 0
    assert (out / "model.safetensors").read_bytes() == trained
    assert len(predictions(out)) == N


class FailedError(Exception):
    """As Ray Train's error, and as it wraps what a worker raised."""

    def __init__(self, message: str, *failures: Exception, cause: Exception | None = None) -> None:
        super().__init__(message)
        self.worker_failures, self._base_exc = dict(enumerate(failures)), cause


def test_the_worker_that_says_what_to_do_is_named_before_those_that_lost_it() -> None:
    lost = FailedError("Traceback\n", cause=RuntimeError("Connection closed by peer"))
    changed = FailedError("Traceback\n", cause=DataError("x.npy changed after it was written"))
    for error, said in (
        (FailedError("many", lost, changed), "rank 1 of the cluster: x.npy changed after it was"),
        (FailedError("many", lost), "rank 0 of the cluster: Connection closed by peer"),
        (FailedError("no\nworker"), "training on the cluster failed: no worker"),
    ):
        assert _first(error).startswith(said)

"""A few of everything that `python -m benchmarks.hostile` does at length; see docs/reliability.md.

With HOSTILE=20000 the fuzzers run that many cases.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from benchmarks import hostile
from difformer.app import COMMANDS
from difformer.app.cli import main
from difformer.extensions import added

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits and forks as Linux has them"
)
pytest.importorskip("pyarrow", reason="Parquet needs the extra parquet")
pytest.importorskip("starlette", reason="the service needs the extra serve")
pytest.importorskip("optuna", reason="tune needs the extra tune")

CASES = -(-int(os.environ.get("HOSTILE", "360")) // len(hostile.FORMATS))


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    return hostile.prepare(place)


def faults(found: dict[str, Any]) -> dict[str, Any]:
    return {name: record["faults"] for name, record in found.items() if record["faults"]}


@pytest.fixture(scope="module")
def fuzzed(place: Path, run: Path) -> dict[str, Any]:
    (place / "fuzz").mkdir()
    (place / "fuzz" / "prepare_runs").symlink_to(run.parent)  # the samples of `kills` serve as well
    return hostile.fuzz(place / "fuzz", {name: range(CASES) for name in hostile.FORMATS})


def test_a_fuzzed_file_or_request_is_refused_in_one_line_or_answered_rightly(
    fuzzed: dict[str, Any],
) -> None:
    assert faults(fuzzed["formats"]) == {}


@pytest.mark.parametrize("name", hostile.FORMATS)
def test_the_fuzzer_of_each_format_gets_both_answers_and_refusals(
    fuzzed: dict[str, Any], name: str
) -> None:
    record = fuzzed["formats"][name]
    assert record["cases"] == CASES
    assert record["answered"] > 0
    assert record["refused"] > 0


def test_fuzzing_stays_within_its_memory_and_time(fuzzed: dict[str, Any]) -> None:
    assert 0 < fuzzed["peak_mb"] < 2048
    assert all(record["longest_seconds"] <= 10 for record in fuzzed["formats"].values())


HANG = """
import sys, time
from types import SimpleNamespace
sys.path.insert(0, sys.argv.pop(1))
wait = time.sleep if sys.argv.pop(1) == "asleep" else lambda seconds: None
import fuzz
seen = []
def hang(root, place, draw):  # but for the first call, which warms up
    seen.append(place)
    while len(seen) > 1:
        wait(0.01)
fuzz.SECONDS = 0.5
formats = {"hang": (lambda root: None, hang)}
sys.modules["cases"] = SimpleNamespace(FORMATS=formats)  # without the real ones' imports
fuzz.main()
"""


@pytest.mark.parametrize("how", ["asleep", "busy"])
def test_a_case_that_hangs_is_a_fault(how: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HANG, str(hostile.SCRIPTS), how, str(tmp_path), "hang:0:1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told[1]["outcome"] == "fault"
    assert told[1]["why"] == "TimeoutError: longer than 0.5 s"


def test_a_command_killed_at_a_write_goes_on_to_the_same_bits(place: Path, run: Path) -> None:
    points = {
        "train": range(7, 9),
        "train --nodes": range(3, 4),
        "compare": range(4, 5),
        "predict": range(1, 2),
        "reproduce": range(4, 5),
        "datasets fetch": range(1),
        "bench": range(1, 2),
    }
    found = hostile.kills(place, points)
    assert faults(found) == {}
    assert {name: record["kills"] for name, record in found.items()} == {
        name: len(range_) for name, range_ in points.items()
    }


def test_every_command_that_writes_is_killed() -> None:
    others = {"energy", "serve", "settings", "demo"}  # the runs of demo are those of train
    killed = {name.split()[0] for name in hostile.COMMANDS}
    assert killed | others == {*COMMANDS, *added("commands")}


def test_threads_that_share_a_model_get_the_answers_of_one(run: Path) -> None:
    found = hostile.threads(run, 4, 100)
    assert (found["answers"], found["wrong"]) == (100, 0)


def test_clients_of_whom_a_third_ask_nonsense_get_right_answers_and_no_5xx(run: Path) -> None:
    found = hostile.clients(run, 20, 2.0, "--seconds", "1")
    assert found["wrong"] == 0
    assert found["closed"] == found["held"]  # idle connections, and headers without an end
    assert found["statuses"]["200"] > 0
    assert found["statuses"]["422"] > 0
    assert {status for status in found["statuses"] if status >= "500"} <= {"503"}
    assert found["log_lines"] < 10
    assert found["attacks"] == {"large": 413, "doubled": 400, "rebound": 400, "crowded": 200}


def test_where_it_cannot_write_a_command_says_so_in_one_line(place: Path, run: Path) -> None:
    cases = [f"predict:{condition}" for condition in ("read-only", "homeless", "20")]
    cases += ["train --nodes:read-only", "train --nodes:3000", "train:2000", "runs:3000"]
    cases += ["compare:0", "tune:3000", "datasets fetch:100000", "datasets fetch:read-only"]
    cases += ["bench:0", "bench:read-only"]
    cases += [f"{name}:taken" for name in ("train", "train --nodes", "train --series")]
    found = hostile.full(place, cases)
    assert {name: fault for name, fault in found.items() if fault} == {}
    assert list(found) == cases


@pytest.mark.parametrize("kind", ["folder", "pipe", "loop", "link to nothing"])
def test_what_is_no_file_is_called_what_it_is(kind: str, run: Path, tmp_path: Path) -> None:
    path, table = tmp_path / "t.csv", str(run.parent / "t.csv")
    {
        "folder": path.mkdir,
        "pipe": partial(os.mkfifo, path),
        "loop": partial(path.symlink_to, path),
        "link to nothing": partial(path.symlink_to, "none"),
    }[kind]()
    said = {"folder": "folder", "pipe": "is a pipe", "loop": "symbolic links"}
    for words in (
        ["train", "--nodes", str(path), "--label", "kind"],
        ["train", "--nodes", table, "--label", "kind", "--edges", str(path)],
        ["train", "--series", str(path)],
        ["compare", str(path), "--label", "kind"],
        ["predict", str(run), str(path), "-o", "-"],
        ["shard", str(tmp_path / "out"), "--nodes", str(path), "--label", "kind"],
    ):
        told = io.StringIO()
        with redirect_stderr(told), pytest.raises(SystemExit) as ended:
            main(words)
        errors = told.getvalue().splitlines()
        assert (ended.value.code, len(errors)) == (2, 1)
        assert said.get(kind, "no such file") in errors[0] or words[0] == "shard"


def test_a_long_run_goes_on_after_the_cases_that_its_result_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def fuzz(_: Path, cases: dict[str, range]) -> dict[str, Any]:
        asked.append(cases["csv"])
        record = {"answered": 0, "refused": 0, "faults": [], "longest_seconds": 0.0}
        return {
            "formats": {name: {"cases": len(r), **record} for name, r in cases.items()},
            "peak_mb": 1,
        }

    def kills(_: Path, points: dict[str, range]) -> dict[str, Any]:
        ((name, r),) = points.items()
        asked.append((name, r))
        return {name: {"writes": 9, "kills": len(range(27)[r.start : r.stop]), "faults": []}}

    monkeypatch.setattr(hostile, "RESULT", tmp_path / "hostile.json")
    monkeypatch.setattr(hostile, "COMMANDS", ("train", "reproduce --runs"))
    monkeypatch.setattr(hostile, "fuzz", fuzz)
    monkeypatch.setattr(hostile, "kills", kills)
    monkeypatch.setenv("HOSTILE", str(150 * len(hostile.FORMATS)))
    hostile.main(["fuzz", "kills"])
    train = [("train", range(20)), ("train", range(20, 40))]
    assert asked == [range(100), range(100, 150), *train, ("reproduce --runs", range(12))]
    monkeypatch.setenv("HOSTILE", str(170 * len(hostile.FORMATS)))
    asked.clear()
    hostile.main(["--resume", "fuzz", "kills"])
    assert asked == [range(150, 170)]
    kept = json.loads((tmp_path / "hostile.json").read_text())["results"]
    assert {record["cases"] for record in kept["fuzz"]["formats"].values()} == {170}
    assert {name: record["kills"] for name, record in kept["kills"].items()} == {
        "train": 27,
        "reproduce --runs": 12,
    }

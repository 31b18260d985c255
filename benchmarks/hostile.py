"""Fuzzed files and requests, kills at every write, threads and clients.

HOSTILE=20000 python -m benchmarks.hostile [--resume] [PART ...]

Writes results/benchmarks/hostile.json. HOSTILE is the number of fuzzed cases over all formats. The
parts are fuzz, kills, full, threads and clients; other parts in the result file are kept. With
--resume, fuzz, kills and full continue after the cases in the result file. The scripts are in
tests/hostile; the tests run a few cases of each.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import read_results, result_file, service, write_results

SCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "hostile"
RESULT = result_file("hostile")
FORMATS = (
    "csv",
    "jsonl",
    "parquet",
    "npz",
    "edges",
    "series",
    "model",
    "frozen",
    "estimator",
    "checkpoint",
    "run",
    "requests",
)
COMMANDS = (
    "train",
    "predict",
    "predict a series",
    "report",
    "runs",
    "train --series",
    "compare",
    "tune",
    "shard",
    "train with seeds",
    "features",
    "train --nodes",
    "reproduce",
    "reproduce --runs",
    "train with a page",
    "demo",
    "export",
    "datasets fetch",
    "bench",
)
MODES = ("before", "half", "after")  # a kill before a write, in its middle and after it
PATIENCE = 300.0  # seconds without a word from a child before it is taken to hang


def fuzz(folder: Path, cases: dict[str, range]) -> dict[str, Any]:
    """Outcomes of each format's cases; a child that dies or hangs is a fault of its last case."""
    found: dict[str, Any] = {
        name: {"cases": 0, "answered": 0, "refused": 0, "faults": [], "longest_seconds": 0.0}
        for name in cases
    }
    left = {name: range(r.start, r.stop) for name, r in cases.items()}
    peak = 0
    while any(left.values()):
        words = [f"{name}:{r.start}:{r.stop}" for name, r in left.items() if r]
        last: list[Any] | None = None
        for line in _talk("fuzz.py", str(folder), *words):
            if "begin" in line:
                last = line["begin"]
            elif "end" in line:
                (name, seed), last = line["end"], None
                left[name] = range(seed + 1, left[name].stop)
                record = found[name]
                record["cases"] += 1
                record["longest_seconds"] = max(record["longest_seconds"], line["seconds"])
                if line["outcome"] == "fault":
                    record["faults"].append(f"{seed}: {line['why']} {line.get('at', '')}")
                else:
                    record[line["outcome"]] += 1
            else:
                peak = max(peak, line.get("peak_mb", 0))
                last = ["done", 0]
        if last is None:
            raise RuntimeError("a child ended before its first case")
        if last[0] != "done":
            name, seed = last
            found[name]["cases"] += 1
            found[name]["faults"].append(f"{seed}: the process died or hung")
            left[name] = range(seed + 1, left[name].stop)
    return {"formats": found, "peak_mb": peak}


def kills(folder: Path, points: dict[str, range]) -> dict[str, Any]:
    """Kills of each command at its writes; what is no fault went on to the same bits."""
    found: dict[str, Any] = {}
    words = [f"{name}:{r.start}:{r.stop}" for name, r in points.items()]
    for line in _talk("kills.py", str(folder), *words, patience=1800.0):
        if "command" not in line:
            continue
        record = found.setdefault(line["command"], {"writes": 0, "kills": 0, "faults": []})
        record["writes"] = line.get("writes", record["writes"])
        record["kills"] += "at" in line
        if line.get("fault"):
            record["faults"].append(f"{line.get('at')} {line.get('mode')}: {line['fault']}")
    return found


def threads(run: Path, number: int, answers: int) -> dict[str, Any]:
    """Answers of threads that share one model, and how many were not those of one alone."""
    return next(iter(_talk("clients.py", str(run), str(number), str(answers), patience=3600.0)))


def full(folder: Path, cases: Sequence[str]) -> dict[str, str | None]:
    """Commands that cannot write, each as COMMAND:CONDITION, with what was wrong or None."""
    lines = list(_talk("kills.py", str(folder), *cases, patience=1800.0))
    return {
        f"{line['command']}:{line['condition']}": line["fault"]
        for line in lines
        if "command" in line
    }


def clients(run: Path, number: int, seconds: float, *words: str) -> dict[str, Any]:
    """Clients of `difformer serve`, a third of whose requests are bad, and held connections."""
    log = run.parent / "serve.log"
    with service(run, log, *words) as (port, _):
        asked = (str(run), str(number), str(seconds), str(port))
        result = next(iter(_talk("clients.py", *asked, patience=seconds + 600)))
        return {**result, "log_lines": len(log.read_text().splitlines())}


def prepare(folder: Path) -> Path:
    """What the commands read, made where `kills` and `full` look for it; a small run on a table."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
    code += "from kills import prepared; prepared(Path(sys.argv[2]))"
    subprocess.run([sys.executable, "-c", code, str(SCRIPTS), str(folder)], check=True)
    return folder / "prepared" / "own"


def _talk(script: str, *words: str, patience: float = PATIENCE) -> Iterator[dict[str, Any]]:
    """The lines of JSON that a script prints, until it ends or falls silent."""
    command = [sys.executable, str(SCRIPTS / script), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        with ThreadPoolExecutor(1) as reading:
            while True:
                line = reading.submit(child.stdout.readline)
                try:
                    text = line.result(patience)
                except TimeoutError:
                    child.kill()
                    return
                if not text:
                    return
                yield json.loads(text)


def _long_fuzz(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    number = -(-int(os.environ.get("HOSTILE", "20000")) // len(FORMATS))
    first = min((found["formats"][name]["cases"] for name in FORMATS), default=0) if found else 0
    for start in range(first, number, 100):  # in pieces, so that a run cut short has figures
        part = fuzz(folder, {name: range(start, min(start + 100, number)) for name in FORMATS})
        found = part if not found else _added(found, part)
        _keep("fuzz", found)
    return found


def _added(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    formats: dict[str, Any] = {}
    for name, a in one["formats"].items():
        b = two["formats"][name]
        formats[name] = {key: a[key] + b[key] for key in ("cases", "answered", "refused", "faults")}
        formats[name]["longest_seconds"] = max(a["longest_seconds"], b["longest_seconds"])
    return {"formats": formats, "peak_mb": max(one["peak_mb"], two["peak_mb"])}


def _long_kills(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    most = {
        "train with a page": 12,
        "reproduce --runs": 12,
        "tune": 30,
        "demo": 30,
    }  # which take long
    for name in COMMANDS:
        record: dict[str, Any] = found.get(name, {"kills": 0, "faults": [], "writes": math.inf})
        # In pieces, so that a run cut short has figures.
        while record["kills"] < min(most.get(name, 60), len(MODES) * record["writes"]):
            first = record["kills"]
            part = kills(folder, {name: range(first, min(first + 20, most.get(name, 60)))})[name]
            record = {
                "writes": part["writes"],
                "kills": first + part["kills"],
                "faults": record["faults"] + part["faults"],
            }
            found = {**found, name: record}
            _keep("kills", found)
            if not part["kills"]:  # it does not run undisturbed
                break
    return found


CONDITIONS = ("read-only", "homeless", "0", "500", "3000", "20000", "100000")


def _long_full(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    found = {"cases": 0, "faults": [], "commands": [], **found}
    for name in COMMANDS:
        if name == "train with seeds" or name in found["commands"]:  # it writes as train does
            continue
        part = full(folder, [f"{name}:{condition}" for condition in CONDITIONS])
        faults = [f"{case}: {fault}" for case, fault in part.items() if fault]
        found = {
            "cases": found["cases"] + len(part),
            "faults": found["faults"] + faults,
            "commands": [*found["commands"], name],
        }
        _keep("full", found)
    return found


def _long_threads(folder: Path, _: dict[str, Any]) -> list[dict[str, Any]]:
    run = prepare(folder)
    return [threads(run, number, 10_000) for number in (2, 4)]


def _long_clients(folder: Path, _: dict[str, Any]) -> dict[str, Any]:
    return clients(prepare(folder), 200, 60.0)


# Each gets a folder and what the result file holds of it, which is nothing without --resume.
PARTS: dict[str, Callable[[Path, dict[str, Any]], Any]] = {
    "fuzz": _long_fuzz,
    "kills": _long_kills,
    "full": _long_full,
    "threads": _long_threads,
    "clients": _long_clients,
}


def _keep(part: str, result: Any) -> None:
    write_results("hostile", {**read_results(RESULT), part: result}, path=RESULT)


def main(words: Sequence[str]) -> None:
    resume = "--resume" in words
    for part in [word for word in words if word != "--resume"] or PARTS:
        with TemporaryDirectory() as folder:
            before = read_results(RESULT).get(part, {}) if resume else {}
            _keep(part, PARTS[part](Path(folder), before))


if __name__ == "__main__":
    main(sys.argv[1:])

"""The doors users use: `python -m difformer ...` in this process, and small files to give it.

Only public names and the command line are used here and in the cases, so that the goldens survive
every move of the code behind them.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import re
import runpy
import sys
import warnings
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

# Bits depend on the number of threads, the width of help on that of the terminal.
STEADY = {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "NO_COLOR": "1", "TZ": "UTC"}
DATA = "DIFFORMER_DATA"  # cora, citeseer and digits are in the package; nothing else is used

# Words of keys in JSON documents, and of rows of pages, whose values differ between machines.
DROPPED = {
    "second", "seconds", "time", "memory", "mb", "ms", "version", "machine", "date", "path",
    "folder", "commit", "cores", "fingerprint", "bytes", "files",
}  # fmt: skip


class Done(NamedTuple):
    code: int
    out: str
    err: str


def call(*words: object) -> Done:
    """What `python -m difformer WORDS` prints in the present folder, and its exit code."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["difformer", *(str(word) for word in words)]
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with warnings.catch_warnings():
                runpy.run_module("difformer", run_name="__main__", alter_sys=False)
        except SystemExit as end:
            code = end.code or 0
        finally:
            sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())


def answer(*words: object) -> Any:
    """The JSON document of a command that succeeds, without what is the machine's."""
    done = call(*words, "--json")
    if done.code:
        raise RuntimeError(f"difformer {' '.join(map(str, words))}: {done.err}")
    return plain(json.loads(done.out))


def plain(value: Any) -> Any:
    """A document without times, memory, versions and paths; floats as they are."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items() if not is_machines(key)}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.replace(os.getcwd(), "HERE") if isinstance(value, str) else value


def is_machines(key: str) -> bool:
    """Whether a key or caption names what differs between machines and days."""
    return key == "s" or not DROPPED.isdisjoint(re.findall("[a-z]+", key.lower()))


def rows(values: Any, most: int = 20) -> list[Any]:
    """The first rows of an array as lists of floats."""
    return values[:most].tolist()


def write(path: str, lines: list[str]) -> Path:
    """Write lines to a file of the present folder."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def numbers(n: int, columns: int, seed: int = 0) -> list[list[float]]:
    """Normal numbers that do not depend on NumPy's version."""
    draw = random.Random(seed)
    return [[round(draw.gauss(0, 1), 4) for _ in range(columns)] for _ in range(n)]


def write_table(path: str = "table.csv", n: int = 60, unlabelled: int = 10) -> Path:
    """Rows with id, two numbers, a category, a date, and labels y, z, yes, no; some cells empty."""
    lines = ["name,a,b,town,day,y,z,warm,wet"]
    for i, (a, b) in enumerate(numbers(n, 2)):
        town = ("Rome", "Oslo", "Lima")[i % 3]
        day = date(2024, 1, 1) + timedelta(days=7 * i)
        y = ("up" if a + (town == "Oslo") > 0 else "down") if i < n - unlabelled else ""
        z = f"{2 * a - b + (town == 'Rome'):.4f}" if i < n - unlabelled else ""
        both = f"{int(a > 0)},{int(b > 0)}" if i < n - unlabelled else ","
        lines.append(f"r{i},{a},{b if i % 7 else ''},{town},{day},{y},{z},{both}")
    return write(path, lines)


def write_edges(path: str = "edges.csv", n: int = 60, weighted: bool = False) -> Path:
    """A ring and its chords among the rows of `write_table`."""
    head = "source,target" + ",weight" * weighted
    ring = [(i, (i + step) % n) for i in range(n) for step in (1, 7) if step == 1 or i % 3 == 0]
    tail = [f",{1 + i % 4 / 2}" if weighted else "" for i, _ in ring]
    edges = [f"r{i},r{j}{more}" for (i, j), more in zip(ring, tail, strict=True)]
    return write(path, [head, *edges])


def write_series(path: str = "series.csv", steps: int = 60, start: int = 0) -> Path:
    """Four nodes with a weekly wave, noise and a slow rise."""
    lines = ["day,n0,n1,n2,n3"]
    for t, noise in list(enumerate(numbers(start + steps, 4, seed=2)))[start:]:
        wave = [math.sin(2 * math.pi * (t + 2 * k) / 7) + 0.01 * t for k in range(4)]
        cells = [f"{10 + w + 0.1 * e:.4f}" for w, e in zip(wave, noise, strict=True)]
        lines.append(",".join([str(date(2024, 1, 1) + timedelta(days=t)), *cells]))
    return write(path, lines)


def write_links(path: str = "links.csv") -> Path:
    """Edges of the nodes of `write_series`."""
    return write(path, ["source,target,weight", "n0,n1,1", "n1,n2,0.5", "n2,n3,2"])

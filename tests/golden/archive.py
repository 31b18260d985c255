"""Run folders of an earlier day, and what today's code answers from them.

`record.py --archive` writes `runs/` anew with the code as it is. Otherwise the folders stay, and
every case opens a copy: report, predict, resume. Their answers are compared like all others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from commands import cells
from doors import answer, numbers, write_edges, write_links, write_series, write_table
from pages import read_page

ARCHIVE = Path(__file__).resolve().parent / "runs"
OWN = ("--nodes", "table.csv", "--id", "name", "--hidden-channels", 4, "--recipe", "stable")
QUIET = ("--epochs", 3, "--no-report", "-q", "--out")

# How each folder came about; what it can do is in the cases below.
TRAINED: dict[str, tuple[object, ...]] = {
    "cora-s": ("train", "cora", "--hidden-channels", 4),
    "cora-a": ("train", "cora", "-m", "difformer-a", "--hidden-channels", 4),
    "cora-gcn": ("train", "cora", "-m", "gcn", "--set", "hidden_channels=4"),
    "digits-mlp": ("train", "digits", "-m", "mlp", "--set", "hidden_channels=4"),
    "digits-seeds": ("train", "digits", "--hidden-channels", 4, "--seeds", 2),
    "own-classes": ("train", *OWN, "--label", "y"),
    "own-edges": ("train", *OWN, "--label", "y", "--edges", "edges.csv"),
    "own-numbers": ("train", *OWN, "--label", "z"),
    "own-several": ("train", *OWN, "--label", "warm", "--label", "wet"),
    "own-default": (
        *("train", "--nodes", "small.csv", "--id", "name", "--label", "y"),
        *("--hidden-channels", 8),
    ),
    "series": ("train", "--series", "series.csv", "--hidden-channels", 4),
    "series-edges": ("train", "--series", "series.csv", "--edges", "links.csv", "--set", "lags=7"),
    "parts-run": ("train", "parts", "--hidden-channels", 4),
}
UNFINISHED = ("train", "digits", "--hidden-channels", 4, "--epochs", 80, "--no-report", "-q")
X = np.array(numbers(30, 3))


def inputs() -> None:
    """The tables that the runs were trained on, as they were."""
    write_table()
    write_edges()
    write_series()
    write_links()
    write_table("small.csv", n=20, unlabelled=4)
    write_series("newer.csv", steps=20, start=50)


def estimators() -> dict[str, Any]:
    """The estimators whose files are kept."""
    from difformer import DIFFormerClassifier, DIFFormerRegressor

    settings: Any = {"hidden_channels": 4, "epochs": 5, "random_state": 0}
    y = np.arange(30) % 2
    edges = np.array([range(30), [*range(1, 30), 0]])
    return {
        "classifier": DIFFormerClassifier(recipe="stable", **settings).fit(X, y),
        "graph-classifier": DIFFormerClassifier(recipe="stable", **settings).fit(X, y, graph=edges),
        "regressor": DIFFormerRegressor(recipe="stable", **settings).fit(X, X[:, 0]),
    }


def freeze(folder: Path) -> None:
    """Write all run folders anew, without their pages."""
    from difformer import DIFFormer

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)
    inputs()
    nodes = ("--nodes", "table.csv", "--edges", "edges.csv", "--id", "name", "--label", "y")
    answer("shard", "parts", *nodes, "--parts", 2, "-q")
    for name, words in TRAINED.items():
        answer(*words, *QUIET, name)
    data = ("table.csv", "--label", "y", "--id", "name", "--edges", "edges.csv")
    words = ("--models", "gcn,difformer-s", "--splits", 2, "--epochs", 3, "--workers", 1, "-q")
    answer("compare", *data, *words, "--out", "sheet")
    interrupt("unfinished")
    for name, model in estimators().items():
        model.save(f"{name}.safetensors")
    DIFFormer(3, 4, 2, num_layers=2).save("model.safetensors")
    for page in folder.rglob("report.html"):
        page.unlink()
    for file in folder.glob("*.csv"):  # the inputs are written anew by each case
        file.unlink()
    sizes = {p.name: sum(f.stat().st_size for f in p.rglob("*")) for p in sorted(folder.iterdir())}
    print("\n".join(f"{size:8,} {name}" for name, size in sizes.items()), sum(sizes.values()))


def interrupt(name: str) -> None:
    """A run that was killed after some epochs, with its checkpoint."""
    words = (*UNFINISHED, "--checkpoint-every", 0, "--out", name)
    process = subprocess.Popen([sys.executable, "-m", "difformer", *map(str, words)])
    metrics = Path(name, "metrics.csv")
    while process.poll() is None:
        if metrics.exists() and metrics.read_text().count("\n") > 5:
            process.kill()
        time.sleep(0.01)
    assert process.wait() < 0, "the run ended before it was killed"


def opened(name: str) -> None:
    """A copy of the folder or file of that name, beside the tables of training."""
    inputs()
    kept = ARCHIVE / name
    (shutil.copytree if kept.is_dir() else shutil.copy)(kept, name)


def page(name: str) -> dict[str, Any]:
    """The page of an archived run, and its line among the runs."""
    answer("report", name, "--projection", "pca")
    return {"page": read_page(f"{name}/report.html"), "runs": answer("runs", name)}


def own(name: str, table: str = "table.csv", level: object = 0.9) -> dict[str, Any]:
    """A run on a table: page, predictions of its rows, and the finished run resumed."""
    opened(name)
    found = page(name)
    answer("predict", name, table, "-o", "out.csv", *(("--level", level) if level else ()))
    words = ("--resume", *QUIET, name)
    return found | {"out.csv": cells("out.csv"), "again": answer(*TRAINED[name], *words)}


def forecast(name: str) -> dict[str, Any]:
    """A run on a series: page, and a forecast from newer values."""
    opened(name)
    found = page(name)
    answer("predict", name, "--series", "newer.csv", "-o", "out.csv")
    return found | {"out.csv": cells("out.csv")}


def named(name: str) -> dict[str, Any]:
    """A run on a named dataset: page, load_run, and the finished run resumed."""
    from difformer import load_run

    opened(name)
    found = page(name) | {"title": load_run(name).title}
    return found | {"again": answer(*TRAINED[name], "--resume", *QUIET, name)["metrics"]}


def predicted(name: str) -> dict[str, Any]:
    """What a run on digits answers for new rows."""
    opened(name)
    rows = [[abs(cell) * 5 for cell in line] for line in numbers(5, 64)]
    lines = [",".join(f"x{i}" for i in range(64)), *[",".join(map(str, row)) for row in rows]]
    Path("new.csv").write_text("\n".join(lines) + "\n")
    answer("predict", name, "new.csv", "-o", "out.csv")
    return {"out.csv": cells("out.csv")}


def resumed() -> dict[str, Any]:
    """The killed run, resumed to its end, and the same run without a break."""
    opened("unfinished")
    found = answer(*UNFINISHED, "--checkpoint-every", 0, "--resume", "--out", "unfinished")
    whole = answer(*UNFINISHED, "--checkpoint-every", 0, "--out", "whole")
    for seed in (*found["seeds"].values(), *whole["seeds"].values()):
        seed.pop("seconds", None)
    return {"resumed": found["seeds"], "as one": found["seeds"] == whole["seeds"]}


def sheet() -> dict[str, Any]:
    """A comparison: its line among the runs, and the same command, which finds all done."""
    opened("sheet")
    stored = json.loads(Path("sheet/comparison.json").read_text())
    data = ("table.csv", "--label", "y", "--id", "name", "--edges", "edges.csv")
    words = ("--models", "gcn,difformer-s", "--splits", 2, "--epochs", 3, "--workers", 1, "-q")
    again = answer("compare", *data, *words, "--out", "sheet")
    return {"runs": answer("runs", "sheet"), "again": again, "kept": sorted(stored) != []}


def parts() -> dict[str, Any]:
    """A folder of parts trains, and the run on it shows its page."""
    opened("parts")
    opened("parts-run")
    found = page("parts-run")
    return found | {"train": answer(*TRAINED["parts-run"], *QUIET, "new")["metrics"]}


def loaded(name: str) -> dict[str, Any]:
    """What a stored estimator answers."""
    import difformer as d

    opened(f"{name}.safetensors")
    kind: Any = d.DIFFormerRegressor if name == "regressor" else d.DIFFormerClassifier
    model = kind.load(f"{name}.safetensors")
    ask = model.predict if name == "regressor" else model.predict_proba
    return {"known": ask(X[:8]).tolist(), "new": ask(X[:5] + 0.1).tolist()}


def model() -> dict[str, Any]:
    """What a stored DIFFormer answers."""
    import torch

    from difformer import DIFFormer

    opened("model.safetensors")
    with torch.no_grad():
        y = DIFFormer.load("model.safetensors").eval()(torch.tensor(X, dtype=torch.float32))
    return {"y": y.tolist()[:8]}


FILES = ("classifier", "graph-classifier", "regressor")
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"archive-{n}": partial(named, n) for n in ("cora-s", "cora-a", "cora-gcn")},
    **{f"archive-{n}": partial(named, n) for n in ("digits-mlp", "digits-seeds")},
    **{f"archive-own-{n}": partial(own, f"own-{n}") for n in ("classes", "edges", "numbers")},
    "archive-own-several": partial(own, "own-several", level=None),
    "archive-own-default": partial(own, "own-default", "small.csv"),
    "archive-series": partial(forecast, "series"),
    "archive-series-edges": partial(forecast, "series-edges"),
    "archive-predict": partial(predicted, "digits-seeds"),
    "archive-resume": resumed,
    "archive-compare": sheet,
    "archive-parts": parts,
    **{f"archive-{name}": partial(loaded, name) for name in FILES},
    "archive-model": model,
}

"""What `train` measures after few epochs, and the weights it keeps, over one process and two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from doors import answer, plain, write_edges, write_table
from safetensors.numpy import load_file

CELLS = (
    *[("cora", name) for name in ("difformer-s", "difformer-a", "gcn", "gat", "mlp", "sgc")],
    *[("cora", name) for name in ("appnp", "nodeformer", "lp", "manireg", "glcn", "sgformer")],
    *[("cora", name) for name in ("logistic", "correct-smooth", "grand-l", "gdc", "graphsage")],
    *[("citeseer", name) for name in ("difformer-s", "gcn")],
    *[("digits", name) for name in ("difformer-s", "difformer-a", "knn", "gcn-knn")],
)
UNTRAINED = ("knn", "logistic", "lp")  # which take no epochs


def cell(dataset: str, system: str) -> dict[str, Any]:
    """Metrics and settings of one system on one dataset."""
    epochs = () if system in UNTRAINED else ("--epochs", 5)
    words = (*epochs, "--seeds", 1, "--no-report", "-q", "--out", "run")
    found = answer("train", dataset, "-m", system, *words)
    return {key: found[key] for key in ("metrics", "model", "seeds", "system")}


def norms(folder: str) -> dict[str, Any]:
    """Shape, sum and norm of every weight of a run."""
    weights = load_file(Path(folder) / "model.safetensors")
    return {
        name: [list(w.shape), float(w.sum(dtype="float64")), float(np.linalg.norm(w))]
        for name, w in sorted(weights.items())
    }


# What dropout draws depends on the processes.
CALM = ("--dropout", 0, "--input-dropout", 0, "--hidden-channels", 8, "--threads", 1)
PARTS = ("--epochs", 3, "--no-report", "-q", *CALM)


def shard() -> Any:
    """A small folder of parts."""
    nodes = ("--nodes", write_table(), "--edges", write_edges(weighted=True), "--id", "name")
    return answer("shard", "parts", *nodes, "--label", "y", "--parts", 4, "-q")


def manifest() -> dict[str, Any]:
    """What `shard` counts and writes: its manifest, and a digest of every array."""
    counted = shard()
    files = sorted(Path("parts").rglob("*.npy"))
    return {
        "counted": counted,
        "manifest": plain(json.loads(Path("parts/manifest.json").read_text())),
        "arrays": {str(file): sha256(file.read_bytes()).hexdigest() for file in files},
    }


def one_process(*more: object) -> dict[str, Any]:
    """Weights and metrics of a run on parts."""
    shard()
    found = answer("train", "parts", "--out", "run", *PARTS, *more)
    return {"weights": norms("run"), "metrics": found["metrics"]}


def two_processes(kernel: str) -> dict[str, Any]:
    """The same over two processes of torchrun."""
    shard()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    words = ("train", "parts", "--out", "run", *PARTS, "--kernel", kernel)
    command = [sys.executable, *launcher, "-m", "difformer", *map(str, words)]
    done = subprocess.run(
        command, env=os.environ, capture_output=True, text=True, timeout=200, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    found = json.loads(Path("run/result.json").read_text())
    return {"weights": norms("run"), "metrics": found["metrics"]}


def whole(*more: object) -> dict[str, Any]:
    """Weights of a run on digits in memory: all rows, or random parts of them."""
    answer("train", "digits", "--out", "run", "--epochs", 3, "--no-report", "-q", *more)
    return {"weights": norms("run")}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    **{f"cells-{data}-{system}": partial(cell, data, system) for data, system in CELLS},
    "weights-whole": whole,
    "weights-batches": partial(whole, "--batch-size", 500),
    "weights-sigmoid": partial(whole, "--kernel", "sigmoid", "--num-heads", 2, "--use-weight"),
    "weights-parts": one_process,
    "weights-parts-batches": partial(one_process, "--batch-size", 30),
    "weights-parts-two": partial(two_processes, "simple"),
    "weights-parts-two-sigmoid": partial(two_processes, "sigmoid"),
    "weights-manifest": manifest,
}

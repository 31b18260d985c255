"""From files to predictions.csv and report.html: the default compared with a two-layer GCN.

python -m benchmarks.time_to_model     writes results/benchmarks/time_to_model.json

Two graphs as files, a table of ids, words and labels and a file of edges: Pubmed with the labels of
its public split (60 for training, 500 for validation), and a generated one of 57,000 rows, 450,000
directed edges and 2,000 words with a tenth of the labels. The default is `difformer train --nodes
--edges` with no other option: it reads, tries its forms, trains, predicts and writes the page. The
GCN has 64 hidden channels and 200 epochs of the same loop on the same rows, validates every epoch,
and writes the same two files. Each runs in its own process, in turn; the ratio is the median over
pairs. In addition: a default fit on digits, ten labels per class, in a process that has already
imported torch.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.few_labels import split as few_labels
from benchmarks.measure import timed_command, write_results
from difformer import load_dataset

PAIRS = 2
ROWS, EDGES, WORDS, CLASSES = 57_000, 450_000, 2_000, 8
LABELLED = 0.1


def write_graph(folder: Path, words: list[str], labels: list[Any], edges: Any) -> None:
    """nodes.csv and edges.csv as a person would have them."""
    with (folder / "nodes.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "words", "label"])
        both = zip(words, labels, strict=True)
        rows.writerows([f"p{i}", text, label] for i, (text, label) in enumerate(both))
    with (folder / "edges.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["source", "target"])
        rows.writerows([f"p{a}", f"p{b}"] for a, b in edges)


def pubmed(folder: Path) -> None:
    """Pubmed's words and citations, with the labels that its public split may see."""
    data = load_dataset("pubmed")
    seen = data.split("public")
    known = set(torch.cat([seen.train, seen.val]).tolist())
    x = data.x if data.x.layout == torch.strided else data.x.to_dense()
    words = [" ".join(f"word{j}" for j in row.nonzero().flatten().tolist()) for row in x]
    labels = [f"class {y}" if i in known else "" for i, y in enumerate(data.y.tolist())]
    assert data.edge_index is not None
    write_graph(folder, words, labels, data.edge_index.t().tolist())


def drawn(folder: Path) -> None:
    """A graph whose edges join rows of one class seven times in ten; words lean on the class."""
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=ROWS)
    members = [np.flatnonzero(y == c) for c in range(CLASSES)]
    source = rng.integers(ROWS, size=EDGES // 2)
    alike = rng.random(len(source)) < 0.7
    target = rng.integers(ROWS, size=len(source))
    target[alike] = [rng.choice(members[y[i]]) for i in source[alike]]
    share = rng.dirichlet(np.full(WORDS, 0.3), size=CLASSES + 1)
    share = 0.25 * share[:CLASSES] + 0.75 * share[CLASSES]  # most words are of no class
    words = [
        " ".join(f"word{j}" for j in rng.choice(WORDS, size=rng.integers(20, 60), p=share[c]))
        for c in y
    ]
    known = rng.random(ROWS) < LABELLED
    labels = [f"class {c}" if k else "" for c, k in zip(y, known, strict=True)]
    both = np.concatenate([np.stack([source, target], 1), np.stack([target, source], 1)])
    write_graph(folder, words, labels, both.tolist())


def gcn(folder: str) -> None:
    """Read the files, train a GCN by the loop, and write predictions.csv and report.html."""
    from difformer.data.split import Split
    from difformer.data.table.read import read_table
    from difformer.jobs.job import Experiment
    from difformer.jobs.rows import run_experiment
    from difformer.report.run_page import write_report
    from difformer.runs.open import load_run

    nodes, out = Path(folder) / "nodes.csv", Path(tempfile.mkdtemp(dir=folder)) / "run"
    options: dict[str, Any] = {
        "label": "label",
        "id": "id",
        "edges": str(nodes.with_name("edges.csv")),
    }
    data = read_table(str(nodes), **options)
    known = (data.y >= 0).nonzero().flatten()
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(0))]
    held = len(known) // 5
    empty = (data.y < 0).nonzero().flatten()
    split = Split("own", known[held:].sort().values, known[:held].sort().values, empty[:0])
    train = {"epochs": 200, "patience": 200, "lr": 0.01, "weight_decay": 5e-4}
    experiment = Experiment.make(str(nodes), system="gcn", data=options, train=train)
    run_experiment(experiment, dataset=data, split=split, folder=out)
    run = load_run(out, dataset=data)
    with torch.no_grad():
        found = run.model(data.x, run.graph).softmax(1)
    with (out / "predictions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "label", *data.class_names])
        best = found.argmax(1)
        rows.writerows(
            [data.ids[i], data.class_names[best[i]], *map(float, found[i])] for i in empty.tolist()
        )
    write_report(out, dataset=data)
    print(out)


def ours(folder: Path) -> list[str]:
    """The command of a user, no option but what names the files."""
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    files = ["--nodes", str(folder / "nodes.csv"), "--edges", str(folder / "edges.csv")]
    told = ["--label", "label", "--id", "id", "--out", str(out), "--quiet"]
    return [sys.executable, "-m", "difformer", "train", *files, *told]


def race(make: Callable[[Path], None]) -> dict[str, Any]:
    """Ours and the GCN in turn on files that `make` writes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder)
        pairs: list[dict[str, Any]] = []
        for _ in range(PAIRS):
            theirs = [sys.executable, "-m", "benchmarks.time_to_model", "gcn", name]
            pairs.append({"ours": timed_command(ours(folder)), "gcn": timed_command(theirs)})
            print(json.dumps(pairs[-1]), flush=True)
    found: dict[str, Any] = {}
    for what in ("seconds", "processor_seconds"):
        found[f"ratio_{what}"] = statistics.median(p["ours"][what] / p["gcn"][what] for p in pairs)
    return {**found, "pairs": pairs}


def digits() -> dict[str, Any]:
    """A default fit on digits, ten labels per class, five times."""
    from sklearn.datasets import load_digits

    from difformer import DIFFormerClassifier

    X, y = load_digits(return_X_y=True)
    times: list[dict[str, float]] = []
    for seed in range(5):
        few = few_labels(y, seed)
        begin, spent = time.perf_counter(), time.process_time()
        DIFFormerClassifier(random_state=seed).fit(X, few)
        times.append(
            {
                "seconds": time.perf_counter() - begin,
                "processor_seconds": time.process_time() - spent,
            }
        )
        print(times[-1], flush=True)
    found = {what: statistics.median(t[what] for t in times) for what in times[0]}
    return {**found, "first_seconds": times[0]["seconds"], "fits": times}


def main() -> None:
    results = {
        "digits, a default fit": digits(),
        "pubmed": race(pubmed),
        f"drawn, {ROWS:,} rows, {EDGES:,} directed edges, {WORDS:,} words": race(drawn),
    }
    write_results("time_to_model", results)


if __name__ == "__main__":
    if sys.argv[1:2] == ["gcn"]:
        gcn(sys.argv[2])
    else:
        main()

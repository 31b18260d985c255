"""What the commands and the fuzzers read: tables, edges, a series, runs on them, and models."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import torch

from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.data.table.read import read_table
from difformer.estimators.classifier import DIFFormerClassifier
from difformer.jobs import table as peers
from difformer.jobs.job import Experiment
from difformer.jobs.rows import run_experiment
from difformer.jobs.series import SeriesSettings, train_series
from difformer.jobs.table import train_own
from difformer.nn.model import DIFFormer
from difformer.train.batches import FullBatch
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

HEADER = ("name", "size", "weight", "colour", "day", "note", "kind")
CHECKPOINT = "checkpoint.safetensors"
peers.PEERS = ("logistic", "knn")  # what a table is compared with is not what is attacked


def make_rows(n: int = 40) -> list[dict[str, Any]]:
    draw, rows = Random(0), []
    for i in range(n):
        kind = i % 2
        cells = (
            f"r{i}",
            round(draw.gauss(3 * kind, 1), 3),
            1000 + i if i % 9 else None,
            ("red", "blue")[kind] if draw.random() < 0.8 else "green",
            f"2020-{1 + i % 12:02d}-{1 + i % 28:02d}",
            ("likes to swim in the sea", "likes to climb in the trees")[kind],
            ("fish", "ape")[kind] if i % 3 else None,
        )
        rows.append(dict(zip(HEADER, cells, strict=True)))
    return rows


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows([["" if v is None else v for v in row.values()] for row in rows])
    return text.getvalue().encode("utf-8", "surrogatepass")


def train_table(root: Path, folder: Path, *, resume: bool = False) -> None:
    table: dict[str, Any] = {"nodes": str(root / "t.csv"), "label": "kind", "id": "name"}
    params = {"epochs": 2, "hidden_channels": 8, "graph": None}
    train_own(read_table(**table), folder, params, table=table, resume=resume)


def prepare_runs(root: Path) -> None:
    rows, draw = make_rows(), Random(1)
    (root / "t.csv").write_bytes(as_csv(rows))
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), root / "t.parquet")
    kept = ("name", "size", "weight", "note", "kind")
    arrays: dict[str, Any] = {name: np.array([row[name] for row in rows]) for name in kept}
    arrays["weight"] = arrays["weight"].astype(np.float64)
    arrays["kind"] = np.array([row["kind"] or "" for row in rows])
    np.savez(root / "t.npz", **arrays)
    edges = [f"r{i},r{(i + 7) % 40},{1 + i % 3}" for i in range(40)]
    (root / "edges.csv").write_text("\n".join(["source,target,weight", *edges]) + "\n")
    lines = ["time,a,b,c"]
    for t in range(30):
        cells = [f"{draw.gauss(0, 1):.3f}" if draw.random() > 0.1 else "" for _ in range(3)]
        lines.append(f"2020-01-{t + 1:02d},{','.join(cells)}")
    (root / "s.csv").write_text("\n".join(lines) + "\n")
    (root / "s_edges.csv").write_text("source,target,weight\na,b,1\nb,c,2\n")
    settings = SeriesSettings(lags=2, steps=2, origins=0, epochs=2)
    train_series(root / "s.csv", root / "s_edges.csv", root / "series", settings)
    train_table(root, root / "own")
    train, split = {"epochs": 2}, "ratio:0.5/0.25/0.25:0"
    experiment = Experiment.make("digits", system="mlp", split=split, train=train)
    run_experiment(experiment, folder=root / "dataset")


def prepare_models(root: Path) -> None:
    """Files of tensors; and a run cut short after two of three epochs, and the same one whole."""
    with seeded(0):
        model = DIFFormer(6, 8, 3).double()
    model.save(root / "model.safetensors")
    x = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.freeze(x).save(root / "frozen.safetensors")
    y = (x[:, 0] > 0).long()
    own = DIFFormerClassifier(epochs=2, hidden_channels=8, random_state=0, graph="knn")
    own.fit(x.numpy(), y.numpy()).save(root / "estimator.safetensors")
    train_small(root / "whole")
    pid = os.fork()
    if pid == 0:
        import difformer.train.loop as loop

        saved, count = loop.save_checkpoint, 0

        def save(*words: Any) -> None:
            nonlocal count
            saved(*words)
            count += 1
            if count == 2:
                os._exit(0)

        loop.save_checkpoint = save
        train_small(root / "cut")
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "no checkpoint was written"
    shutil.copy(root / "cut" / CHECKPOINT, root)


def train_small(folder: Path) -> None:
    x = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    data = Dataset("toy", x, (x[:, 0] > 0).long())
    split = Split("toy", list(range(10)), list(range(10, 20)), list(range(20, 30)))
    with seeded(0):
        model = DIFFormer(4, 4, 2, dropout=0.5)
    settings = TrainSettings(epochs=3, threads=1, checkpoint_every=0)
    fit(model, FullBatch(data, split), objective_for(data.task), split, settings, folder=folder)

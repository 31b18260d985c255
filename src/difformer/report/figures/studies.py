"""Studies that train: a grid of runs, each kept as it ends, so that a study can be gone on with."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from difformer.data.dataset import Dataset
from difformer.data.registry import load_dataset
from difformer.data.split import Split
from difformer.errors import DifformerError
from difformer.experiments.experiment import Experiment
from difformer.experiments.machine import describe_machine
from difformer.experiments.run import run_experiment
from difformer.report.figures.drawing import Work, csv_of

__all__ = ["Cell", "Row", "limit_rows", "measure", "read_rows", "summary"]

Row = dict[str, Any]
NUMBERS = ("accuracy", "val_accuracy", "seconds")
COUNTS = ("seed", "epochs", "best_epoch", "rows")


@dataclass(frozen=True)
class Cell:
    """One run: a name for what is varied, and what makes it so."""

    dataset: str
    key: Mapping[str, Any]  # what the figure varies: columns of runs.csv
    system: str = "difformer-s"
    recipe: str | None = None
    model: Mapping[str, Any] = field(default_factory=dict[str, Any])
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])
    split: str = "random:0"
    seed: int = 0
    most_rows: int | None = None  # a random subset of the data, where all of it is too much

    @property
    def name(self) -> tuple[str, ...]:
        """What tells this run from the others."""
        return (self.dataset, *map(str, self.key.values()), str(self.seed))


def measure(work: Work, cells: Sequence[Cell]) -> tuple[list[Row], list[str]]:
    """Train every cell that is not in runs.csv yet; the rows, and what could not be measured."""
    path = work.folder / "runs.csv"
    rows = read_rows(path)
    if work.draw_only:
        return rows, []
    keys = list(cells[0].key)
    done = {(r["dataset"], *(str(r[k]) for k in keys), str(r["seed"])) for r in rows}
    missing: list[str] = []
    loaded: dict[tuple[str, int | None], Dataset | str] = {}
    for cell in cells:
        if cell.name in done:
            continue
        where = (cell.dataset, cell.most_rows)
        if where not in loaded:
            loaded.clear()
            loaded[where] = _load(cell, work.data_dir)
        data = loaded[where]
        row = _run(cell, data) if isinstance(data, Dataset) else data
        if isinstance(row, str):
            missing += [] if row in missing else [row]
            continue
        rows.append(row)
        path.write_text(csv_of(rows), encoding="utf-8")
        work.say(
            f"{work.name} {' '.join(cell.name)}: {row['accuracy']:.4f} ({row['seconds']:.0f} s)"
        )
    _describe(work, cells)
    return rows, missing


def read_rows(path: Path) -> list[Row]:
    """runs.csv with its numbers as numbers."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{k: _value(k, v) for k, v in row.items()} for row in csv.DictReader(file)]


def summary(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Mean ± deviation of the test accuracy over seeds, a row for each value of `keys`."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return [
        {
            **dict(zip(keys, values, strict=True)),
            "mean": round(mean(r["accuracy"] for r in group), 5),
            "std": round(stdev(r["accuracy"] for r in group), 5) if len(group) > 1 else "",
            "seeds": len(group),
        }
        for values, group in groups.items()
    ]


def limit_rows(data: Dataset, most: int | None) -> Dataset:
    """A random subset of the rows (seed 0), without the graph; all of them where they are few."""
    import torch

    if most is None or data.num_rows <= most:
        return data
    order = torch.randperm(data.num_rows, generator=torch.Generator().manual_seed(0))
    rows = order[:most].sort().values
    x = data.x if data.x.layout == torch.strided else data.x.to_dense()
    return Dataset(data.name, x[rows], data.y[rows], data.task, class_names=data.class_names)


def _load(cell: Cell, data_dir: Path | str | None) -> Dataset | str:
    try:
        return limit_rows(load_dataset(cell.dataset, data_dir), cell.most_rows)
    except (DifformerError, ValueError, OSError):
        # Not the error itself: it names folders of the machine.
        return f"{cell.dataset} is left out: its data is not at hand."


def _run(cell: Cell, data: Dataset) -> Row | str:
    try:
        experiment = Experiment.make(
            cell.dataset,
            system=cell.system,
            recipe=cell.recipe,
            split=cell.split,
            seeds=(cell.seed,),
            model=cell.model,
            train=cell.train,
        )
        split: Split = data.split(cell.split)
        result = run_experiment(experiment, dataset=data, split=split).results[cell.seed]
    except (DifformerError, ValueError) as error:
        return f"{cell.system} on {cell.dataset} is left out: {str(error).splitlines()[0]}."
    return {
        "dataset": cell.dataset,
        **{key: str(value) for key, value in cell.key.items()},
        "seed": cell.seed,
        "accuracy": round(result.metrics["test"]["accuracy"], 5),
        "val_accuracy": round(result.metrics["val"]["accuracy"], 5),
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 1),
        "rows": data.num_rows,
        "split": cell.split,
    }


def _describe(work: Work, cells: Sequence[Cell]) -> None:
    """What was run, for whoever wants to run it again: settings, splits, seeds, machine."""
    record = {
        "command": f"difformer reproduce {work.name}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "splits": sorted({cell.split for cell in cells}),
        "seeds": sorted({cell.seed for cell in cells}),
        "cells": [
            {"dataset": c.dataset, "system": c.system, "recipe": c.recipe, "rows": c.most_rows}
            | {"model": dict(c.model), "train": dict(c.train)}
            for c in cells
            if c.seed == cells[0].seed
        ],
    }
    (work.folder / "study.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _value(key: str, text: str) -> Any:
    if key in NUMBERS:
        return float(text)
    return int(text) if key in COUNTS else text

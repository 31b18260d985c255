"""A look inside a finished run on a table: its model, with the rows it was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.data.tables import read_table
from difformer.errors import RunError
from difformer.experiments.own.run import OwnRun
from difformer.nn.model import DIFFormer
from difformer.train.run import read_config

__all__ = ["OpenOwn", "open_own"]


@dataclass(frozen=True)
class OpenOwn:
    """A finished run's model with the rows it was trained on."""

    model: DIFFormer
    dataset: Dataset
    split: Split
    graph: Graph | None


def open_own(folder: str | Path, *, dataset: Dataset | None = None) -> OpenOwn:
    """Read a run back for a look inside; the table is read again where it is not at hand."""
    folder = Path(folder)
    run = OwnRun.load(folder)
    asked = read_config(folder / "config.toml")["data"]
    if dataset is None:
        dataset = read_table(
            asked["nodes"], asked["label"], id=asked.get("id"), edges=asked.get("edges")
        ).dataset
    if dataset.fingerprint != asked["fingerprint"]:
        raise RunError(f"{asked['nodes']} has changed since {folder} was trained on it")
    model = run.estimator.frozen_.model.float()
    split = Split.load(folder / "split.json").check(dataset.num_rows)
    return OpenOwn(model, dataset, split, run.estimator.graph_)

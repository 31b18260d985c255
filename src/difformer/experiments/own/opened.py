"""A look inside a finished run on a table: its model, with the rows it was trained on."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.errors import RunError
from difformer.estimators.rows import dataset_features
from difformer.experiments.own.run import Estimator, OwnRun
from difformer.experiments.own.table import OwnTable
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
    estimator: Estimator
    table: Dataset  # as it was read; `dataset` has its features as the model sees them


def open_own(folder: str | Path, *, dataset: Dataset | None = None) -> OpenOwn:
    """Read a run back for a look inside; the table is read again unless it is given."""
    folder = Path(folder)
    run = OwnRun.load(folder)
    asked = read_config(folder / "config.toml")["data"]
    if dataset is None:
        names = {each.name for each in fields(OwnTable)}
        dataset = OwnTable(**{k: v for k, v in asked.items() if k in names}).read()
    if dataset.fingerprint != asked["fingerprint"]:
        raise RunError(f"{asked['nodes']} has changed since {folder} was trained on it")
    estimator, split = run.estimator, run.estimator.split_.check(dataset.num_rows)
    member = estimator.shown_member
    seen = replace(dataset, x=member.seen(dataset_features(dataset)).float())
    graph = None if member.frozen.num_known is None else estimator.graph_
    model = deepcopy(member.frozen.model).float()
    return OpenOwn(model, seen, split, graph, estimator, dataset)

"""Pick settings by validation alone, with a stated rule; the test rows are never looked at.

Few validation snapshots cannot tell settings apart whose errors differ by less than they vary from
snapshot to snapshot. So beside the lowest validation error there is the one-standard-error rule
(Breiman et al., 1984): of all settings within one standard error of the lowest, the most
regularised, here by dropout, then weight decay, then the smaller learning rate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from difformer.baselines.registry import get_system
from difformer.baselines.system import System
from difformer.data.snapshots import TemporalDataset, complete_edges, neighbour_edges
from difformer.train.loop import fit
from difformer.train.objective import SnapshotError
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings
from difformer.train.snapshots import Snapshots

__all__ = ["GRID", "Tried", "lowest", "one_standard_error", "snapshots_for", "try_settings"]

# The grid of the paper's appendix (spatial-temporal prediction).
GRID: dict[str, tuple[float, ...]] = {
    "lr": (0.01, 0.05, 0.005),
    "weight_decay": (0.0, 0.005),
    "dropout": (0.0, 0.2, 0.5),
}
NEIGHBOURS = 5  # of the released kNN graphs
LIMITS: dict[str, Any] = {"epochs": 200, "patience": 20}


@dataclass(frozen=True)
class Tried:
    """One point of the grid and what validation says of it, averaged over seeds.

    Args:
        val: the mean squared error of the validation snapshots.
        error: the standard error of that mean over snapshots.
    """

    settings: dict[str, float]
    val: float
    error: float
    seeds: int


def snapshots_for(system: System, dataset: TemporalDataset) -> TemporalDataset:
    """The snapshots with the graphs a system takes: the data's, neighbours, all pairs or none."""
    if system.graph == "none":
        return dataset.with_edges(())
    if system.graph == "knn":
        return neighbour_edges(dataset, NEIGHBOURS)
    return complete_edges(dataset) if system.graph == "dense" else dataset


def try_settings(
    system: str,
    dataset: TemporalDataset,
    model: Mapping[str, Any],
    *,
    grid: Mapping[str, Sequence[float]] = GRID,
    seeds: Sequence[int] = (100, 101, 102),
    done: Path | None = None,
) -> list[Tried]:
    """Train at every point of the grid; `done` keeps the points so far, so a run can go on."""
    kind = get_system(system)
    data, split = snapshots_for(kind, dataset), dataset.split("time")
    found = _read(done)
    for values in product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        if any(tried.settings == point for tried in found):
            continue
        options = {k: v for k, v in point.items() if k not in ("lr", "weight_decay")}
        config = kind.configure(**{**model, **options})
        train: dict[str, Any] = {k: v for k, v in point.items() if k not in options}
        source, objective = Snapshots(data, split), SnapshotError(num_nodes=data.num_nodes)
        vals: list[float] = []
        errors: list[float] = []
        for seed in seeds:
            with seeded(seed):
                built = kind.build(config, data.num_features, 1)
            settings = TrainSettings(**{**LIMITS, **train}, seed=seed)
            fit(built, source, objective, split, settings)
            with torch.no_grad():
                miss = (source.evaluate(built.eval()) - data.y)[split.val].double()
            each = miss.square().reshape(-1, data.num_nodes).mean(1)
            vals.append(float(each.mean()))
            errors.append(float(each.std() / len(each) ** 0.5))
        found.append(Tried(point, mean(vals), mean(errors), len(seeds)))
        if done is not None:
            done.parent.mkdir(parents=True, exist_ok=True)
            done.write_text(json.dumps([asdict(t) for t in found], indent=1) + "\n")
    return found


def lowest(tried: Sequence[Tried]) -> Tried:
    """The point of lowest validation error."""
    return min(tried, key=lambda t: t.val)


def one_standard_error(tried: Sequence[Tried]) -> Tried:
    """The most regularised point whose validation error is within one standard error of the best.

    >>> best = Tried({"lr": 0.05, "weight_decay": 0.0, "dropout": 0.0}, 0.70, 0.03, 3)
    >>> near = Tried({"lr": 0.01, "weight_decay": 0.0, "dropout": 0.2}, 0.72, 0.03, 3)
    >>> far = Tried({"lr": 0.01, "weight_decay": 0.0, "dropout": 0.5}, 0.80, 0.05, 3)
    >>> one_standard_error([best, near, far]) is near
    True
    """
    best = lowest(tried)
    near = [t for t in tried if t.val <= best.val + best.error]

    def order(t: Tried) -> tuple[float, ...]:
        point = t.settings
        return (-point.get("dropout", 0), -point["weight_decay"], point["lr"], t.val)

    return min(near, key=order)


def _read(done: Path | None) -> list[Tried]:
    if done is None or not done.exists():
        return []
    return [Tried(**item) for item in json.loads(done.read_text())]

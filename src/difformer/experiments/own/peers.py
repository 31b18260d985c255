"""Simple systems that a table may be compared with, scored on its held-out labels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
import torch

from difformer.baselines.registry import get_system
from difformer.data.dataset import Dataset
from difformer.data.split import Split
from difformer.experiments.experiment import Experiment
from difformer.experiments.run import CannotRunError, run_experiment
from difformer.train.objective import objective_for

__all__ = ["PEERS", "PEERS_UP_TO", "simple_peers"]

PEERS = ("logistic", "forest", "boosting", "knn", "label-spreading", "self-training")
PEERS_UP_TO = 5_000_000  # numbers of a table; above, the peers may take longer than DIFFormer
FOLDS = 5


def simple_peers(data: Dataset, split: Split, *, seed: int = 0) -> list[dict[str, Any]]:
    """The scores of the simple systems that can learn the task, best first.

    They train on `split.train` and are scored on `split.val`; without validation rows, by five
    folds of the training rows. Empty if a class has a single label, or the table is large.

    Returns:
        One dict per system: "system", "title", "metric" and "value".
    """
    if data.num_rows * data.num_features > PEERS_UP_TO:
        return []
    parts = [split] if len(split.val) else _folds(data, split.train.numpy(), seed)
    if not parts:
        return []
    monitor = objective_for(data.task).monitor
    found: list[dict[str, Any]] = []
    for name in PEERS:
        try:
            value = mean(_score(data, part, name, seed)[monitor.name] for part in parts)
        except CannotRunError:
            continue
        # An error in the units of the labels, as the table's other figures are.
        metric, value = ("rmse", value**0.5) if monitor.name == "mse" else (monitor.name, value)
        title = get_system(name).title_for(data.task)
        found.append({"system": name, "title": title, "metric": metric, "value": value})
    return sorted(found, key=lambda one: one["value"], reverse=monitor.direction == "max")


def _score(data: Dataset, part: Split, system: str, seed: int) -> dict[str, float]:
    experiment = Experiment.make(data.name, system=system, train={"seed": seed})
    result = run_experiment(experiment, dataset=data, split=part)
    return result.results[seed].metrics["val"]


def _folds(data: Dataset, rows: Any, seed: int) -> Sequence[Split]:
    from sklearn.model_selection import KFold, StratifiedKFold

    if data.task == "multiclass":
        strata = data.y.numpy()[rows]
        number = int(min(FOLDS, np.unique(strata, return_counts=True)[1].min()))
        kind: Any = StratifiedKFold
    else:
        strata, number, kind = rows, min(FOLDS, len(rows)), KFold
    if number < 2:
        return []
    none = torch.empty(0, dtype=torch.int64)
    return [
        Split("fold", torch.from_numpy(rows[train]), torch.from_numpy(rows[val]), none)
        for train, val in kind(number, shuffle=True, random_state=seed).split(rows, strata)
    ]

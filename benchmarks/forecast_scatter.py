"""Variation between initialisations on Covid: validation error and forecasts of several forms.

python -m benchmarks.forecast_scatter        writes results/benchmarks/forecast_scatter.json

All forms have learning rate 0.05, weight decay 0.005 and dropout 0.2, and the same seeds.
`disagreement` is the variance over seeds of the forecasts for the test days, and `level` their
mean. Both need only the inputs of these days; no test target is used.
"""

from __future__ import annotations

from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import write_results
from difformer import DIFFormer, load_dataset
from difformer.data.snapshots import TemporalDataset
from difformer.nn.config import RECIPES
from difformer.train.batches import Snapshots
from difformer.train.loop import fit
from difformer.train.objective import SnapshotError
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

SEEDS = range(100, 110)
FORMS: dict[str, dict[str, Any]] = {
    "forecast recipe": RECIPES["forecast"],
    "linear first state": {**RECIPES["forecast"], "input_activation": None},
    "linear, no biases": {**RECIPES["linear"], "source": 0.5},
    "linear, no biases, no source": RECIPES["linear"],
}


def train(
    data: TemporalDataset, source: Snapshots, form: dict[str, Any], seed: int
) -> tuple[float, Tensor]:
    """The validation error of one run, and its forecasts for the test days."""
    split = data.split("time")
    with seeded(seed):
        model = DIFFormer(data.num_features, 4, 1, **{**form, "dropout": 0.2})
    settings = TrainSettings(epochs=200, patience=20, lr=0.05, weight_decay=0.005, seed=seed)
    fit(model, source, SnapshotError(num_nodes=data.num_nodes), split, settings)
    with torch.no_grad():
        output = source.evaluate(model.eval())
    miss = (output - data.y)[split.val].square().mean()
    return float(miss), output[split.test]


def main() -> None:
    torch.set_num_threads(1)
    data = load_dataset("covid")
    assert isinstance(data, TemporalDataset)
    source = Snapshots(data, data.split("time"))
    results: dict[str, Any] = {}
    for name, form in FORMS.items():
        runs = [train(data, source, form, seed) for seed in SEEDS]
        errors, forecasts = [error for error, _ in runs], torch.stack([f for _, f in runs])
        results[name] = {
            "seeds": len(errors),
            "validation": mean(errors),
            "validation_std": stdev(errors),
            "disagreement": float(forecasts.var(0).mean()),
            "level": float(forecasts.mean()),
        }
        print(name, {key: round(value, 4) for key, value in results[name].items()}, flush=True)
    write_results("forecast_scatter", results)


if __name__ == "__main__":
    main()

"""How far the weights of -a are from equal ones after training by the released settings.

python -m benchmarks.equal_weights      writes results/benchmarks/equal_weights.json
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.measure import write_results
from difformer import DIFFormer
from difformer.data.dataset import Dataset
from difformer.jobs.rows import build_model, load_data, run_experiment
from difformer_paper.specs import load_spec

# Pubmed takes half an hour more, and Table 2 has five other seeds.
DATASETS, SEED = ("cora", "citeseer"), 5


def weights_range(model: DIFFormer, data: Dataset) -> list[float]:
    """The least and the largest weight in any layer, times the rows: one each if all are equal."""
    n = data.num_rows
    rows = torch.arange(0, n, max(1, n // 500))
    all_weights = [
        model.eval().diffusivity(data.x, data.edge_index, layer=layer, rows=rows)
        for layer in range(len(model.layers))
    ]
    return [
        n * float(min(w.min() for w in all_weights)),
        n * float(max(w.max() for w in all_weights)),
    ]


def measure(name: str) -> dict[str, object]:
    """Train the cell of Table 2, and look at the weights of the epoch that validation chooses."""
    [cell] = load_spec("table2").cells(
        systems=["difformer-a"], columns=[name], variants=["released"], protocols=["released"]
    )
    [experiment] = cell.experiments()
    experiment = replace(experiment, seeds=(SEED,))
    data = load_data(experiment)
    torch.manual_seed(SEED)
    untrained = build_model(experiment, data.num_features, data.num_outputs)
    with TemporaryDirectory() as folder:
        result = run_experiment(experiment, dataset=data, folder=folder).fits[f"seed {SEED}"]
        trained = DIFFormer.load(Path(folder) / "model.safetensors")
    return {
        "weight_decay": experiment.train.weight_decay,
        "split": experiment.split,
        "seed": SEED,
        "epoch": result.best_epoch,
        "test_accuracy": result.metrics["test"]["accuracy"],
        "untrained": weights_range(untrained, data),
        "trained": weights_range(trained, data),
    }


if __name__ == "__main__":
    results = {}
    for name in DATASETS:
        results[name] = measure(name)
        print(name, results[name], flush=True)
    write_results("equal_weights", results)

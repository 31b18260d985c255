"""Forms of the model without a graph, on digits: the reason for the recipe "alone".

python -m benchmarks.alone_recipe      writes results/benchmarks/alone_recipe.json

Ten labels per class, splits of the seeds 100 to 104 (`few_labels` uses others), accuracy on the
unlabelled rows.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from sklearn.datasets import load_digits

from benchmarks.few_labels import score, split
from benchmarks.measure import accuracies, write_results
from difformer import DIFFormerClassifier

SEEDS = range(100, 105)
FORMS: dict[str, dict[str, Any]] = {
    "alone": {},
    "alone, no diffusion at all (a plain MLP)": {"kernel": "identity"},
    "alone, input dropout 0": {"options": {"input_dropout": 0.0}},
    "alone, eight layers": {"options": {"num_layers": 8}},
    "alone, source 0.1": {"options": {"source": 0.1}},
    "alone, columns not standardised": {"scale": False},
    "stable": {"recipe": "stable"},
    "stable, two layers": {"recipe": "stable", "options": {"num_layers": 2}},
    "paper": {"recipe": "paper"},
}


def main() -> None:
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    scores: dict[str, list[float]] = {name: [] for name in FORMS}
    for seed in SEEDS:
        few = split(y, seed)
        for name, form in FORMS.items():
            model = DIFFormerClassifier(random_state=seed, **form)
            scores[name].append(score(model, X, y, few)[0])
            print(f"split {seed}  {name:45s} {scores[name][-1]:.4f}", flush=True)
    results: dict[str, Any] = {}
    first = scores["alone"]
    for name, values in scores.items():
        behind = [] if name == "alone" else [a - b for a, b in zip(first, values, strict=True)]
        results[name] = {
            **accuracies(values),
            "behind": behind,
            "behind_mean": statistics.mean(behind) if behind else None,
            "behind_std": statistics.stdev(behind) if behind else None,
        }
    write_results("alone_recipe", results)


if __name__ == "__main__":
    main()

"""Forms of the model without a graph, on digits: what the recipe "alone" rests on.

python -m benchmarks.alone_recipe      writes results/benchmarks/alone_recipe.json

Ten labels per class, splits of the tuning seeds 100 to 104 (not those of `few_labels`), accuracy on
the unlabelled rows.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from benchmarks.few_labels import split
from benchmarks.measure import write
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
        hidden = few < 0
        for name, form in FORMS.items():
            found = DIFFormerClassifier(random_state=seed, **form).fit(X, few).transduction_
            scores[name].append(float((found[hidden] == y[hidden]).mean()))
            print(f"split {seed}  {name:45s} {scores[name][-1]:.4f}", flush=True)
    results: dict[str, Any] = {}
    first = scores["alone"]
    for name, values in scores.items():
        behind = [] if name == "alone" else [a - b for a, b in zip(first, values, strict=True)]
        results[name] = {
            "accuracy_mean": statistics.mean(values),
            "accuracy_std": statistics.stdev(values),
            "accuracy": values,
            "behind": behind,
            "behind_mean": statistics.mean(behind) if behind else None,
            "behind_std": statistics.stdev(behind) if behind else None,
        }
    write(
        Path("results/benchmarks/alone_recipe.json"), "python -m benchmarks.alone_recipe", results
    )


if __name__ == "__main__":
    main()

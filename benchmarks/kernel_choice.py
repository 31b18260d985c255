"""What kernel="auto" chooses on digits, its accuracy and its cost.

python -m benchmarks.kernel_choice     writes results/benchmarks/kernel_choice.json

Ten labels per class, splits of seeds 0 to 2, accuracy on the unlabelled rows; 100 epochs.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits

from benchmarks.few_labels import score, split, summary
from benchmarks.measure import write_results
from difformer import DIFFormerClassifier

SEEDS = range(3)
EPOCHS = 100


def main() -> None:
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    results: dict[str, Any] = {}
    for title, graph in (("no graph", None), ("kNN graph", "knn")):
        for kernel in ("simple", "sigmoid", "auto"):
            scores: list[tuple[float, float]] = []
            picked: list[str] = []
            for seed in SEEDS:
                options = {"graph": graph, "kernel": kernel, "epochs": EPOCHS}
                model = DIFFormerClassifier(**options, random_state=seed)
                scores.append(score(model, X, y, split(y, seed)))
                picked.append(str(model.kernel_))
                print(title, kernel, seed, picked[-1], *scores[-1], flush=True)
            sigmoid = picked.count("sigmoid")
            results[f"{title}, {kernel}"] = {**summary(scores), "sigmoid": sigmoid}
    write_results("kernel_choice", results)


if __name__ == "__main__":
    main()

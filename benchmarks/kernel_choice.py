"""What kernel="auto" picks on digits, what it gains over each kernel, and what it costs.

python -m benchmarks.kernel_choice     writes results/benchmarks/kernel_choice.json

Ten labels per class, splits of seeds 0 to 2, accuracy on the unlabelled rows; 100 epochs.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits

from benchmarks.few_labels import split
from benchmarks.measure import write
from difformer import DIFFormerClassifier

SEEDS = range(3)
EPOCHS = 100


def main() -> None:
    torch.set_num_threads(1)
    X, y = load_digits(return_X_y=True)
    results: dict[str, Any] = {}
    for title, graph in (("no graph", None), ("kNN graph", "knn")):
        for kernel in ("simple", "sigmoid", "auto"):
            scores: list[float] = []
            seconds: list[float] = []
            picked: list[str] = []
            for seed in SEEDS:
                few = split(y, seed)
                hidden = few < 0
                model = DIFFormerClassifier(
                    graph=graph, kernel=kernel, epochs=EPOCHS, random_state=seed
                )
                begin = time.perf_counter()
                found = model.fit(X, few).transduction_
                seconds.append(time.perf_counter() - begin)
                scores.append(float((found[hidden] == y[hidden]).mean()))
                picked.append(str(model.kernel_))
                print(title, kernel, seed, picked[-1], scores[-1], seconds[-1], flush=True)
            results[f"{title}, {kernel}"] = {
                "accuracy_mean": statistics.mean(scores),
                "accuracy_std": statistics.stdev(scores),
                "accuracy": scores,
                "seconds_median": statistics.median(seconds),
                "sigmoid": picked.count("sigmoid"),
            }
    path = Path("results/benchmarks/kernel_choice.json")
    write(path, "python -m benchmarks.kernel_choice", results)


if __name__ == "__main__":
    main()

"""Time and memory of a default fit as the number of rows grows, compared with LabelSpreading.

python -m benchmarks.fit_growth [ROWS ...]   writes results/benchmarks/fit_growth.json; sizes that
are not given are kept

DIFFormer has no option set but its seed and, in its second column, the graph: it tries several
forms, as it does for a user. Seconds are those of the processor, of all threads.
Each fit runs in its own process: without a graph (rbf kernel of the peer), and with seven nearest
neighbours. With its rbf kernel LabelSpreading stores a dense n × n matrix of float64, 20 GB at
50,000 rows. It is not run if the matrix needs more than a quarter of the memory.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from benchmarks.measure import measured, read_results, result_file, write_results

SIZES = (1_000, 5_000, 10_000, 50_000)
FEATURES = 32


def make(rows: int) -> tuple[Any, Any]:
    """Four clusters, a hundred labels."""
    generator = np.random.default_rng(0)
    centres = 2 * generator.normal(size=(4, FEATURES))
    y = generator.integers(4, size=rows)
    few = y.copy()
    few[100:] = -1
    return centres[y] + generator.normal(size=(rows, FEATURES)), few


def ours(rows: int, graph: str | None) -> Callable[[], Any]:
    from difformer import DIFFormerClassifier

    torch.set_num_threads(1)
    X, y = make(rows)
    given = {} if graph is None else {"graph": graph}
    model = DIFFormerClassifier(**given, random_state=0)
    clone(model).set_params(epochs=1).fit(X[:200], y[:200])  # what imports cost
    return lambda: model.fit(X, y)


def peer(rows: int, kernel: str) -> Callable[[], Any]:
    from sklearn.semi_supervised import LabelSpreading

    X, y = make(rows)

    def run() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return LabelSpreading(kernel=kernel, gamma=0.05).fit(X, y)

    return run


METHODS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "difformer": partial(ours, graph=None),
    "difformer_knn": partial(ours, graph="knn"),
    "label_spreading": partial(peer, kernel="rbf"),
    "label_spreading_knn": partial(peer, kernel="knn"),
}


def main() -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = [int(word) for word in sys.argv[1:]]
    results: dict[str, Any] = {"features": FEATURES}
    results |= read_results(result_file("fit_growth")) if sizes else {}
    for rows in sizes or SIZES:
        found: dict[str, Any] = {}
        for name, method in METHODS.items():
            if name == "label_spreading" and 8 * rows**2 > memory / 4:
                found[name] = f"not run: its matrix alone is {8 * rows**2 / 1e9:.0f} GB"
                continue
            found[name] = measured(partial(method, rows))._asdict()
            print(rows, name, found[name], flush=True)
        results[f"{rows} rows"] = found
        write_results("fit_growth", results)


if __name__ == "__main__":
    sys.exit(main())

"""How often 90 % prediction sets and intervals contain the true value of unlabelled rows.

python -m benchmarks.coverage [--data-dir DIR] [--only A,B]

Writes results/benchmarks/coverage.json; what is in it is not measured again. Every fit has the
defaults and a seed. The coverage on one split varies by √(0.09 / labels), because its quantile
comes from few labels, so it is averaged over many splits.

Sets: the splits of `benchmarks.suite_sets`, evaluated on their test rows. Intervals: a hundred
labels at random; if a table has no number to predict, its first column is predicted. Series: the
intervals from the errors known before each origin, over the later half of the backtest.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch

from benchmarks.measure import read_results, result_file, write_results
from benchmarks.suite_sets import SETS, SuiteSet, load_set
from difformer import DIFFormerClassifier, DIFFormerForecaster, DIFFormerRegressor
from difformer.data.series import Series
from difformer.errors import DifformerError
from difformer_paper.datasets import temporal

RESULTS = result_file("coverage")
LEVEL = 0.9
QUICK, SLOW = 20, 2  # splits of sets that are fitted in a few seconds, and of the others
DRAWS = 10  # of the known numbers of a regression
LARGE = ("dna", "satellite")
LABELS = 100  # known numbers of a regression
NUMBERS = ("diabetes", "iris", "wine", "breast_cancer", "vehicle", "pimaindiansdiabetes", "sonar")
SERIES = ("chickenpox", "covid")
SEEDS = 3  # fits of a series

Record = dict[str, float]
Measure = Callable[[int], Record]


def of_sets(chosen: SuiteSet, number: int) -> Record:
    """Sets of classes on one split of the suite."""
    split = chosen.split(number)
    validation = split.val.numpy() if len(split.val) else None
    model = DIFFormerClassifier(random_state=number)
    model.fit(chosen.X, chosen.labels(split), chosen.data.edge_index, validation=validation)
    test = split.test.numpy()
    truth = np.searchsorted(model.classes_, chosen.data.y.numpy()[test])
    found = model.predict_set(chosen.X, level=LEVEL)[test]
    right = model.transduction_[test] == chosen.data.y.numpy()[test]
    return {
        "coverage": float(found[np.arange(len(test)), truth].mean()),
        "size": float(found.sum(1).mean()),
        "accuracy": float(right.mean()),
        "held_out": len(model.held_out_scores_),  # type: ignore[arg-type]
    }


def of_intervals(X: Any, y: Any, number: int) -> Record:
    """Intervals of numbers of which a hundred are known; their width in deviations of the truth."""
    test = np.random.default_rng(number).permutation(len(y))[LABELS:]
    few = np.asarray(y, np.float64).copy()
    few[test] = np.nan
    model = DIFFormerRegressor(random_state=number).fit(X, few)
    low, high = model.predict_interval(X, level=LEVEL)[test].T
    truth = np.asarray(y, np.float64)[test]
    return {
        "coverage": float(((low <= truth) & (truth <= high)).mean()),
        "size": float((high - low).mean() / truth.std()),
        "r2": 1 - float(np.square(model.transduction_[test] - truth).mean() / truth.var()),
        "held_out": len(model.held_out_scores_),  # type: ignore[arg-type]
    }


def of_series(series: Series, edges: Any, number: int) -> Record:
    """Intervals of the next four steps over the later half of origins."""
    tested = DIFFormerForecaster(random_state=number).backtest(series, edges, horizon=4)
    half = len(tested.origins) // 2
    return {"coverage": tested.coverage(LEVEL)["coverage"], "held_out": half}


def numbers(name: str, root: Path | None) -> tuple[Any, Any]:
    """A table and a column of it to predict from the others."""
    if name == "diabetes":
        found: Any = sklearn.datasets.load_diabetes(return_X_y=True)
        return found
    X = load_set(name, root).X
    if isinstance(X, np.ndarray):
        return X[:, 1:], X[:, 0]
    return X.iloc[:, 1:], X.iloc[:, 0].to_numpy()


def series(name: str, root: Path | None) -> tuple[Series, Any]:
    """The values of a temporal dataset, and its graph or graphs."""
    data = temporal.load(name, root, lags=1)
    values = torch.cat([data.x[: data.num_nodes, 0], data.y[:, 0]])
    edges = data.edges if len(data.edges) == 1 else (*data.edges, data.edges[-1])
    return Series(values.reshape(-1, data.num_nodes).double().numpy()), edges


def measures(root: Path | None) -> Iterator[tuple[str, str, int, Callable[[], Measure]]]:
    """(kind, name, splits, what measures a split once its data is read)."""
    for name in NUMBERS:
        yield "intervals", name, DRAWS, lambda n=name: partial(of_intervals, *numbers(n, root))
    for name in SERIES:
        yield "series", name, SEEDS, lambda n=name: partial(of_series, *series(n, root))
    for name in SETS:
        slow = name in LARGE or list(SETS).index(name) > list(SETS).index("satellite")
        yield (
            "sets",
            name,
            SLOW if slow else QUICK,
            lambda n=name: partial(of_sets, load_set(n, root)),
        )


def coverage(
    root: Path | None = None, only: tuple[str, ...] = (), path: Path = RESULTS
) -> dict[str, Any]:
    """Measure what is not in the file yet; its content: kind, then set, then split."""
    results = read_results(path)
    results = {kind: results.get(kind, {}) for kind in ("sets", "intervals", "series")}
    for kind, name, splits, prepare in measures(root):
        if only and name not in only:
            continue
        kept = results[kind].setdefault(name, {})
        missing = [split for split in range(splits) if str(split) not in kept]
        measure = prepare() if missing else None
        for split in missing:
            assert measure is not None
            found = measure(split)
            kept[str(split)] = {k: round(v, 4) for k, v in found.items()}
            print(f"{kind:10s} {name:20s} {split:3d}  {kept[str(split)]}", flush=True)
            write_results("coverage", results, path=path)
    return results


def mean(found: dict[str, Record], key: str = "coverage") -> float:
    """The mean over splits."""
    return statistics.mean(record[key] for record in found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--only", default="", help="names of sets, by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        results = coverage(given.data_dir, tuple(filter(None, given.only.split(","))))
    except DifformerError as error:
        sys.exit(f"error: {error}")
    for kind, found in results.items():
        print(kind, {name: round(mean(own), 3) for name, own in found.items() if own})


if __name__ == "__main__":
    main()

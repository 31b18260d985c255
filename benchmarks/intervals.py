"""Intervals of a perfect forecaster of random walks: how much they cover, and how wide they are.

python -m benchmarks.intervals

Writes results/benchmarks/intervals.json; what is in it is not measured again. The last value is the
best forecast of a random walk, and the error of step j has the standard deviation √j, so that the
right half width of 90 % intervals is known. A node has a standard deviation of its own. The figures
are those of the later half of the origins.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np

from benchmarks.measure import read_results, result_file, write_results
from difformer.estimators.backtest import Backtest

LEVEL, NORMAL = 0.9, 1.6449  # NORMAL deviations hold that share of normal errors
HORIZONS = (4, 12, 24, 52)
NODES = (1, 5, 100)
SEEDS = 10
ORIGINS = 150


def walk(seed: int, horizon: int, nodes: int, origins: int = ORIGINS) -> tuple[Backtest, float]:
    """A backtest by the last value, and the mean of the right half widths."""
    draw = np.random.default_rng(seed)
    deviation = draw.gamma(4, 0.25, nodes)
    values = np.cumsum(deviation * draw.normal(size=(origins + horizon, nodes)), axis=0)
    places = np.arange(1, origins + 1)
    last = np.repeat(values[places - 1][:, None], horizon, axis=1)
    right = NORMAL * np.sqrt(np.arange(1, horizon + 1)).mean() * deviation.mean()
    return Backtest(places, last, values, lags=1), float(right)


def measure(seed: int, horizon: int, nodes: int, origins: int = ORIGINS) -> dict[str, float]:
    """The share of values inside, and the mean width relative to the right one."""
    tested, right = walk(seed, horizon, nodes, origins)
    half = tested.half_widths(LEVEL)[origins // 2 :]
    width = half[np.isfinite(half)].mean() / right
    return {
        "coverage": round(tested.coverage(LEVEL)["coverage"], 4),
        "width": float(f"{width:.4g}"),
    }


def intervals() -> None:
    """Measure what the result file lacks; it holds both figures per horizon, nodes and seed."""
    results = read_results(result_file("intervals"))
    for horizon, nodes in product(HORIZONS, NODES):
        kept = results.setdefault(str(horizon), {}).setdefault(str(nodes), {})
        for seed in map(str, range(SEEDS)):
            if seed not in kept:
                kept[seed] = measure(int(seed), horizon, nodes)
                print(f"{horizon:2d} steps, {nodes:3d} nodes, {seed}: {kept[seed]}", flush=True)
                write_results("intervals", results)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    intervals()

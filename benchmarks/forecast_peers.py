"""The default forecaster compared with simple forecasts, on generated series.

python -m benchmarks.forecast_peers [--only A,B]

Writes results/benchmarks/forecast_peers.json; what is in it is not measured again. A backtest over
the last quarter of each series, four steps ahead, with the defaults and a seed. The figure is the
mean squared error over all origins, steps and nodes.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import read_results, result_file, write_results
from difformer import DIFFormerForecaster
from difformer.data.series import Series

SEEDS = (11, 12, 13)
HORIZON = 4
START = datetime(2003, 1, 6)

Array = NDArray[Any]
Draw = np.random.Generator


def steps_of(count: int, **apart: float) -> tuple[datetime, ...]:
    return tuple(START + i * timedelta(**apart) for i in range(count))


def flu(draw: Draw) -> tuple[Series, Any]:
    """Weekly counts of 140 districts: winters of their own size and week, two nodes hardly vary."""
    weeks, nodes = 300, 140
    time = np.arange(weeks)[:, None]
    rate = np.full((weeks, nodes), 0.05)
    for winter in range(6):
        peak = 52 * winter + 6 + draw.normal(0, 2) + draw.uniform(0, 3, nodes)
        size = np.exp(draw.normal(4, 0.5)) * draw.gamma(4, 0.25, nodes)
        rate += size * np.exp(-0.5 * ((time - peak) / 4) ** 2)
    counts = draw.poisson(rate * np.exp(draw.normal(0, 0.2, rate.shape))).astype(float)
    counts[:, 3], counts[:, 7], counts[90, 3] = 0, 2, 1
    counts[:, 11] = draw.poisson(0.05, weeks)
    return Series(counts, stamps=steps_of(weeks, days=7)), None


def sparse(draw: Draw) -> tuple[Series, Any]:
    """Daily counts, mostly zero, with a week that all have in common."""
    time = np.arange(250)[:, None]
    level = draw.gamma(1, 0.5, 40) * np.exp(np.cumsum(draw.normal(0, 0.05, (250, 1)), axis=0))
    rate = level * np.exp(0.8 * np.sin(2 * np.pi * time / 7 + draw.uniform(0, 6)))
    return Series(draw.poisson(rate).astype(float), stamps=steps_of(250, days=1)), None


def seasonal(draw: Draw) -> tuple[Series, Any]:
    """Months, each node with a year of its own."""
    month = np.arange(240)[:, None]
    wave = draw.gamma(4, 1, 30) * np.sin(2 * np.pi * (month + draw.uniform(0, 12, 30)) / 12)
    own = draw.normal(size=(12, 30))[np.arange(240) % 12]
    dates = tuple(datetime(1990 + i // 12, i % 12 + 1, 1) for i in range(240))
    return Series(20 + wave + own + draw.normal(size=(240, 30)), stamps=dates), None


def drift(draw: Draw) -> tuple[Series, Any]:
    """Weekly values that rise or fall steadily, with errors that last."""
    errors = np.zeros((200, 30))
    for week in range(1, 200):
        errors[week] = 0.7 * errors[week - 1] + draw.normal(size=30)
    slope = draw.normal(0, 0.05, 30) * np.arange(200)[:, None]
    return Series(10 + slope + errors, stamps=steps_of(200, days=7)), None


def walk(draw: Draw) -> tuple[Series, Any]:
    """Daily random walks that go partly together: the last value is the best forecast."""
    moves = 0.6 * draw.normal(size=(200, 1)) + 0.8 * draw.normal(size=(200, 30))
    return Series(np.cumsum(moves, axis=0), stamps=steps_of(200, days=1)), None


def noise(draw: Draw) -> tuple[Series, Any]:
    """White noise: the mean is the best forecast."""
    return Series(draw.normal(5, 2, (200, 30)), stamps=steps_of(200, days=1)), None


def spread(draw: Draw) -> tuple[Series, Any]:
    """Values that spread to neighbours on a ring, whose edges are given."""
    nodes = np.arange(40)
    edges = np.hstack([[nodes, (nodes + 1) % 40], [nodes, (nodes + 2) % 40]])
    near = np.zeros((40, 40))
    near[edges[0], edges[1]] = near[edges[1], edges[0]] = 1 / 4
    values = np.zeros((250, 40))
    for day in range(1, 250):
        before = values[day - 1]
        values[day] = 0.35 * before + 0.6 * near @ np.tanh(before) + draw.normal(size=40)
    return Series(values, stamps=steps_of(250, days=1)), edges


FAMILIES: dict[str, Callable[[Draw], tuple[Series, Any]]] = {
    one.__name__: one for one in (noise, walk, drift, spread, sparse, seasonal, flu)
}


def measure(family: str, seed: int) -> dict[str, float]:
    """The mean squared error of every forecast."""
    series, edges = FAMILIES[family](np.random.default_rng(seed))
    tested = DIFFormerForecaster(random_state=0).backtest(series, edges, horizon=HORIZON)
    return {name: float(f"{tested.errors(name)['mse']:.5g}") for name in tested.forecasts}


def forecast_peers(only: tuple[str, ...] = ()) -> None:
    """Measure what the result file lacks; it holds a figure per family, seed and forecast."""
    results = read_results(result_file("forecast_peers"))
    for family in only or FAMILIES:
        kept = results.setdefault(family, {})
        for seed in SEEDS:
            if str(seed) not in kept:
                kept[str(seed)] = measure(family, seed)
                print(f"{family:10s} {seed}  {kept[str(seed)]}", flush=True)
                write_results("forecast_peers", results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="families, by commas")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    forecast_peers(tuple(filter(None, given.only.split(","))))


if __name__ == "__main__":
    main()

"""The defaults on many datasets: DIFFormer with no option set, compared with its peers.

python -m benchmarks.suite [--datasets A,B] [--systems A,B] [--splits N] [--workers N] [--again]

Writes results/benchmarks/suite.json; what is in it is not measured again. All systems have the same
splits, one thread, and their registered options; ours is
`DIFFormerClassifier(random_state=split).fit(X, y, graph)`. Test rows are used once, at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measure import read_results, result_file, write_results
from benchmarks.suite_sets import SETS, SuiteSet, load_set
from difformer import DIFFormerClassifier
from difformer.compare.compare import DEFAULT_TRAIN, end_with_parent
from difformer.data.split import Split
from difformer.errors import DifformerError
from difformer.jobs.job import Experiment
from difformer.jobs.rows import CannotRunError, run_experiment
from difformer.metrics import METRICS
from difformer.train.objective import CrossEntropy

RESULTS = result_file("suite")
SPLITS = 10
OURS = "difformer"
ROWS = ("logistic", "forest", "boosting", "knn", "label-spreading", "self-training", "mlp")
GRAPHS = ("gcn", "gat", "graphsage", "appnp", "correct-smooth", "sgc")
SYSTEMS = (OURS, *ROWS, *GRAPHS)
REPORTED = {"accuracy": "accuracy", "roc_auc": "roc_auc", "loss": "log_loss", "ece": "ece"}
LEAST = 1e-6  # the smallest probability, as for the peers: a logarithm is taken of it
SAVE_EVERY = 5.0  # seconds: what a killed run loses


class Job(NamedTuple):
    """One measurement."""

    dataset: str
    system: str
    split: int


def measure(job: Job, chosen: SuiteSet) -> dict[str, Any]:
    """The metrics of one system on the test rows of one split, and its processor seconds."""
    split = chosen.split(job.split)
    begin = time.process_time()
    run = measure_ours if job.system == OURS else measure_peer
    try:
        found = run(job, chosen, split)
    except CannotRunError as error:
        return {"cannot": str(error)}
    except DifformerError as error:
        return {"error": str(error)}
    seconds = time.process_time() - begin
    figures = {name: round(found[key], 5) for key, name in REPORTED.items() if key in found}
    return {"split": split.name, **figures, "seconds": round(seconds, 3)}


def measure_ours(job: Job, chosen: SuiteSet, split: Split) -> dict[str, float]:
    """The estimator with no option but the seed."""
    few = chosen.labels(split)
    validation = split.val.numpy() if len(split.val) else None
    model = DIFFormerClassifier(random_state=job.split)
    model.fit(chosen.X, few, chosen.data.edge_index, validation=validation)
    chances = np.full((chosen.data.num_rows, chosen.data.num_outputs), LEAST)
    chances[:, model.classes_] = model.label_distributions_.clip(LEAST)
    return objective(chosen).metrics(torch.from_numpy(chances).log(), chosen.data.y, split.test)


def measure_peer(job: Job, chosen: SuiteSet, split: Split) -> dict[str, float]:
    """A registered system with its own defaults, through the engine of `compare`."""
    train: dict[str, Any] = {**DEFAULT_TRAIN, "seed": job.split}
    if not len(split.val):  # the last epoch is kept, and no other is looked at
        train |= {"patience": None, "eval_every": train["epochs"]}
    experiment = Experiment.make(chosen.data.name, system=job.system, train=train)
    result = run_experiment(
        experiment, dataset=chosen.data, split=split, objective=objective(chosen)
    )
    return result.fits[f"seed {job.split}"].metrics["test"]


def objective(chosen: SuiteSet) -> CrossEntropy:
    """The epoch is picked by the metric that is reported."""
    return CrossEntropy(monitor=METRICS[chosen.metric])


def jobs_of(
    datasets: Sequence[str], systems: Sequence[str], splits: int, kinds: dict[str, str]
) -> Iterator[Job]:
    """All jobs, dataset by dataset; systems that need a graph run on graphs only."""
    for dataset in datasets:
        for split in range(splits):
            for system in systems:
                if kinds[dataset] == "graph" or system not in GRAPHS:
                    yield Job(dataset, system, split)


def run(jobs: Iterable[Job], root: Path | None, workers: int) -> Iterator[tuple[Job, Any]]:
    """Measure in processes of one thread each, or in this process if `workers` is 0."""
    if not workers:
        for job in jobs:
            yield job, measure(job, _cached(job.dataset, root))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)
    try:
        started = {pool.submit(_measure_in_child, job, root): job for job in jobs}
        for done in as_completed(started):
            yield started[done], done.result()
    finally:
        pool.shutdown(cancel_futures=True)


@lru_cache(maxsize=1)
def _cached(name: str, root: Path | None) -> SuiteSet:
    return load_set(name, root)


def _begin() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    Thread(target=end_with_parent, daemon=True).start()


def _measure_in_child(job: Job, root: Path | None) -> dict[str, Any]:
    return measure(job, _cached(job.dataset, root))


def suite(
    datasets: Sequence[str],
    systems: Sequence[str],
    splits: int,
    *,
    root: Path | None = None,
    workers: int = 1,
    again: bool = False,
    path: Path = RESULTS,
) -> dict[str, Any]:
    """Measure what the result file lacks; its content by dataset.

    Raises:
        ValueError: an unknown set or system, or a number of splits that is not 1 to 10.
    """
    for name, given, known in (("datasets", datasets, SETS), ("systems", systems, SYSTEMS)):
        for one in given:
            if one not in known:
                raise ValueError(f"{name} must be among {', '.join(known)}, got {one!r}")
    if not 1 <= splits <= SPLITS:
        raise ValueError(f"splits must be 1 to {SPLITS}, got {splits}")
    results = read_results(path)
    for name in datasets:
        about = load_set(name, root).describe()
        kept = results.get(name, {}).get("systems", {})
        results[name] = {**about, "systems": kept}
    kinds = {name: results[name]["kind"] for name in datasets}
    jobs = list(jobs_of(datasets, systems, splits, kinds))
    missing = [job for job in jobs if again or not _is_measured(results, job)]
    saved = time.monotonic()
    try:
        for number, (job, record) in enumerate(run(missing, root, workers), 1):
            results[job.dataset]["systems"].setdefault(job.system, {})[str(job.split)] = record
            print(f"{number}/{len(missing)}  {_line(job, record)}", flush=True)
            if time.monotonic() - saved > SAVE_EVERY:
                write_results("suite", _ordered(results), path=path)
                saved = time.monotonic()
    finally:
        write_results("suite", _ordered(results), path=path)
    return results


def _is_measured(results: dict[str, Any], job: Job) -> bool:
    record = results[job.dataset]["systems"].get(job.system, {}).get(str(job.split), {})
    return "seconds" in record or "cannot" in record


def _ordered(results: dict[str, Any]) -> dict[str, Any]:
    """Datasets, systems and splits in a fixed order."""
    found: dict[str, Any] = {}
    for name in (name for name in SETS if name in results):
        systems = results[name]["systems"]
        kept = {s: dict(sorted(systems[s].items())) for s in SYSTEMS if s in systems}
        found[name] = {**results[name], "systems": kept}
    return found


def _line(job: Job, record: dict[str, Any]) -> str:
    shown = ", ".join(f"{key} {value}" for key, value in record.items() if key != "split")
    return f"{job.dataset:20s} {job.system:16s} split {job.split}  {shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", default=",".join(SETS), help="names, by commas")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="names, by commas")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"how many, up to {SPLITS}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--again", action="store_true", help="measure again what is there")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes started below
    torch.set_num_threads(1)
    try:
        suite(
            given.datasets.split(","),
            given.systems.split(","),
            given.splits,
            root=given.data_dir,
            workers=given.workers,
            again=given.again,
        )
    except (ValueError, DifformerError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

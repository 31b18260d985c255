"""The same experiment with several seeds, each run as if it were alone: mean ± deviation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from torch import nn

from difformer.files import finite
from difformer.train.batches import Source
from difformer.train.callbacks import Callback
from difformer.train.folder import FitResult, agree_config, write_result
from difformer.train.interrupts import interruptible
from difformer.train.loop import fit
from difformer.train.objective import Objective
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from difformer.data.split import Split

Make = Callable[[int], tuple[nn.Module, Source, "Split"]]


@dataclass(frozen=True)
class SeedsResult:
    """The results of several seeds; fewer than asked for if the run was interrupted."""

    results: dict[int, FitResult]
    interrupted: bool = False

    def values(self, part: str, metric: str) -> list[float]:
        """One metric of one part ("train", "val", "test"), one value per seed."""
        return [result.metrics[part][metric] for result in self.results.values()]

    def mean(self, part: str, metric: str) -> float:
        """The mean over seeds."""
        return mean(self.values(part, metric))

    def std(self, part: str, metric: str) -> float:
        """The sample standard deviation over seeds (divisor: seeds − 1); nan for one seed."""
        values = self.values(part, metric)
        return stdev(values) if len(values) > 1 else float("nan")

    def to_json(self) -> dict[str, Any]:
        """What the summary result.json holds: mean and std of each metric, and every seed."""
        each = list(self.results.values())
        summary = {
            part: {
                name: finite({"mean": self.mean(part, name), "std": self.std(part, name)})
                for name in metrics
            }
            for part, metrics in (each[0].metrics.items() if each else ())
        }
        return {
            "metrics": summary,
            "seeds": {str(seed): result.to_json() for seed, result in self.results.items()},
            "interrupted": self.interrupted,
        }


def fit_seeds(
    make: Make,
    objective: Objective,
    settings: TrainSettings,
    *,
    seeds: Sequence[int],
    folder: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Callable[[int], Sequence[Callback]] | None = None,
) -> SeedsResult:
    """Train once for each seed; a seed's bits do not depend on which others are run.

    ``make(seed)`` gives the model, its batches and its split, with the global generators seeded:
    five initialisations on one split and ten random splits are the same call. With a folder,
    each seed is a separate run in ``seed-<seed>`` and is resumed or read back as `fit` does;
    result.json summarises those done so far.
    """
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"seeds must be one or more different numbers, got {list(seeds)!r}")
    root = None if folder is None else Path(folder)
    if root is not None:
        shared = {name: v for name, v in asdict(settings).items() if name != "seed"}
        agree_config(root, {**(config or {}), "train": shared})
    results: dict[int, FitResult] = {}
    interrupted = False
    with interruptible() as interrupt:
        for seed in seeds:
            with seeded(seed):
                model, source, split = make(seed)
            results[seed] = fit(
                model,
                source,
                objective,
                split,
                replace(settings, seed=seed),
                folder=None if root is None else root / f"seed-{seed}",
                config=config,
                callbacks=() if callbacks is None else callbacks(seed),
            )
            interrupted = results[seed].interrupted or (interrupt.is_set() and seed != seeds[-1])
            if root is not None:
                so_far = SeedsResult(results, interrupted or seed != seeds[-1])
                write_result(root, so_far.to_json())
            if interrupted:
                break
    return SeedsResult(results, interrupted)

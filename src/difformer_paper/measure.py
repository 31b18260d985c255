"""Measure the cells of a spec, one JSON file each; resumable after every run.

A result file holds what was measured and how: the command, the settings, the splits, the seeds,
the machine, the date, and the commit of each run. It holds no published figure; those are in the
spec.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import difformer
from difformer.errors import DataError, RunError
from difformer.files import alone_in, json_text, plain_name, write_atomic
from difformer.jobs.job import Experiment
from difformer.machine import commit, commit_of, describe_machine
from difformer.settings import options_of
from difformer.statistics import spread
from difformer.systems.registry import get_system
from difformer.train.settings import TrainSettings
from difformer_paper.specs import Cell, Spec

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.train.folder import Run


ABSENT = "not measured:"  # how a result says that its data is not available


@dataclass(frozen=True)
class CellResult:
    """What is in one result file.

    Args:
        wanted: split and seed of every run it should have.
        runs: one for each split and seed: {"split", "seed", "metrics", "best_epoch", "epochs",
            "seconds", "cost": {"epoch_seconds", "peak_mb"}, "commit"}: the seconds include
            evaluations, the memory is that of the whole process with its data.
        cannot: why the system cannot run here; then there are no runs.
    """

    table: str
    cell: str
    system: str
    column: str
    variant: str
    protocol: str
    dataset: str
    command: str
    settings: dict[str, Any]
    wanted: list[tuple[str, int]]
    machine: dict[str, Any]
    date: str
    version: str
    runs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    note: str | None = None
    cannot: str | None = None

    @property
    def absent(self) -> bool:
        """Whether it was not measured because its data is not available."""
        return self.cannot is not None and self.cannot.startswith(ABSENT)

    @property
    def missing(self) -> list[tuple[str, int]]:
        """The split and seed of each missing run."""
        if self.cannot is not None:
            return []
        done = {(run["split"], run["seed"]) for run in self.runs}
        return [pair for pair in self.wanted if pair not in done]

    def asked(self, cell: Cell) -> CellResult:
        """The same result, with the runs that a cell asks for among those it should have."""
        return replace(self, wanted=list(dict.fromkeys([*self.wanted, *cell.runs])))

    def joined(self, other: CellResult) -> CellResult:
        """This result with the runs that another has of the same cell, in the spec's order.

        A call for fewer runs does not remove any.
        """
        wanted = list(dict.fromkeys([*other.wanted, *self.wanted]))
        runs = {(run["split"], run["seed"]): run for run in [*other.runs, *self.runs]}
        places = {pair: place for place, pair in enumerate(wanted)}
        order = sorted(runs, key=lambda pair: places.get(pair, len(places)))
        return replace(self, wanted=wanted, runs=[runs[pair] for pair in order])

    def by_run(self, part: str, metric: str) -> dict[tuple[str, int], float]:
        """One metric of one part, or one of the costs, by split and seed."""
        found: dict[tuple[str, int], float] = {}
        for run in self.runs:
            figures = {**run.get("cost", {}), **run["metrics"].get(part, {})}
            if metric in figures:
                found[run["split"], run["seed"]] = figures[metric]
        return found

    def spread(self, metric: str, part: str = "test") -> tuple[float, float | None]:
        """Mean and sample deviation over runs; no deviation for one run."""
        return spread(list(self.by_run(part, metric).values()))

    def mean(self, metric: str, part: str = "test") -> float:
        """The mean over runs."""
        return self.spread(metric, part)[0]

    @property
    def commits(self) -> set[str]:
        """The commits that its runs were made at, in words."""
        return {commit_of(run) for run in self.runs}

    def to_json(self) -> str:
        """The file's text, in a stable order, so that it changes only with the figures."""
        return json_text(asdict(self), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> CellResult:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["wanted"] = [(split, seed) for split, seed in content["wanted"]]
            return cls(**content)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"cannot read the result {path}: {error}; delete it") from error


def result_path(out: Path, spec: Spec, cell: Cell) -> Path:
    """The path of a cell's result."""
    return out / spec.name / f"{plain_name(cell.name)}.json"


def run_path(runs: Path, cell: Cell, split: str, seed: int) -> Path:
    """The run folder of one split and seed of a cell."""
    return runs / plain_name(cell.name) / plain_name(split) / f"seed-{seed}"


def read_cell(spec: Spec, cell: Cell, out: Path) -> CellResult | None:
    """The result of a cell so far, or None."""
    path = result_path(out, spec, cell)
    return CellResult.load(path) if path.exists() else None


def read_results(out: Path, table: str) -> list[CellResult]:
    """All results of one table, by file name."""
    return [CellResult.load(path) for path in sorted((out / table).glob("*.json"))]


def measure_cell(
    spec: Spec,
    cell: Cell,
    out: Path,
    *,
    dataset: Callable[[Experiment], Dataset],
    runs: Path | None = None,
    fresh: bool = False,
    quiet: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[CellResult, bool]:
    """Make the missing runs of a cell; also returns whether it was interrupted.

    The file is written after every run. Existing runs are kept if their settings are those of the
    spec; otherwise it is an error, unless ``fresh`` discards them. Other processes may measure
    other runs of the same cell at the same time: each adds its own to the file.

    Args:
        dataset: returns the data of an experiment; called only if there is something to run.
        runs: where to keep the run folders, so that interrupted runs can be resumed; None to keep
            none.
        quiet: shows no progress.
        say: called with the reason if data is not available.
    """
    from difformer.jobs.rows import CannotRunError, run_experiment
    from difformer.train.callbacks import Progress
    from difformer.train.memory import forget_peak_memory

    path = result_path(out, spec, cell)
    experiments = {experiment.split: experiment for experiment in cell.experiments()}
    result = _new_result(spec, cell, next(iter(experiments.values())))
    before = None if fresh else read_cell(spec, cell, out)
    if before is not None:
        result = _continued(result, before, path)
    if cell.skip is not None:
        result = replace(result, cannot=cell.skip)
    for split, seed in [pair for pair in result.missing if pair in cell.runs]:
        if not fresh:
            result = _with_others(result, path)
        if (split, seed) not in result.missing:
            continue
        one = replace(experiments[split], seeds=(seed,))
        title = f"{cell.name} {split} seed {seed}"
        forget_peak_memory()
        try:
            done = run_experiment(
                one,
                dataset=dataset(one),
                folder=None if runs is None else run_path(runs, cell, split, seed),
                callbacks=lambda _, title=title: [Progress(title, quiet=quiet)],
            )
        except CannotRunError as error:
            result = replace(result, cannot=str(error))
            break
        except DataError as error:
            # The reason is printed; folders and hosts do not belong into a result file.
            say(f"{cell.name}: {error}")
            cannot = f"{ABSENT} {one.dataset} is not here and cannot be fetched"
            result = replace(result, cannot=cannot)
            break
        if done.interrupted:
            return result, True
        result = replace(result, runs=[*result.runs, _run_record(split, seed, done)])
        result = before = _keep(path, result, fresh=fresh)
        fresh = False  # from here on the file holds nothing that was discarded
    if before != result:
        result = _keep(path, result, fresh=fresh)
    return result, False


# Settings that change where and how fast a run is made, but not its result.
UNIMPORTANT = ("seed", "device", "threads", "checkpoint_every", "recompute")


def _new_result(spec: Spec, cell: Cell, experiment: Experiment) -> CellResult:
    words = ["difformer", "reproduce", spec.name, "--models", cell.system, "--datasets"]
    words += [cell.column, "--variants", cell.variant, "--protocols", cell.protocol]
    train = {k: v for k, v in asdict(experiment.train).items() if k not in UNIMPORTANT}
    same = ("system", "column", "variant", "protocol", "dataset", "note")
    return CellResult(
        table=spec.name,
        cell=cell.name,
        **{name: getattr(cell, name) for name in same},
        command=shlex.join(words),
        settings={
            "recipe": experiment.recipe,
            "data": dict(experiment.data),
            "model": dict(experiment.model),
            "train": train,
        },
        wanted=cell.runs,
        machine=describe_machine(),
        date=datetime.now(timezone.utc).date().isoformat(),
        version=difformer.__version__,
    )


def _continued(new: CellResult, old: CellResult, path: Path) -> CellResult:
    """The new result with the old one's runs, and its machine and date if nothing is missing."""
    differing = _differing(new, old)
    if differing:
        raise RunError(
            f"{path} was measured with other settings ({'; '.join(differing)}): "
            "give --fresh to measure it again, or another folder with --out"
        )
    whole = new.joined(old)
    if whole.missing or old.cannot is not None:
        return whole
    kept = {name: getattr(old, name) for name in ("command", "machine", "date", "version")}
    return replace(whole, **kept)


def _with_others(mine: CellResult, path: Path) -> CellResult:
    """My result with the runs that another process has added to its file."""
    now = CellResult.load(path) if path.exists() else None
    return mine if now is None or _differing(mine, now) else mine.joined(now)


def other_settings(spec: Spec, cell: Cell, result: CellResult) -> list[str]:
    """In which settings a result differs from what its spec says now, one text each."""
    return _differing(_new_result(spec, cell, cell.experiments()[0]), result)


def _differing(new: CellResult, old: CellResult) -> list[str]:
    from difformer.train.folder import differences

    then, now = (json.loads(json.dumps(each.settings)) for each in (old, new))
    # An option that did not exist then has its current default.
    for section, kind in {"model": get_system(new.system).config, "train": TrainSettings}.items():
        options = options_of(kind)
        known = {k: options[k].default for k in now[section] if k in options}
        then[section] = {**known, **then[section]}
    return differences(then, now)


def _run_record(split: str, seed: int, done: Run) -> dict[str, Any]:
    fit = done.fits[f"seed {seed}"]
    metrics = {
        part: {name: round(value, 6) if isfinite(value) else None for name, value in values.items()}
        for part, values in fit.metrics.items()
    }
    cost = {"epoch_seconds": round((fit.seconds or 0.0) / max(fit.epochs or 0, 1), 5)}
    if fit.peak_memory is not None:
        cost["peak_mb"] = round(fit.peak_memory / 1e6)
    return {
        "split": split,
        "seed": seed,
        "metrics": metrics,
        "best_epoch": fit.best_epoch,
        "epochs": fit.epochs,
        "seconds": round(fit.seconds or 0.0, 1),
        "cost": cost,
        "commit": commit(),
    }


def _keep(path: Path, result: CellResult, *, fresh: bool) -> CellResult:
    """Write a result, with the runs of others unless ``fresh`` discards them, and return it."""
    with alone_in(path.parent):
        whole = result if fresh else _with_others(result, path)
        write_atomic(path, whole.to_json())
    return whole

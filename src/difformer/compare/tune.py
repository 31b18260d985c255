"""Search for a system's settings by validation only; Optuna keeps the trials and resumes them.

`difformer tune` searches for one system, and `difformer_paper` for the cells of its tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import product
from math import isfinite, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.random import RandomState

from difformer.errors import DifformerError, missing_extra
from difformer.files import one_line
from difformer.jobs.job import Experiment
from difformer.metrics import METRICS
from difformer.systems.registry import get_system

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split


SEARCHES = ("search", "grid")

# The paper's grid for the citation networks (its appendix on implementation details).
PAPER_GRID: dict[str, tuple[Any, ...]] = {
    "train.lr": (0.0001, 0.001, 0.01, 0.1),
    "train.weight_decay": (0.0, 0.0001, 0.001, 0.01, 0.1, 1.0),
    "model.dropout": (0.0, 0.2, 0.5),
    "model.hidden_channels": (16, 32, 64),
    "model.num_layers": (2, 4, 8, 16),
}
LR_RANGE, DECAY_RANGE = (1e-4, 0.3), (1e-6, 1.0)

# Options that regularise, strongest first; the larger, the more.
REGULARISERS = ("model.ridge", "model.dropout", "train.weight_decay")

Look = Callable[["Trial", int], None]
Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Trial:
    """One setting that was tried: its options, and the validation metric it reached."""

    number: int
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    value: float | None  # the mean over seeds; None where it failed
    seconds: float = 0.0
    error: str | None = None
    standard_error: float | None = None  # of the value over snapshots, where the data has them

    @property
    def settings(self) -> dict[str, Any]:
        """The options by full name, as a grid has them: model.dropout, train.lr."""
        model = {f"model.{name}": value for name, value in self.model.items()}
        return model | {f"train.{name}": value for name, value in self.train.items()}


@dataclass(frozen=True)
class TuneResult:
    """All trials of a search, and the best of them by validation."""

    experiment: Experiment
    metric: str
    trials: tuple[Trial, ...]

    def ranked(self) -> list[Trial]:
        """The trials that did not fail, best validation first; the earlier of equal ones."""
        done = [t for t in self.trials if t.value is not None]
        return sorted(done, key=lambda t: (self._loss(t), t.number))

    @property
    def best(self) -> Trial:
        """The trial with the best validation; the earliest of equal ones."""
        if not (done := self.ranked()):
            reasons = "; ".join(sorted({t.error or "" for t in self.trials}))
            raise DifformerError(f"no setting of {self.experiment.system} could be run: {reasons}")
        return done[0]

    @property
    def simplest(self) -> Trial:
        """The most regularised trial within one standard error of the best.

        Few validation snapshots cannot tell settings apart whose errors differ by less than they
        vary from snapshot to snapshot (Breiman et al., 1984). The order is by ridge, dropout,
        weight decay, then the smaller learning rate. Every other option keeps the best trial's
        value, because no value of it is a stronger form of another.
        """
        best, strength = self.best, (*REGULARISERS, "train.lr")
        allowed = self._loss(best) + (best.standard_error or 0.0)

        def others(trial: Trial) -> dict[str, Any]:
            return {k: v for k, v in trial.settings.items() if k not in strength}

        near = [t for t in self.trials if t.value is not None and self._loss(t) <= allowed]
        return min(
            (t for t in near if others(t) == others(best)),
            key=lambda t: (
                *(-t.settings.get(name, 0.0) for name in REGULARISERS),
                t.settings.get("train.lr", 0.0),
            ),
        )

    def tuned(self) -> Experiment:
        """The experiment with the best settings found."""
        return _changed(self.experiment, self.best.model, self.best.train)

    def _loss(self, trial: Trial) -> float:
        return -METRICS[self.metric].better * (trial.value or 0.0)


def tune(
    experiment: Experiment,
    *,
    trials: int | None,
    search: str | Grid = "search",
    dataset: Dataset | None = None,
    split: Split | None = None,
    data_dir: Path | str | None = None,
    storage: Path | str | None = None,
    look: Look | None = None,
) -> TuneResult:
    """Try up to `trials` settings and keep them; the first is the experiment as it stands.

    "grid" tries the paper's grid (in random order, so that any budget is a fair sample of it);
    "search" draws the learning rate and weight decay from continuous ranges, and the options in the
    system's own `space`, by Optuna's TPE. The split's test rows are removed before anything is
    trained. A setting that cannot be trained is a failed trial and does not end the search; one
    that is interrupted is not counted, and comes again.

    Args:
        trials: None tries the whole grid.
        search: "search", "grid", or a grid of your own, ``{"train.lr": [0.01, 0.1], ...}``: then
            only its points are tried, with a number of trials after the experiment as it stands.
        storage: an SQLite file; the trials in it count if they are of the same search.
        look: called with each finished trial and the number of trials wanted.
    """
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("tune", "tune") from error

    from difformer.jobs.rows import choose_split, load_data
    from difformer.train.objective import objective_for

    if isinstance(search, str) and search not in SEARCHES:
        raise ValueError(f"search must be one of {', '.join(SEARCHES)}, got {search!r}")
    # The experiment as it stands is tried first, except if a grid of the caller is tried whole.
    first = isinstance(search, str) or trials is not None
    points: list[dict[str, Any]] | None = None
    if search != "search":
        grid = grid_for(experiment.system) if isinstance(search, str) else search
        points = _points(grid, first=first)
        trials = len(points) if trials is None else trials
    if trials is None or trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    data = load_data(experiment, data_dir) if dataset is None else dataset
    rows = choose_split(data, experiment.split) if split is None else split
    if rows.val.numel() == 0:
        raise ValueError(f"split {rows.name!r} must have validation rows to tune by, it has none")
    blind = replace(rows, test=rows.test[:0])
    metric = objective_for(data.task).monitor
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    with _storage_errors(storage):
        study = _open_study(experiment, search, metric.direction, storage, data, blind)
        while len(done := _tried(study)) < min(trials, trials if points is None else len(points)):
            # Seeded by the number of finished trials: an interrupted trial is drawn again.
            study.sampler = optuna.samplers.TPESampler(seed=len(done))
            trial, tried = study.ask(), [each.settings for each in done]
            if points is not None:
                settings = next((point for point in points if point not in tried), {})
            else:
                settings = _drawn(trial, experiment.system) if {} in tried else {}
            value = _try(trial, settings, experiment, data, blind, metric.name)
            failed = optuna.trial.TrialState.PRUNED if value is None else None
            study.tell(trial, value, failed)
            if look is not None:
                look(_tried(study)[-1], trials)
        return TuneResult(experiment, metric.name, tuple(_tried(study)[:trials]))


def _points(grid: Grid, *, first: bool) -> list[dict[str, Any]]:
    """The settings of a grid in a random order that is always the same.

    The experiment as it stands takes the place of the first of them, which then comes last.
    """
    names = sorted(grid)
    places = list(product(*(dict.fromkeys(grid[name]) for name in names)))
    RandomState(0).shuffle(places)
    points = [{name: place[names.index(name)] for name in grid} for place in places]
    return [{}, *points[1:], *points[:1]] if first else points


def _drawn(trial: Any, system: str) -> dict[str, Any]:
    """Settings that Optuna suggests for a system."""
    kind, found = get_system(system), dict[str, Any]()
    ranges = {"train.lr": LR_RANGE, "train.weight_decay": DECAY_RANGE} if kind.trained else {}
    for name, (low, high) in ranges.items():
        found[name] = trial.suggest_float(name, low, high, log=True)
    for option, values in kind.space.items():
        name = f"model.{option}"
        found[name] = values[trial.suggest_categorical(name, list(range(len(values))))]
    return found


def _try(
    trial: Any,
    settings: Mapping[str, Any],
    experiment: Experiment,
    data: Dataset,
    split: Split,
    metric: str,
) -> float | None:
    """Train one setting and record its options, time and error with the trial; None if it fails."""
    found: dict[str, Any] = {"model": {}, "train": {}}
    for name, chosen in settings.items():
        part, _, option = name.partition(".")
        found[part][option] = chosen
    started, value = time.monotonic(), None
    try:
        changed = _changed(experiment, found["model"], found["train"])
        reached, found["standard_error"] = _validate(changed, data, split, metric)
        if not isfinite(reached):
            raise ValueError(f"the validation {metric} is {reached}")
        value = reached
    except (DifformerError, ValueError, RuntimeError, MemoryError) as error:
        found["error"] = f"{type(error).__name__}: {one_line(error)}"
    found["seconds"] = round(time.monotonic() - started, 2)
    for name, each in found.items():
        trial.set_user_attr(name, each)
    return value


def grid_for(system: str) -> dict[str, tuple[Any, ...]]:
    """The paper's grid for the options a system has, and the system's own space for the others."""
    kind = get_system(system)
    known = {f"model.{f.name}" for f in fields(kind.config)}
    known |= {k for k in PAPER_GRID if k.startswith("train.") and kind.trained}
    own = {f"model.{k}": v for k, v in kind.space.items() if f"model.{k}" not in PAPER_GRID}
    return own | {k: v for k, v in PAPER_GRID.items() if k in known}


def grid_size(system: str) -> int:
    """How many settings the grid of a system has."""
    return prod(map(len, grid_for(system).values()))


def _changed(
    experiment: Experiment, model: Mapping[str, Any], train: Mapping[str, Any]
) -> Experiment:
    """The experiment with some options changed."""
    model = {**experiment.model, **model}
    return replace(experiment, model=model, train=replace(experiment.train, **train))


def _validate(
    experiment: Experiment, data: Dataset, split: Split, metric: str
) -> tuple[float, float | None]:
    """The mean over seeds of the validation metric, and of its standard error over snapshots."""
    from difformer.data.snapshots import TemporalDataset
    from difformer.jobs.rows import run_experiment
    from difformer.train.objective import SnapshotError

    temporal = isinstance(data, TemporalDataset)
    objective = SnapshotError(num_nodes=data.num_nodes, scatter=True) if temporal else None
    result = run_experiment(experiment, dataset=data, split=split, objective=objective)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.mean("val", metric), result.mean("val", "standard_error") if temporal else None


def _open_study(
    experiment: Experiment,
    search: str | Grid,
    direction: str,
    storage: Path | str | None,
    data: Dataset,
    split: Split,
) -> Any:
    """The stored study, or a new one; DifformerError if the storage holds another search."""
    import optuna

    from difformer.data.dataset import fingerprint

    kind, place = search if isinstance(search, str) else "own grid", None
    if storage is not None:
        path = Path(storage).expanduser().resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        place = f"sqlite:///{path}"
    study = optuna.create_study(
        study_name=f"{experiment.dataset} {experiment.system} {experiment.split} {kind}",
        storage=place,
        load_if_exists=True,
        direction="maximize" if direction == "max" else "minimize",
    )
    settings = {**experiment.model, "epochs": (experiment.train.epochs, experiment.train.patience)}
    settings |= {"data": data.fingerprint, "split": fingerprint(split.train, split.val)}
    settings |= {} if isinstance(search, str) else {"grid": search, "seeds": experiment.seeds}
    wanted = {name: repr(value) for name, value in sorted(settings.items())}
    before = study.user_attrs.get("experiment")
    if before is None:
        study.set_user_attr("experiment", before := wanted)
    if differing := [name for name in wanted if before.get(name) != wanted[name]]:
        raise DifformerError(
            f"the storage holds this search with other settings ({', '.join(differing)}): "
            "give another file with --storage"
        )
    return study


def _tried(study: Any) -> list[Trial]:
    """The finished trials, including failed settings."""
    from optuna.trial import TrialState

    names = {f.name for f in fields(Trial)}  # earlier versions kept more
    return [
        Trial(
            each.number,
            value=each.value,
            **{k: v for k, v in each.user_attrs.items() if k in names},
        )
        for each in study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    ]


@contextmanager
def _storage_errors(storage: Path | str | None) -> Generator[None, None, None]:
    """Turn errors of the storage into one line."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OSError, SQLAlchemyError, StorageInternalError) as error:
        reason = getattr(error, "orig", None) or getattr(error.__cause__, "orig", None) or error
        raise DifformerError(f"cannot use the storage {storage}: {reason}") from error

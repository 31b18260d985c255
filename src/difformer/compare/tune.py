"""Search for a system's settings by validation only; Optuna keeps the trials and resumes them.

`difformer tune` searches for one system, and `difformer_paper` for the cells of its tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import DifformerError, missing_extra
from difformer.files import one_line
from difformer.jobs.job import Experiment
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
FIRST = "first"  # marks the trial of the defaults
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
    direction: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the best validation; the earliest of equal ones."""
        done = [t for t in self.trials if t.value is not None]
        if not done:
            reasons = "; ".join(sorted({t.error or "" for t in self.trials}))
            raise DifformerError(f"no setting of {self.experiment.system} could be run: {reasons}")
        sign = -1.0 if self.direction == "max" else 1.0
        return min(done, key=lambda t: (sign * (t.value or 0.0), t.number))

    @property
    def simplest(self) -> Trial:
        """The most regularised trial within one standard error of the best.

        Few validation snapshots cannot tell settings apart whose errors differ by less than they
        vary from snapshot to snapshot (Breiman et al., 1984). The order is by ridge, dropout,
        weight decay, then the smaller learning rate. Every other option keeps the best trial's
        value, because no value of it is a stronger form of another.
        """
        best, strength = self.best, (*REGULARISERS, "train.lr")
        assert best.value is not None
        sign = -1.0 if self.direction == "max" else 1.0
        allowed = sign * best.value + (best.standard_error or 0.0)

        def others(trial: Trial) -> dict[str, Any]:
            return {k: v for k, v in trial.settings.items() if k not in strength}

        near = [t for t in self.trials if t.value is not None and sign * t.value <= allowed]
        return min(
            (t for t in near if others(t) == others(best)),
            key=lambda t: (
                *(-t.settings.get(name, 0.0) for name in REGULARISERS),
                t.settings.get("train.lr", 0.0),
            ),
        )

    def tuned(self) -> Experiment:
        """The experiment with the best settings found."""
        return changed(self.experiment, self.best.model, self.best.train)


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
    trained. A setting that cannot be trained is a failed trial and does not end the search.

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

    # The experiment as it stands is tried first, except if a grid of the caller is tried whole.
    first = isinstance(search, str) or trials is not None
    grid = _grid(search, experiment.system)
    most = None if grid is None else prod(map(len, grid.values())) + first
    trials = most if trials is None else trials
    if trials is None or trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    data = load_data(experiment, data_dir) if dataset is None else dataset
    rows = choose_split(data, experiment.split) if split is None else split
    if rows.val.numel() == 0:
        raise ValueError(f"split {rows.name!r} must have validation rows to tune by, it has none")
    blind = replace(rows, test=rows.test[:0])
    monitor = objective_for(data.task).monitor
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def validate(model: Mapping[str, Any], train: Mapping[str, Any]) -> tuple[float, float | None]:
        return _validate(changed(experiment, model, train), data, blind, monitor.name)

    with _storage_errors(storage):
        study = _open_study(experiment, search, grid, monitor.direction, storage)
        _agree(study, experiment, search, data, blind)
        _go_on(study, grid, first=first)
        while len(_tried(study)) < min(trials, most or trials):
            if grid is None:
                # Seeded by the number of finished trials: an interrupted trial is drawn again.
                study.sampler = optuna.samplers.TPESampler(seed=len(_tried(study)))
            study.optimize(lambda trial: _try(trial, experiment, grid, validate), n_trials=1)
            if look is not None:
                look(_record(_tried(study)[-1]), trials)
        records = tuple(_record(trial) for trial in _tried(study)[:trials])
    return TuneResult(experiment, monitor.name, monitor.direction, records)


def _grid(search: str | Grid, system: str) -> Grid | None:
    """The grid to draw from; None for a search in continuous ranges."""
    if isinstance(search, Mapping):
        return search
    if search not in SEARCHES:
        raise ValueError(f"search must be one of {', '.join(SEARCHES)}, got {search!r}")
    return grid_for(system) if search == "grid" else None


def _try(
    trial: Any,
    experiment: Experiment,
    grid: Grid | None,
    validate: Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[float, float | None]],
) -> float:
    """Train one setting, and record its options, time and error with the trial."""
    import optuna

    model, train = _suggest(trial, experiment, grid)
    trial.set_user_attr("model", model)
    trial.set_user_attr("train", train)
    started = time.monotonic()
    try:
        value, standard_error = validate(model, train)
        trial.set_user_attr("standard_error", standard_error)
        return value
    except (DifformerError, ValueError, RuntimeError, MemoryError) as error:
        trial.set_user_attr("error", f"{type(error).__name__}: {one_line(error)}")
        raise optuna.TrialPruned from error
    finally:
        trial.set_user_attr("seconds", round(time.monotonic() - started, 2))


def grid_for(system: str) -> dict[str, tuple[Any, ...]]:
    """The paper's grid for the options a system has, and the system's own space for the others."""
    kind = get_system(system)
    known = {f"model.{f.name}" for f in fields(kind.config)}
    known |= {k for k in PAPER_GRID if k.startswith("train.") and kind.trained}
    grid = {k: v for k, v in PAPER_GRID.items() if k in known}
    own = {f"model.{k}": v for k, v in kind.space.items()}
    return {**{k: v for k, v in own.items() if k not in PAPER_GRID}, **grid}


def grid_size(system: str) -> int:
    """How many settings the grid of a system has."""
    return prod(map(len, grid_for(system).values()))


def changed(
    experiment: Experiment, model: Mapping[str, Any], train: Mapping[str, Any]
) -> Experiment:
    """The experiment with some options changed."""
    return replace(
        experiment,
        model={**experiment.model, **model},
        train=replace(experiment.train, **train),
    )


def _suggest(
    trial: Any, experiment: Experiment, grid: Grid | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options for a trial; the first one changes nothing."""
    if trial.user_attrs.get(FIRST):
        return {}, {}
    found: dict[str, Any] = {}
    if grid is None:
        kind = get_system(experiment.system)
        ranges = {"train.lr": LR_RANGE, "train.weight_decay": DECAY_RANGE} if kind.trained else {}
        for name, (low, high) in ranges.items():
            found[name] = trial.suggest_float(name, low, high, log=True)
        grid = {f"model.{name}": values for name, values in kind.space.items()}
    for name, values in grid.items():
        found[name] = values[trial.suggest_categorical(name, list(range(len(values))))]
    parts = {"model": {}, "train": {}}
    for name, value in found.items():
        part, _, option = name.partition(".")
        parts[part][option] = value
    return parts["model"], parts["train"]


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
    grid: Grid | None,
    direction: str,
    storage: Path | str | None,
) -> Any:
    import optuna

    class GridPoints(optuna.samplers.GridSampler):
        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            """Nothing: Optuna's fails if a queued trial ends while one grid point is left."""

    kind = search if isinstance(search, str) else "own grid"
    name = f"{experiment.dataset} {experiment.system} {experiment.split} {kind}"
    place = None
    if storage is not None:
        path = Path(storage).expanduser().resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        place = f"sqlite:///{path}"
    study = optuna.create_study(
        study_name=name,
        storage=place,
        load_if_exists=True,
        direction="maximize" if direction == "max" else "minimize",
    )
    if grid is not None:
        places = {name: list(range(len(values))) for name, values in grid.items()}
        study.sampler = GridPoints(places, seed=0)
    return study


def _agree(
    study: Any, experiment: Experiment, search: str | Grid, data: Dataset, split: Split
) -> None:
    """Record what is tuned; DifformerError if the storage holds another search."""
    from difformer.data.dataset import fingerprint

    settings = {**experiment.model, "epochs": (experiment.train.epochs, experiment.train.patience)}
    settings |= {"data": data.fingerprint, "split": fingerprint(split.train, split.val)}
    settings |= {} if isinstance(search, str) else {"grid": search, "seeds": experiment.seeds}
    wanted = {name: repr(value) for name, value in sorted(settings.items())}
    before = study.user_attrs.get("experiment")
    if before is None:
        study.set_user_attr("experiment", wanted)
        return
    differing = [name for name in wanted if before.get(name) != wanted[name]]
    if differing:
        raise DifformerError(
            f"the storage holds this search with other settings ({', '.join(differing)}): "
            "give another file with --storage"
        )


def _go_on(study: Any, grid: Grid | None, *, first: bool) -> None:
    """Queue the defaults if they have not been tried, and interrupted trials of a grid.

    A search without a grid draws the settings of an interrupted trial again by itself.
    """
    from optuna.trial import TrialState

    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    known = [t for t in study.get_trials() if t.state is not TrialState.FAIL]
    if first and not any(trial.user_attrs.get(FIRST) for trial in known):
        study.enqueue_trial({}, user_attrs={FIRST: True})
    again: list[Any] = study.user_attrs.get("again", [])
    for trial in study.get_trials(states=(TrialState.FAIL,)) if grid is not None else ():
        if trial.number not in again and not trial.user_attrs.get(FIRST):
            study.enqueue_trial(trial.params)
            study.set_user_attr("again", again := [*again, trial.number])


def _tried(study: Any) -> list[Any]:
    """The finished trials, including failed settings."""
    from optuna.trial import TrialState

    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


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


def _record(trial: Any) -> Trial:
    attrs = trial.user_attrs
    return Trial(
        number=trial.number,
        model=attrs.get("model", {}),
        train=attrs.get("train", {}),
        value=trial.value if trial.value is not None and "error" not in attrs else None,
        seconds=attrs.get("seconds", 0.0),
        error=attrs.get("error"),
        standard_error=attrs.get("standard_error"),
    )

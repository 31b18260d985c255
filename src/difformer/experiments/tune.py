"""Search for a system's settings, by validation only; Optuna keeps the trials and resumes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.baselines.registry import get_system
from difformer.errors import DifformerError, missing_extra
from difformer.experiments.experiment import Experiment

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

__all__ = ["SEARCHES", "Trial", "TuneResult", "changed", "grid_for", "tune"]

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

Look = Callable[["Trial", int], None]


@dataclass(frozen=True)
class Trial:
    """One setting that was tried: its options, and the validation metric it reached."""

    number: int
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    value: float | None  # None where it failed
    seconds: float = 0.0
    error: str | None = None


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

    def tuned(self) -> Experiment:
        """The experiment with the best settings found."""
        return changed(self.experiment, self.best.model, self.best.train)


def tune(
    experiment: Experiment,
    *,
    trials: int,
    search: str = "search",
    dataset: Dataset | None = None,
    split: Split | None = None,
    data_dir: Path | str | None = None,
    storage: Path | str | None = None,
    look: Look | None = None,
) -> TuneResult:
    """Try up to `trials` settings and keep them; the first is the experiment as it stands.

    "grid" walks over the paper's grid (in random order, so that any budget is a fair sample of
    it), "search" goes beyond: learning rate and weight decay from continuous ranges and the
    options in the system's own `space`, by Optuna's TPE. The split's test rows are taken away
    before anything is trained. A setting that cannot be trained is a failed trial, not an end.

    Args:
        storage: an SQLite file; trials found in it for the same search count.
        look: called with each finished trial and the number of trials wanted.
    """
    try:
        import optuna
    except ImportError as error:
        raise missing_extra("tune", "tune") from error

    from difformer.experiments.run import choose_split, load_data
    from difformer.train.objective import objective_for

    if trials < 1:
        raise ValueError(f"trials must be at least 1, got {trials}")
    if search not in SEARCHES:
        raise ValueError(f"search must be one of {', '.join(SEARCHES)}, got {search!r}")
    data = load_data(experiment, data_dir) if dataset is None else dataset
    rows = choose_split(data, experiment.split) if split is None else split
    if rows.val.numel() == 0:
        raise ValueError(f"split {rows.name!r} must have validation rows to tune by, it has none")
    blind = replace(rows, test=rows.test[:0])
    monitor = objective_for(data.task).monitor
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with _storage_errors(storage):
        study = _open_study(experiment, search, monitor.direction, storage)
        _agree(study, experiment, data, blind)
        _go_on(study, search)

    def objective(trial: Any) -> float:
        model, train = _suggest(trial, experiment, search)
        trial.set_user_attr("model", model)
        trial.set_user_attr("train", train)
        started = time.monotonic()
        try:
            return _validate(changed(experiment, model, train), data, blind, monitor.name)
        except (DifformerError, ValueError, RuntimeError, MemoryError) as error:
            trial.set_user_attr("error", _line(error))
            raise optuna.TrialPruned from error
        finally:
            trial.set_user_attr("seconds", round(time.monotonic() - started, 2))

    with _storage_errors(storage):
        while len(_tried(study)) < trials:
            if search != "grid":
                # By the trials that are finished: a trial that was cut short is drawn again.
                study.sampler = optuna.samplers.TPESampler(seed=len(_tried(study)))
            study.optimize(objective, n_trials=1)
            if look is not None:
                look(_record(_tried(study)[-1]), trials)
            if search == "grid" and len(_tried(study)) > grid_size(experiment.system):
                break
        records = tuple(_record(trial) for trial in _tried(study)[:trials])
    return TuneResult(experiment, monitor.name, monitor.direction, records)


def grid_for(system: str) -> dict[str, tuple[Any, ...]]:
    """The paper's grid, as far as a system has the options, and its own space where it has not."""
    kind = get_system(system)
    known = {f"model.{f.name}" for f in fields(kind.config)}
    known |= {k for k in PAPER_GRID if k.startswith("train.") and kind.trained}
    grid = {k: v for k, v in PAPER_GRID.items() if k in known}
    own = {f"model.{k}": v for k, v in kind.space.items()}
    return {**{k: v for k, v in own.items() if k not in PAPER_GRID}, **grid}


def grid_size(system: str) -> int:
    """How many settings the grid of a system has."""
    size = 1
    for values in grid_for(system).values():
        size *= len(values)
    return size


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
    trial: Any, experiment: Experiment, search: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options for a trial; the first one changes nothing."""
    if trial.user_attrs.get(FIRST):
        return {}, {}
    found: dict[str, Any] = {}
    if search == "grid":
        for name, values in grid_for(experiment.system).items():
            found[name] = values[trial.suggest_categorical(name, list(range(len(values))))]
    else:
        kind = get_system(experiment.system)
        ranges = {"train.lr": LR_RANGE, "train.weight_decay": DECAY_RANGE} if kind.trained else {}
        for name, (low, high) in ranges.items():
            found[name] = trial.suggest_float(name, low, high, log=True)
        for name, values in kind.space.items():
            index = trial.suggest_categorical(f"model.{name}", list(range(len(values))))
            found[f"model.{name}"] = values[index]
    parts = {"model": {}, "train": {}}
    for name, value in found.items():
        part, _, option = name.partition(".")
        parts[part][option] = value
    return parts["model"], parts["train"]


def _validate(experiment: Experiment, data: Dataset, split: Split, metric: str) -> float:
    from difformer.experiments.run import run_experiment

    result = run_experiment(experiment, dataset=data, split=split)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.mean("val", metric)


def _open_study(
    experiment: Experiment, search: str, direction: str, storage: Path | str | None
) -> Any:
    import optuna

    name = f"{experiment.dataset} {experiment.system} {experiment.split} {search}"
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
    if search == "grid":
        grid = {k: list(range(len(v))) for k, v in grid_for(experiment.system).items()}
        study.sampler = optuna.samplers.GridSampler(grid, seed=0)
    return study


def _agree(study: Any, experiment: Experiment, data: Dataset, split: Split) -> None:
    """Remember what is tuned; an error where a storage holds the search of something else."""
    from difformer.data.dataset import fingerprint

    settings = {**experiment.model, "epochs": (experiment.train.epochs, experiment.train.patience)}
    settings |= {"data": data.fingerprint, "split": fingerprint(split.train, split.val)}
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


def _go_on(study: Any, search: str) -> None:
    """Queue the defaults until they are tried, and trials of a grid that were cut short again.

    The other searches draw the settings of a trial that was cut short once more by themselves.
    """
    from optuna.trial import TrialState

    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)
    known = [t for t in study.get_trials() if t.state is not TrialState.FAIL]
    if not any(trial.user_attrs.get(FIRST) for trial in known):
        study.enqueue_trial({}, user_attrs={FIRST: True})
    again: list[Any] = study.user_attrs.get("again", [])
    for trial in study.get_trials(states=(TrialState.FAIL,)) if search == "grid" else ():
        if trial.number not in again and not trial.user_attrs.get(FIRST):
            study.enqueue_trial(trial.params)
            study.set_user_attr("again", again := [*again, trial.number])


def _tried(study: Any) -> list[Any]:
    """The trials that came to an end, the failed settings among them."""
    from optuna.trial import TrialState

    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


@contextmanager
def _storage_errors(storage: Path | str | None) -> Generator[None, None, None]:
    """A storage that cannot be read or written is one line."""
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
    )


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]

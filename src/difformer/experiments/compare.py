"""Compare systems on the same splits with the same tuning budget.

Each system runs in a process of its own, so that its memory can be measured and a crash does not
affect the others. A folder keeps a JSON file for each system and split: the same call resumes it.

FOLDER/config.toml           what was asked for; another call there must ask for the same
FOLDER/SYSTEM/SPLIT.json     one run: validation, test, log loss, seconds, the settings used
FOLDER/SYSTEM/system.json    peak memory, or why the system cannot run
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from difformer.baselines.registry import get_system
from difformer.experiments.comparisons import Comparison, Row
from difformer.experiments.workers import Look, run_all
from difformer.files import cannot_write, one_line, plain_name, read_json, write_json

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

__all__ = ["DEFAULT_MODELS", "DEFAULT_TRAIN", "Task", "compare"]

DEFAULT_MODELS = (
    "logistic",
    "forest",
    "boosting",
    "knn",
    "label-spreading",
    "self-training",
    "mlp",
    "lp",
    "sgc",
    "gcn",
    "gat",
    "graphsage",
    "appnp",
    "correct-smooth",
    "gcn-knn",
    "sgformer",
    "difformer",
    "difformer-g",
    "difformer-s",
    "difformer-a",
    "difformer-sharp",
)
DEFAULT_TRAIN = {"epochs": 300, "patience": 100}


def compare(
    dataset: str | Dataset,
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    splits: int | Sequence[Split] = 10,
    trials: int = 0,
    train: Mapping[str, Any] | None = None,
    data_dir: Path | str | None = None,
    folder: Path | str | None = None,
    workers: int | None = None,
    look: Look | None = None,
) -> Comparison:
    """Run every system on every split; one that cannot run or crashes has a row that says so.

    Args:
        dataset: a name, or the data itself.
        models: names in `SYSTEMS`.
        splits: how many, or which.
        trials: settings tried on each split by its validation rows, the same number for every
            system; 0 takes the registry's settings.
        train: options of the loop, the same for every system.
        folder: where results are kept and found again; None for nowhere.
        workers: processes side by side, one thread each; None for one per core, 0 to run in this
            process (memory is then not measured).
        look: called with a line when something has finished.
    """
    from difformer.data.registry import load_dataset
    from difformer.experiments.sources import splits_of
    from difformer.train.objective import objective_for
    from difformer.train.run import agree_config

    for name in models:
        get_system(name)
    if len(set(models)) != len(models) or not models:
        raise ValueError(f"models must be one or more different names, got {', '.join(models)}")
    if trials < 0:
        raise ValueError(f"trials must be 0 or more, got {trials}")
    data = load_dataset(dataset, data_dir) if isinstance(dataset, str) else dataset
    chosen = splits_of(data, splits) if isinstance(splits, int) else list(splits)
    options = {**DEFAULT_TRAIN, **(train or {})}
    monitor = objective_for(data.task).monitor
    with TemporaryDirectory() if folder is None else nullcontext(folder) as place:
        root = Path(place)
        seen = {"fingerprint": data.fingerprint}
        asked = {"dataset": data.name, "data": seen, "trials": trials, "train": options}
        agree_config(root, asked)
        tasks = [
            Task(name, data, tuple(chosen), trials, options, root / name, monitor.name)
            for name in models
        ]
        waiting = [task for task in tasks if not task.complete()]
        run_all(waiting, workers, look or (lambda line: None))
        rows = tuple(task.row() for task in tasks)
    return Comparison(
        dataset=data.name,
        metric=monitor.name,
        direction=monitor.direction,
        splits=tuple(split.name for split in chosen),
        trials=trials,
        rows=rows,
        has_graph=data.edge_index is not None,
    )


@dataclass(frozen=True)
class Task:
    """What one process does: a system on all splits."""

    system: str
    data: Dataset
    splits: tuple[Split, ...]
    trials: int
    train: Mapping[str, Any]
    folder: Path
    metric: str
    threads: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The read-only mapping of a dataset's splits does not travel to another process, and torch
        # warns of every sparse tensor that does.
        from difformer.data.convert import scipy_csr

        x = self.data.x
        parts = {f.name: getattr(self.data, f.name) for f in fields(self.data)}
        parts |= {"splits": dict(self.data.splits), "x": scipy_csr(x) if x.is_sparse_csr else x}
        return {**vars(self), "data": parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from difformer.data.convert import csr_tensor
        from difformer.data.dataset import Dataset

        parts: dict[str, Any] = {**state["data"]}
        if hasattr(parts["x"], "tocsr"):
            parts["x"] = csr_tensor(parts["x"])
        vars(self).update({**state, "data": Dataset(**parts)})

    def row(self) -> Row:
        """What its folder holds; a split without a file is an error of its process."""
        about = self._read("system")
        runs: dict[str, Mapping[str, Any]] = {}
        errors: dict[str, str] = {}
        for split in self.splits:
            record = self._read(split.name)
            if record and "error" not in record:
                runs[split.name] = record
            elif about.get("cannot") is None:
                errors[split.name] = record.get("error", about.get("died", "not run"))
        return Row(self.system, runs, about.get("memory"), about.get("cannot"), errors)

    def complete(self) -> bool:
        """Whether nothing is left to run."""
        row = self.row()
        return row.cannot is not None or len(row.runs) == len(self.splits)

    def run(self) -> None:
        """Run the system on the splits that have no file yet; an error on one is written down."""
        import torch

        from difformer.experiments.run import CannotRunError
        from difformer.train.memory import memory_from_here

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # before the work
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        most: int = self._read("system").get("memory", 0)
        taken, done = memory_from_here(), self.row().runs
        for split in (split for split in self.splits if split.name not in done):
            try:
                record = _run_split(self, split)
            except CannotRunError as error:
                self.write("system", {"cannot": str(error)})
                return
            except Exception as error:
                record = {"error": f"{type(error).__name__}: {one_line(error, 500)}"}
            memory = taken()
            if self.threads is not None and memory is not None:  # a process of its own
                most = max(most, memory)
                self.write("system", {"memory": most})
            self.write(split.name, {"split": split.name, **record})

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep what is known of a split, or of the system."""
        write_json(self._path(name), record, indent=1)

    def _read(self, name: str) -> dict[str, Any]:
        path = self._path(name)
        return read_json(path) if path.exists() else {}

    def _path(self, name: str) -> Path:
        return self.folder / f"{plain_name(name)}.json"


def _run_split(task: Task, split: Split) -> dict[str, Any]:
    from difformer.experiments.experiment import Experiment, recipe_for
    from difformer.experiments.run import run_experiment
    from difformer.experiments.tune import tune

    graph = task.data.edge_index is not None
    experiment = Experiment.make(
        task.data.name,
        system=task.system,
        recipe=recipe_for(task.system, None, graph=graph),
        split=split.name,
        train=task.train,
    )
    started, tried = time.monotonic(), 0
    if task.trials:
        storage = task.folder / "trials.sqlite"
        found = tune(
            experiment, trials=task.trials, dataset=task.data, split=split, storage=storage
        )
        experiment, tried = found.tuned(), len(found.trials)
    tuning = time.monotonic() - started
    result = run_experiment(experiment, dataset=task.data, split=split)
    if result.interrupted:
        raise KeyboardInterrupt
    fit = next(iter(result.results.values()))
    test = fit.metrics["test"]
    probabilities = {"log_loss": test["loss"], "ece": test["ece"]} if "ece" in test else {}
    return {
        "val": fit.metrics.get("val", {}).get(task.metric),
        "test": test[task.metric],
        **probabilities,
        "seconds": round(fit.seconds, 2),
        "tuning_seconds": round(tuning, 2),
        "trials": tried,
        "epochs": fit.epochs,
        "model": dict(experiment.model),
        "train": {"lr": experiment.train.lr, "weight_decay": experiment.train.weight_decay},
    }

"""Compare systems on the same splits with the same tuning budget.

Each system runs in a process of its own, so that its memory can be measured and a crash does not
affect the others. A folder keeps a JSON file for each system and split: the same call resumes it.

FOLDER/config.toml           what was asked for; another call there must ask for the same
FOLDER/SYSTEM/SPLIT.json     one run: validation, test, log loss, seconds, the settings used
FOLDER/SYSTEM/system.json    peak memory, or why the system cannot run
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

from difformer.compare.comparison import Comparison, Row
from difformer.errors import RunError
from difformer.files import cannot_write, one_line, plain_name, read_json, write_json
from difformer.systems.registry import get_system

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split


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
Look = Callable[[str], None]


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
    from difformer.jobs.rows import splits_of
    from difformer.train.folder import agree_config
    from difformer.train.objective import objective_for

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
        run_all([task for task in tasks if task.row().errors], workers, look or (lambda line: None))
        rows = tuple(task.row() for task in tasks)
    return Comparison(
        dataset=data.name,
        metric=monitor.name,
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

    def row(self) -> Row:
        """What its folder holds; a split without a file is an error of its process."""
        about = self._read("system")
        records = {split.name: self._read(split.name) for split in self.splits}
        runs = {name: each for name, each in records.items() if each and "error" not in each}
        died, cannot = about.get("died", "not run"), about.get("cannot")
        left = {} if cannot is not None else {k: v for k, v in records.items() if k not in runs}
        errors = {name: each.get("error", died) for name, each in left.items()}
        return Row(self.system, runs, about.get("memory"), cannot, errors)

    def run(self, look: Look, *, alone: bool = False) -> None:
        """Run the system on the splits that have no file yet; an error on one is written down.

        Args:
            alone: whether nothing else is in this process, which is then measured.
        """
        from difformer.jobs.rows import CannotRunError
        from difformer.train.memory import memory_from_here

        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # before the work
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        most: int = self._read("system").get("memory", 0)
        taken, left = memory_from_here(), self.row().errors
        for split in (split for split in self.splits if split.name in left):
            try:
                record = _run_split(self, split)
            except CannotRunError as error:
                self.write("system", {"cannot": str(error)})
                break
            except Exception as error:
                record = {"error": f"{type(error).__name__}: {one_line(error, 500)}"}
            if alone and (memory := taken()) is not None:
                most = max(most, memory)
                self.write("system", {"memory": most})
            self.write(split.name, {"split": split.name, **record})
            done = len(self.row().runs)
            if "error" not in record and done < len(self.splits):
                look(f"{self.system}: {done} of {len(self.splits)} splits")
        look(f"{self.system}: done")

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep what is known of a split, or of the system."""
        write_json(self._path(name), record, indent=1)

    def _read(self, name: str) -> dict[str, Any]:
        path = self._path(name)
        return read_json(path) if path.exists() else {}

    def _path(self, name: str) -> Path:
        return self.folder / f"{plain_name(name)}.json"


def _run_split(task: Task, split: Split) -> dict[str, Any]:
    from difformer.compare.tune import tune
    from difformer.jobs.job import Experiment, recipe_for
    from difformer.jobs.rows import run_experiment

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
    fit = next(iter(result.fits.values()))
    test = fit.metrics["test"]
    probabilities = {"log_loss": test["loss"], "ece": test["ece"]} if "ece" in test else {}
    return {
        "val": fit.metrics.get("val", {}).get(task.metric),
        "test": test[task.metric],
        **probabilities,
        "seconds": round(fit.seconds or 0.0, 2),
        "tuning_seconds": round(tuning, 2),
        "trials": tried,
        "epochs": fit.epochs,
        "model": dict(experiment.model),
        "train": {"lr": experiment.train.lr, "weight_decay": experiment.train.weight_decay},
    }


def run_all(waiting: Sequence[Task], workers: int | None, look: Look) -> None:
    """Run every task; `workers` at a time, or in this process if it is 0.

    A process says what it has done through a pipe, which ends when it does, however that ends.
    """
    waiting = list(waiting)
    if workers == 0:
        for task in waiting:
            task.run(look)
        return
    limit = workers or min(os.cpu_count() or 1, len(waiting) or 1)
    context, running = multiprocessing.get_context("spawn"), dict[Any, tuple[Task, Any]]()
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                task, (said, end) = waiting.pop(0), context.Pipe(duplex=False)
                process = context.Process(target=run_in_child, args=(task, end), name=task.system)
                process.start()
                end.close()  # the child has its own
                running[said] = task, process
            for said in cast("list[Any]", wait(list(running))):
                try:
                    line = said.recv()
                except (EOFError, OSError):  # it may end in the middle of a line
                    _ended(*running.pop(said), look)
                    continue
                if isinstance(line, RunError):
                    raise line
                look(line)
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()


def _ended(task: Task, process: Any, look: Look) -> None:
    """Write down that a process ended before its task, if it did."""
    process.join()
    if code := process.exitcode:
        # Killed from outside, most often by a lack of memory: no file says so.
        task.write("system", {"died": f"its process ended with code {code}"})
        look(f"{task.system}: crashed")


def run_in_child(task: Task, end: Any) -> None:
    """Run a task in a child process; the parent is told of a disk that cannot be written."""
    import torch

    Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        task.run(end.send, alone=True)
    except RunError as error:
        end.send(error)


def end_with_parent() -> None:
    """Wait for the end of the parent, which may be killed, and end this process with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

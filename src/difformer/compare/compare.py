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
from dataclasses import dataclass, fields, replace
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

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
        waiting = [task for task in tasks if not task.complete()]
        run_all(waiting, workers, look or (lambda line: None))
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
    threads: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The read-only mapping of a dataset's splits does not travel to another process, and torch
        # warns of every sparse tensor that does.
        from difformer.data.dataset import scipy_csr

        x = self.data.x
        parts = {f.name: getattr(self.data, f.name) for f in fields(self.data)}
        parts |= {"splits": dict(self.data.splits), "x": scipy_csr(x) if x.is_sparse_csr else x}
        return {**vars(self), "data": parts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from difformer.data.dataset import Dataset, csr_tensor

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

        from difformer.jobs.rows import CannotRunError
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


Look = Callable[[str], None]


def run_all(waiting: Sequence[Task], workers: int | None, look: Look) -> None:
    """Run every task; `workers` at a time, or in this process if it is 0."""
    waiting = list(waiting)
    if workers == 0:
        for task in waiting:
            task.run()
            look(f"{task.system}: done")
        return
    limit = workers or min(os.cpu_count() or 1, len(waiting) or 1)
    running: list[Worker] = []
    try:
        while waiting or running:
            while waiting and len(running) < limit:
                running.append(Worker(replace(waiting.pop(0), threads=1), look))
            wait([worker.process.sentinel for worker in running], timeout=0.2)
            for worker in running:
                worker.tell()
            running = [worker for worker in running if not worker.ended()]
    finally:
        for worker in running:
            worker.process.terminate()
            worker.process.join()


class Worker:
    """A process that runs one task; it ends when this process does, however that ends."""

    def __init__(self, task: Task, look: Look) -> None:
        context = multiprocessing.get_context("spawn")
        self.task, self.look, self.told = task, look, 0
        self.trouble = context.SimpleQueue()
        arguments = (task, self.trouble)
        self.process = context.Process(target=run_in_child, args=arguments, name=task.system)
        self.process.start()

    def tell(self) -> None:
        """Say how many splits are done, when that has changed."""
        done = len(self.task.row().runs)
        if done not in (self.told, len(self.task.splits)):
            self.told = done
            self.look(f"{self.task.system}: {done} of {len(self.task.splits)} splits")

    def ended(self) -> bool:
        """Whether the process has ended; RunError if it could not write its results."""
        if self.process.is_alive():
            return False
        self.process.join()
        code = self.process.exitcode
        if not self.trouble.empty():
            raise RunError(self.trouble.get())
        if code:
            # Killed from outside, most often by a lack of memory: no file says so.
            self.task.write("system", {"died": f"its process ended with code {code}"})
        self.look(f"{self.task.system}: {'crashed' if code else 'done'}")
        return True


def run_in_child(task: Task, trouble: Any) -> None:
    """Run a task in a child process; the parent is told of a disk that cannot be written."""
    Thread(target=end_with_parent, daemon=True).start()
    try:
        task.run()
    except RunError as error:
        trouble.put(str(error))


def end_with_parent() -> None:
    """Wait for the end of the parent, which may be killed, and end this process with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)

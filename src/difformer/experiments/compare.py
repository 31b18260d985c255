"""Compare systems on the same splits with the same tuning budget, and say which is enough.

Each system runs in a process of its own, so that its memory is its own and one that crashes takes
nothing with it. A folder keeps a JSON file for each system and split: the same call goes on.

FOLDER/config.toml           what was asked for; another call there must ask for the same
FOLDER/SYSTEM/SPLIT.json     one run: validation, test, log loss, seconds, the settings used
FOLDER/SYSTEM/system.json    peak memory, or why the system cannot run
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

from difformer.baselines.registry import get_system
from difformer.errors import RunError
from difformer.experiments.statistics import Difference, paired_difference, spread

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

__all__ = ["DEFAULT_MODELS", "Comparison", "Row", "compare", "end_with_parent", "splits_of"]

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
)
DEFAULT_TRAIN = {"epochs": 300, "patience": 100}

Look = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One system: a record for each split that was run, and what it took."""

    system: str
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    memory: int | None = None  # bytes above an idle process
    cannot: str | None = None  # why it cannot run here
    errors: Mapping[str, str] = field(default_factory=dict[str, str])  # split -> what happened

    @property
    def title(self) -> str:
        return get_system(self.system).title

    def values(self, part: str) -> dict[str, float]:
        """The metric of one part, by split."""
        return {name: run[part] for name, run in self.runs.items() if run.get(part) is not None}

    @property
    def seconds(self) -> float | None:
        """Mean training time of a run."""
        times = [run["seconds"] for run in self.runs.values()]
        return sum(times) / len(times) if times else None


@dataclass(frozen=True)
class Comparison:
    """The rows of all systems, on the same splits, and what they say."""

    dataset: str
    metric: str
    direction: str
    splits: tuple[str, ...]
    trials: int
    rows: tuple[Row, ...]
    has_graph: bool

    def ranked(self) -> list[Row]:
        """The systems that ran on every split, best mean test first."""
        sign = -1 if self.direction == "max" else 1
        whole = [row for row in self.rows if set(row.values("test")) >= set(self.splits)]
        return sorted(whole, key=lambda row: sign * spread(list(row.values("test").values()))[0])

    def difference(self, ours: Row, theirs: Row) -> Difference:
        """How much better ours is, over the splits both have; positive is better."""
        a, b = ours.values("test"), theirs.values("test")
        both = [s for s in self.splits if s in a and s in b]
        sign = 1.0 if self.direction == "max" else -1.0
        return paired_difference([sign * a[s] for s in both], [sign * b[s] for s in both])

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured, and the verdict."""
        from difformer.experiments.verdict import verdict

        ranked = self.ranked()
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            test = list(row.values("test").values())
            record: dict[str, Any] = {**asdict(row), "title": row.title, "seconds": row.seconds}
            record["mean"], record["std"] = spread(test) if test else (None, None)
            if ranked and test:
                record["behind_best"] = asdict(self.difference(row, ranked[0]))
            rows.append(record)
        return {
            "dataset": self.dataset,
            "metric": self.metric,
            "direction": self.direction,
            "has_graph": self.has_graph,
            "splits": list(self.splits),
            "trials": self.trials,
            "rows": rows,
            "verdict": verdict(self),
        }


def splits_of(data: Dataset, number: int, kind: str = "auto") -> list[Split]:
    """The splits to compare on: those that come with the data if enough, else random ones."""
    if number < 1:
        raise ValueError(f"splits must be at least 1, got {number}")
    own = list(data.splits.values())
    if kind == "auto" and len(own) >= number:
        return own[:number]
    if kind not in ("auto", "random", "ratio"):
        raise ValueError(f"kind must be auto, random or ratio, got {kind!r}")
    if kind != "ratio" and data.task == "multiclass":
        try:
            return [data.split(f"random:{seed}") for seed in range(number)]
        except ValueError:
            if kind == "random":
                raise
    return [data.split(f"ratio:0.5/0.25/0.25:{seed}") for seed in range(number)]


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
        _agree(root, data, trials, options)
        tasks = [
            Task(name, data, tuple(chosen), trials, options, root / name, monitor.name)
            for name in models
        ]
        _run_all(tasks, workers, look or (lambda line: None))
        rows = tuple(read_row(task.folder, task.system, chosen) for task in tasks)
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


def run_task(task: Task) -> None:
    """Run a system on the splits that have no file yet; an error on one of them is written down."""
    import torch

    from difformer.experiments.run import CannotRunError
    from difformer.train.memory import memory_from_here

    if task.threads is not None:
        torch.set_num_threads(task.threads)
    _make_folder(task.folder)
    about = task.folder / "system.json"
    most: int = _read(about).get("memory", 0)
    taken = memory_from_here()
    for split in task.splits:
        path = task.folder / f"{file_name(split)}.json"
        if path.exists() and "error" not in json.loads(path.read_text(encoding="utf-8")):
            continue
        try:
            record = _run_split(task, split)
        except CannotRunError as error:
            _write(about, {"cannot": str(error)})
            return
        except Exception as error:
            record = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]}
        memory = taken()
        if task.threads is not None and memory is not None:  # a process of its own, which says it
            most = max(most, memory)
            _write(about, {"memory": most})
        _write(path, {"split": split.name, **record})


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


def read_row(folder: Path, system: str, splits: Sequence[Split]) -> Row:
    """A system's row from its folder; a split without a file is an error of its process."""
    found = _read(folder / "system.json")
    runs: dict[str, Mapping[str, Any]] = {}
    errors: dict[str, str] = {}
    for split in splits:
        path = folder / f"{file_name(split)}.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        if record is not None and "error" not in record:
            runs[split.name] = record
        elif found.get("cannot") is None:
            errors[split.name] = record["error"] if record else found.get("died", "not run")
    return Row(system, runs, found.get("memory"), found.get("cannot"), errors)


def _run_all(tasks: Sequence[Task], workers: int | None, look: Look) -> None:
    waiting = [task for task in tasks if not _complete(task)]
    if workers == 0:
        for task in waiting:
            run_task(task)
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
        done = len(read_row(self.task.folder, self.task.system, self.task.splits).runs)
        if done not in (self.told, len(self.task.splits)):
            self.told = done
            self.look(f"{self.task.system}: {done} of {len(self.task.splits)} splits")

    def ended(self) -> bool:
        """Whether the process is over; RunError where it could not write its results."""
        if self.process.is_alive():
            return False
        self.process.join()
        code = self.process.exitcode
        if not self.trouble.empty():
            raise RunError(self.trouble.get())
        if code:
            # Killed from outside, most often by a lack of memory: no file says so.
            _write(
                self.task.folder / "system.json", {"died": f"its process ended with code {code}"}
            )
        self.look(f"{self.task.system}: {'crashed' if code else 'done'}")
        return True


def run_in_child(task: Task, trouble: Any) -> None:
    """Run a task in a process of its own; a disk that cannot be written is told to the parent."""
    Thread(target=end_with_parent, daemon=True).start()
    try:
        run_task(task)
    except RunError as error:
        trouble.put(str(error))


def end_with_parent() -> None:
    """Wait for the end of the parent, which may be killed, and end this process with it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _complete(task: Task) -> bool:
    row = read_row(task.folder, task.system, task.splits)
    return row.cannot is not None or set(row.runs) == {split.name for split in task.splits}


def _agree(root: Path, data: Dataset, trials: int, train: Mapping[str, Any]) -> None:
    from difformer.train.run import agree_config

    seen = {"fingerprint": data.fingerprint}
    agree_config(root, {"dataset": data.name, "data": seen, "trials": trials, "train": {**train}})


def file_name(split: Split) -> str:
    """A split's name as a file's."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in split.name)


def _make_folder(folder: Path) -> None:
    from difformer.files import cannot_write

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from error


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write(path: Path, record: Mapping[str, Any]) -> None:
    from difformer.files import write_atomic

    _make_folder(path.parent)
    write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())

"""Load a finished run from its folder, whatever was trained."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from difformer.data.dataset import Dataset, Prediction
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.errors import RunError
from difformer.estimators.outcome import Outcome
from difformer.estimators.rows import dataset_features
from difformer.files import reading
from difformer.jobs.job import FINGERPRINT, KEYS, Experiment, complete
from difformer.jobs.rows import graph_for, last_snapshot, load_data, make_source, snapshots_for
from difformer.nn.model import DIFFormer
from difformer.runs.run import need_kind, seed_folders
from difformer.systems.registry import SYSTEMS, get_system
from difformer.train.batches import Snapshots
from difformer.train.folder import FitResult, RunFolder, read_config, read_result
from difformer.train.seeding import seeded

if TYPE_CHECKING:
    from difformer.jobs.own import OwnRun
    from difformer.nn.frozen import FrozenDIFFormer


@dataclass(frozen=True)
class LoadedRun:
    """A finished run of any kind: its model, with the data it was trained on."""

    folder: Path
    model: nn.Module  # the best epoch's weights, in eval mode
    dataset: Dataset  # with the features that the model sees
    split: Split
    graph: Any | None  # the core.Graph the model was given; None for snapshots, which have theirs
    result: FitResult
    system: str
    estimator: Any | None = None  # of a run on a table or a series, or of the system "difformer"
    own: OwnRun | None = None  # of a run on a table: its answers by name
    table: Dataset | None = None  # of a run on a table: the rows as they were read
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])  # series.json of a series
    whole: LoadedRun | None = None  # the run that this is a part of, see `look_inside`

    @property
    def title(self) -> str:
        """One short line for a table."""
        return f"{get_system(self.system).title} on {self.dataset.name}"

    @property
    def outcome(self) -> Outcome:
        """What the model's outputs mean: logits of classes, logits of labels, or numbers."""
        task = self.dataset.task
        return Outcome(task, (self.dataset.num_outputs,) if task == "multiclass" else ())

    @cached_property
    def output(self) -> Tensor:
        """(n, c) what the whole run answers for these rows: logits, or numbers in their units."""
        data = self.dataset
        if self.whole is not None:
            return self.whole.output[-data.num_rows :]
        if self.own is not None and data.task == "regression":
            return torch.as_tensor(self.own.estimator.transduction_).reshape(data.num_rows, -1)
        with torch.no_grad():
            if isinstance(data, TemporalDataset):
                return Snapshots(data, self.split).evaluate(self.model)
            found: Tensor | Prediction = self.model(data.x, self.graph, None, None)
        found = found if isinstance(found, Tensor) else found.output
        return found.unsqueeze(1) if found.ndim == 1 else found

    @property
    def class_names(self) -> list[str]:
        """A name for each class."""
        given = self.dataset.class_names
        return [*given, *(f"class {i}" for i in range(len(given), self.output.shape[1]))]

    def look_inside(self) -> LoadedRun:
        """What is looked into: one member of an average, the last of snapshots, else all."""
        data, model = self.dataset, self.model
        if hasattr(model, "fitted"):  # the system "difformer", which averages several forms
            model, data, graph = look_into(self.estimator, data)
            system = _system_of(model)
            return replace(self, model=model, dataset=data, graph=graph, system=system, whole=self)
        if not isinstance(data, TemporalDataset):
            return self
        one, graph = last_snapshot(data)
        first, n = data.num_rows - data.num_nodes, data.num_nodes
        parts = (self.split.train, self.split.val, self.split.test)
        train, val, test = (torch.arange(n if bool((p == first).any()) else 0) for p in parts)
        split = Split("snapshot", train, val, test)
        return replace(self, dataset=one, graph=graph, split=split, whole=self)

    @property
    def note(self) -> str:
        """Which part of a run this is."""
        if self.whole is None:
            return ""
        data = self.whole.dataset
        if isinstance(data, TemporalDataset):
            return f"Of the last of {data.num_snapshots:,} snapshots: snapshots do not interact."
        told: Any = self.whole
        text = f"{told.model.choice}. What follows is of {told.estimator.shown_member.name}."
        return text[:1].upper() + text[1:]

    def freeze(self) -> FrozenDIFFormer:
        """The model with its rows frozen, in double precision, to answer for new rows."""
        if not isinstance(self.model, DIFFormer) or isinstance(self.dataset, TemporalDataset):
            raise RunError(
                f"{self.folder} holds {self.system} on {self.dataset.name}: this needs a DIFFormer "
                "on rows; train with --model difformer-s, or a series with --series"
            )
        graph = self.graph
        graph = None if graph is None else graph.to(torch.zeros(0, dtype=torch.float64))
        return self.model.double().freeze(self.dataset.x.double(), graph)


def load_run(
    folder: Path | str,
    *,
    seed: int | None = None,
    dataset: Dataset | None = None,
    data_dir: Path | str | None = None,
) -> LoadedRun:
    """Load a run folder: the model, the estimator if one was fitted, and the data.

    The data is loaded again by its name or file, and must be the same. A comparison and a result
    file hold no model, and a run on shards keeps its answers in files: each is a RunError.

    Args:
        folder: a run folder of `difformer train`.
        seed: which run of a folder with several seeds; None for the first.
        dataset: the data, if it is already loaded.
        data_dir: where datasets are.

    Returns:
        A run with its ``model``, ``dataset``, ``split``, ``graph`` and ``result`` (the metrics). A
        run on a table or a series, or of the system "difformer", also has its fitted
        ``estimator``; one on a table has the rows as they were read in ``table``.
    """
    folder = Path(folder)
    with reading(folder):
        kind = need_kind(folder, ("dataset", "table", "series"), "its model")
        if kind == "table":
            from difformer.jobs.own import OwnRun

            return open_table(folder, OwnRun.load(folder), dataset)
        if kind == "series":
            return _load_series(folder)
        return _load_dataset(_of_seed(folder, seed), dataset, data_dir)


def _load_dataset(path: Path, dataset: Dataset | None, data_dir: Path | str | None) -> LoadedRun:
    result = _finished(path)
    kept = read_config(path / "config.toml")
    asked: dict[str, Any] = {key: kept[key] for key in ("dataset", *kept) if key in KEYS}
    asked["train"] = complete(kept.get("train", {}))
    experiment = Experiment.make(**asked)
    data = load_data(experiment, data_dir) if dataset is None else dataset
    if kept.get(FINGERPRINT, data.fingerprint) != data.fingerprint:
        raise RunError(f"{experiment.dataset} has changed since {path} was trained on it")
    split = Split.load(path / "split.json").check(data.num_rows)
    system = get_system(experiment.system)
    options = system.configure(**experiment.model)
    graph = graph_for(system, options, data)
    with seeded(experiment.train.seed):
        model = system.build(options, data.num_features, data.num_outputs)
    observe = getattr(model, "observe", None)
    if observe is not None:
        observe(make_source(system, data, split, graph).observed())
    files = RunFolder(path, {}, split, writes=False)
    if not files.model.exists():
        raise RunError(f"{path} has no model.safetensors: run it again")
    files.load_model(model)
    if isinstance(data, TemporalDataset):
        data = snapshots_for(system, data)
    fitted = getattr(model, "fitted", None)
    return LoadedRun(path, model.eval(), data, split, graph, result, system.name, fitted)


def open_table(folder: Path, own: OwnRun, dataset: Dataset | None = None) -> LoadedRun:
    """A run on a table with the rows it was trained on, which are read again unless given."""
    from difformer.data.table.read import read_table

    asked = read_config(folder / "config.toml")["data"]
    fingerprint = asked.pop(FINGERPRINT)
    dataset = read_table(**asked) if dataset is None else dataset
    if dataset.fingerprint != fingerprint:
        raise RunError(f"{asked['nodes']} has changed since {folder} was trained on it")
    split = own.estimator.split_.check(dataset.num_rows)
    model, seen, graph = look_into(own.estimator, dataset)
    told = _finished(folder), _system_of(model), own.estimator, own, dataset
    return LoadedRun(folder, model, seen, split, graph, *told)


def look_into(estimator: Any, data: Dataset) -> tuple[DIFFormer, Dataset, Any | None]:
    """The member of an estimator that is shown, the rows as it sees them, and its graph."""
    member = estimator.shown_member
    seen = replace(data, x=member.seen(dataset_features(data)).float())
    graph = None if member.frozen.num_known is None else estimator.graph_
    return deepcopy(member.frozen.model).float().eval(), seen, graph


def _load_series(folder: Path) -> LoadedRun:
    from difformer.jobs.series import open_series

    forecaster, record = open_series(folder)
    model = forecaster.model_
    data = replace(forecaster.snapshots(), name=Path(record["series"]).name)
    split = Split.load(folder / "split.json").check(data.num_rows)
    told = _finished(folder), _system_of(model), forecaster
    return LoadedRun(folder, model, data, split, None, *told, record=record)


def _system_of(model: DIFFormer) -> str:
    """The registered system with this kernel, for titles."""
    kernels = {each.defaults.get("kernel"): name for name, each in SYSTEMS.items()}
    return kernels.get(model.config.kernel, "difformer-s")


def _finished(path: Path) -> FitResult:
    result = read_result(path)
    if result is None:
        raise RunError(f"{path} has no result.json yet: finish the run, or give another folder")
    return result


def _of_seed(folder: Path, seed: int | None) -> Path:
    """The folder of one seed's run: the folder itself, or its subfolder."""
    if (folder / "model.safetensors").exists() and seed is None:
        return folder
    found = [path for path in seed_folders(folder) if seed is None or path.name == f"seed-{seed}"]
    if not found:
        wanted = "model.safetensors" if seed is None else f"seed-{seed}"
        raise RunError(f"{folder} is not a run folder: it has no {wanted}")
    return found[0]

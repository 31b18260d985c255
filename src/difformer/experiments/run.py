"""Run experiments, and load finished runs from their folders.

`train`, `reproduce`, `compare`, `tune` and `demo` all use `run_experiment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from difformer.baselines.registry import get_system
from difformer.baselines.system import System
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.rawtable import ENDINGS
from difformer.data.registry import load_dataset
from difformer.data.shards.manifest import is_shards
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.errors import DifformerError, RunError
from difformer.experiments.experiment import AUTO_SPLIT, FINGERPRINT, KEYS, Experiment
from difformer.experiments.forecast import RECORD as SERIES
from difformer.experiments.forecast import open_series
from difformer.experiments.sources import (
    data_objective,
    make_source,
    snapshots_for,
    whole_graph,
)
from difformer.files import reading
from difformer.nn.model import DIFFormer
from difformer.tensorfiles import read_tensors
from difformer.train.batches import Source
from difformer.train.callbacks import Callback
from difformer.train.checkpoint import load_weights
from difformer.train.chunks import recompute_layers
from difformer.train.distributed import fit_distributed, processes
from difformer.train.launch import launched
from difformer.train.loop import fit
from difformer.train.memory import available_memory, keep_freed_memory
from difformer.train.objective import Objective
from difformer.train.run import FitResult, read_config, read_result
from difformer.train.seeding import seeded
from difformer.train.seeds import SeedsResult, fit_seeds

__all__ = [
    "Callbacks",
    "CannotRunError",
    "LoadedRun",
    "build_model",
    "choose_split",
    "last_snapshot",
    "limit_rows",
    "load_data",
    "load_run",
    "run_experiment",
    "run_of_seed",
    "with_neighbours",
]

Callbacks = Callable[[int], Sequence[Callback]]


class CannotRunError(DifformerError):
    """A system cannot run on this data, with the reason."""


def run_experiment(
    experiment: Experiment,
    *,
    dataset: Dataset | None = None,
    split: Split | None = None,
    data_dir: Path | str | None = None,
    folder: Path | str | None = None,
    callbacks: Callbacks | None = None,
    objective: Objective | None = None,
) -> SeedsResult:
    """Train a system with each seed; mean ± deviation, and every seed's own result.

    With a folder the run is stored and resumed as in `fit`: one seed in the folder itself, several
    in one subfolder each.

    Args:
        dataset: the data if it is already loaded; else it is loaded by name.
        split: the split itself, if no short string describes it; else that of ``experiment.split``.
        callbacks: the callbacks of each seed's fit.
        objective: what is minimised and reported; None for that of the data's task.

    Raises:
        CannotRunError: the system needs something the data lacks, or more memory than is free.
    """
    keep_freed_memory()
    data = load_data(experiment, data_dir) if dataset is None else dataset
    split = choose_split(data, experiment.split) if split is None else split.check(data.num_rows)
    experiment = replace(experiment, split=split.name)
    system, options = get_system(experiment.system), _configured(experiment)
    _check_fits(system, options, data)
    graph = whole_graph(system, options, data)
    config = _kept(experiment, data, folder)

    def make(seed: int) -> tuple[nn.Module, Source, Split]:
        model = build_model(experiment, data.num_features, data.num_outputs)
        own = replace(experiment.train, seed=seed)
        return model, make_source(system, data, split, graph, own), split

    objective, settings = objective or data_objective(data), experiment.train
    if launched():
        return _over_processes(experiment, data, split, graph, folder, config, callbacks)
    if len(experiment.seeds) > 1:
        return fit_seeds(
            make,
            objective,
            settings,
            seeds=experiment.seeds,
            folder=folder,
            config=config,
            callbacks=callbacks,
        )
    seed = next(iter(experiment.seeds))
    with seeded(seed):
        model, source, _ = make(seed)
    result = fit(
        model,
        source,
        objective,
        split,
        replace(settings, seed=seed),
        folder=folder,
        config=config,
        callbacks=() if callbacks is None else callbacks(seed),
    )
    return SeedsResult({seed: result}, result.interrupted, None if folder is None else Path(folder))


def _kept(experiment: Experiment, data: Dataset, folder: Path | str | None) -> dict[str, Any]:
    """What config.toml holds: a run is resumed only with the same settings and data."""
    kept = experiment.config()
    return kept if folder is None else {**kept, FINGERPRINT: data.fingerprint}


def build_model(experiment: Experiment, features: int, outputs: int) -> nn.Module:
    """An untrained model of an experiment."""
    system = get_system(experiment.system)
    model = system.build(_configured(experiment), features, outputs)
    if not experiment.train.recompute:
        return model
    if not isinstance(model, DIFFormer):
        raise CannotRunError(f"{system.name} cannot be recomputed: only DIFFormer's layers are")
    return recompute_layers(model)


def _over_processes(
    experiment: Experiment,
    data: Dataset,
    split: Split,
    graph: Any | None,
    folder: Path | str | None,
    config: dict[str, Any],
    callbacks: Callbacks | None,
) -> SeedsResult:
    """The run of one seed spread over the processes that torchrun started."""
    seed, system = experiment.seeds[0], get_system(experiment.system)
    if len(experiment.seeds) > 1:
        raise ValueError(f"seeds must be one over processes, got {len(experiment.seeds)}")
    with seeded(seed):
        model = build_model(experiment, data.num_features, data.num_outputs)
    if not isinstance(model, DIFFormer):
        raise CannotRunError(f"{system.name} cannot run over processes: only DIFFormer is sharded")
    if isinstance(data, TemporalDataset):
        raise CannotRunError(f"{data.name} cannot be spread over processes: it has snapshots")
    settings = replace(experiment.train, seed=seed)
    with processes() as comm:
        result = fit_distributed(
            model,
            data,
            split,
            settings,
            comm,
            graph=graph,
            folder=folder,
            config=config,
            callbacks=() if callbacks is None else callbacks(seed),
        )
    return SeedsResult({seed: result}, result.interrupted, None if folder is None else Path(folder))


def load_data(experiment: Experiment, data_dir: Path | str | None = None) -> Dataset:
    """The dataset an experiment names, with the options in ``experiment.data``.

    ``sample = n`` takes at most n rows, see `limit_rows`. ``neighbours = k`` joins each row to its
    k nearest by features (``metric``: "cosine" or "euclidean") where the data has no graph. The
    others are `load_dataset`'s. In place of a name it may be a file: a table, with the options of
    `read_table` (``label``, ``id``, ``edges``), or a .pt file with a Data of PyG, without options.
    """
    options = dict(experiment.data)
    k, metric = options.pop("neighbours", None), options.pop("metric", "cosine")
    most = options.pop("sample", None)
    if Path(experiment.dataset).suffix.lower() in ENDINGS:
        from difformer.data.tables import read_table

        data = read_table(experiment.dataset, **options)
    elif Path(experiment.dataset).suffix.lower() == ".pt":
        from difformer.data.pyg import read_pyg

        if options:
            raise ValueError(f"{next(iter(options))} must be left out with a .pt file")
        data = read_pyg(experiment.dataset)
    else:
        data = load_dataset(experiment.dataset, data_dir, **options)
    data = data if most is None else limit_rows(data, most)
    return data if k is None else with_neighbours(data, k, metric)


def limit_rows(data: Dataset, most: int) -> Dataset:
    """A random subset of at most `most` rows (seed 0), without the graph."""
    if data.num_rows <= most:
        return data
    order = torch.randperm(data.num_rows, generator=torch.Generator().manual_seed(0))
    rows = order[:most].sort().values
    x = data.x if data.x.layout == torch.strided else data.x.to_dense()
    return Dataset(data.name, x[rows], data.y[rows], data.task, class_names=data.class_names)


def with_neighbours(data: Dataset, k: int, metric: str = "cosine") -> Dataset:
    """The data with edges between each row and its k nearest; ValueError if it has edges."""
    from difformer.data.neighbours import nearest_neighbours

    if data.edge_index is not None:
        raise ValueError(f"neighbours must be left out for {data.name}: it has a graph of its own")
    edges = nearest_neighbours(data.x, k, metric=metric)
    return replace(data, edge_index=torch.cat([edges, edges.flip(0)], dim=1))


def choose_split(data: Dataset, name: str) -> Split:
    """The named split; "auto" is the first that comes with the data, else a random one."""
    if name != AUTO_SPLIT:
        return data.split(name)
    if data.splits:
        return next(iter(data.splits.values()))
    if data.task == "multiclass":
        try:
            return data.split("random:0")
        except ValueError:  # too few rows for 20 per class and 1,500 more
            pass
    return data.split("ratio:0.5/0.25/0.25:0")


@dataclass(frozen=True)
class LoadedRun:
    """A finished run of any kind: its model, with the data it was trained on."""

    folder: Path
    model: nn.Module  # the best epoch's weights, in eval mode
    dataset: Dataset
    split: Split
    graph: Any | None  # the core.Graph the model was given; None for snapshots, which have theirs
    result: FitResult
    system: str = "difformer-s"
    estimator: Any | None = None  # of a run on a table or a series
    experiment: Experiment | None = None  # of a run on a dataset

    @property
    def title(self) -> str:
        """One short line for a table."""
        return f"{get_system(self.system).title} on {self.dataset.name}"


def load_run(
    folder: Path | str,
    *,
    seed: int | None = None,
    dataset: Dataset | None = None,
    data_dir: Path | str | None = None,
) -> LoadedRun:
    """Load a run folder: the model, the estimator if one was fitted, and the data.

    The data is loaded again by its name or file, and must be the same. For a folder with several
    seeds, the run of ``seed``, or of the first.
    """
    folder = Path(folder)
    with reading(folder):
        if (folder / "estimator.safetensors").exists():
            return _load_table(folder, dataset)
        if (folder / SERIES).exists():
            return _load_series(folder)
        return _load_dataset(run_of_seed(folder, seed), dataset, data_dir)


def _load_dataset(path: Path, dataset: Dataset | None, data_dir: Path | str | None) -> LoadedRun:
    result = _finished(path)
    kept = read_config(path / "config.toml")
    settings = {key: value for key, value in kept.items() if key in KEYS}
    experiment = Experiment.from_config(settings, str(path / "config.toml"))
    if dataset is None and is_shards(experiment.dataset):
        raise RunError(
            f"{path} was trained from shards: its answers are in {path}/predictions-*; pages and "
            "new answers need a run on data in memory"
        )
    data = load_data(experiment, data_dir) if dataset is None else dataset
    if kept.get(FINGERPRINT, data.fingerprint) != data.fingerprint:
        raise RunError(f"{experiment.dataset} has changed since {path} was trained on it")
    split = Split.load(path / "split.json").check(data.num_rows)
    system, options = get_system(experiment.system), _configured(experiment)
    graph = whole_graph(system, options, data)
    with seeded(experiment.train.seed):
        model = system.build(options, data.num_features, data.num_outputs)
    observe = getattr(model, "observe", None)
    if observe is not None:
        observe(make_source(system, data, split, graph).observed())
    weights = path / "model.safetensors"
    if not weights.exists():
        raise RunError(f"{path} has no model.safetensors: run it again")
    load_weights(model, read_tensors(weights, None, error=RunError)[0], weights)
    if isinstance(data, TemporalDataset):
        data = snapshots_for(system, data)
    given: Any = {"system": system.name, "experiment": experiment}
    return LoadedRun(path, model.eval(), data, split, graph, result, **given)


def _load_table(folder: Path, dataset: Dataset | None) -> LoadedRun:
    from difformer.experiments.own.opened import open_own

    own, result = open_own(folder, dataset=dataset), _finished(folder)
    given: Any = {"system": _system_of(own.model), "estimator": own.estimator}
    return LoadedRun(folder, own.model.eval(), own.dataset, own.split, own.graph, result, **given)


def _load_series(folder: Path) -> LoadedRun:
    forecaster, record = open_series(folder)
    model = forecaster.model_
    data = replace(forecaster.snapshots(), name=Path(record["series"]).name)
    split = Split.load(folder / "split.json").check(data.num_rows)
    given: Any = {"system": _system_of(model), "estimator": forecaster}
    return LoadedRun(folder, model, data, split, None, _finished(folder), **given)


def _system_of(model: DIFFormer) -> str:
    return "difformer-a" if model.config.kernel == "sigmoid" else "difformer-s"


def _finished(path: Path) -> FitResult:
    result = read_result(path)
    if result is None:
        raise RunError(f"{path} has no result.json yet: finish the run, or give another folder")
    return result


def last_snapshot(data: TemporalDataset) -> tuple[Dataset, Graph | None]:
    """The rows of the last snapshot as a Dataset, and their graph."""
    n, last = data.num_nodes, data.num_snapshots - 1
    rows = slice(last * n, (last + 1) * n)
    edges = data.edges_at(last)
    graph = None if edges is None else Graph.from_edges(edges[0], n, edges[1])
    return Dataset(data.name, data.x[rows], data.y[rows], data.task), graph


def run_of_seed(folder: Path, seed: int | None = None) -> Path:
    """The folder of one seed's run: the folder itself, or its subfolder."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: it does not exist")
    if (folder / "model.safetensors").exists() and seed is None:
        return folder
    found = sorted(folder.glob("seed-*"), key=lambda p: int(p.name.removeprefix("seed-")))
    if seed is not None:
        found = [p for p in found if p.name == f"seed-{seed}"]
    if not found:
        raise RunError(f"{folder} is not a run folder: it has no {_wanted(seed)}")
    return found[0]


def _wanted(seed: int | None) -> str:
    return "model.safetensors" if seed is None else f"seed-{seed}"


def _configured(experiment: Experiment) -> Any:
    return get_system(experiment.system).configure(**experiment.model)


def _check_fits(system: System, config: Any, data: Dataset) -> None:
    reason = system.needs(data)
    if reason is not None:
        raise CannotRunError(f"{system.name} cannot run on {data.name}: it {reason}")
    wanted, there = system.bytes_needed(data, config), available_memory()
    if there is not None and wanted > there:
        raise CannotRunError(
            f"{system.name} on {data.name} would take about {wanted / 2**30:.1f} GB of memory, "
            f"{there / 2**30:.1f} GB are free"
        )

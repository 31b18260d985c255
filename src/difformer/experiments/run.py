"""Run experiments: `train`, `reproduce`, `compare`, `tune` and `demo` use `run_experiment`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from difformer.baselines.registry import get_system
from difformer.baselines.system import System
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.errors import DifformerError
from difformer.experiments.experiment import FINGERPRINT, Experiment
from difformer.experiments.sources import (
    choose_split,
    data_objective,
    load_data,
    make_source,
    whole_graph,
)
from difformer.nn.model import DIFFormer
from difformer.train.batches import Source
from difformer.train.callbacks import Callback
from difformer.train.chunks import recompute_layers
from difformer.train.distributed import fit_distributed, processes
from difformer.train.launch import launched
from difformer.train.loop import fit
from difformer.train.memory import available_memory, keep_freed_memory
from difformer.train.objective import Objective
from difformer.train.run import FitResult
from difformer.train.seeding import seeded
from difformer.train.seeds import SeedsResult, fit_seeds

__all__ = ["Callbacks", "CannotRunError", "build_model", "run_experiment"]

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
    config = experiment.config()
    if folder is not None:  # a run is resumed only with the same data
        config[FINGERPRINT] = data.fingerprint

    def make(seed: int) -> tuple[nn.Module, Source, Split]:
        model = build_model(experiment, data.num_features, data.num_outputs)
        own = replace(experiment.train, seed=seed)
        return model, make_source(system, data, split, graph, own), split

    objective, seed = objective or data_objective(data), experiment.seeds[0]
    kept: Any = {"folder": folder, "config": config}
    if len(experiment.seeds) > 1 and not launched():
        train, seeds = experiment.train, experiment.seeds
        return fit_seeds(make, objective, train, seeds=seeds, callbacks=callbacks, **kept)
    kept["callbacks"] = () if callbacks is None else callbacks(seed)
    if launched():
        result = _over_processes(experiment, data, split, graph, **kept)
    else:
        with seeded(seed):
            model, source, _ = make(seed)
        result = fit(model, source, objective, split, replace(experiment.train, seed=seed), **kept)
    return SeedsResult({seed: result}, result.interrupted, None if folder is None else Path(folder))


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
    experiment: Experiment, data: Dataset, split: Split, graph: Any | None, **kept: Any
) -> FitResult:
    """Train one seed over the processes that torchrun started."""
    seed, system = experiment.seeds[0], experiment.system
    if len(experiment.seeds) > 1:
        raise ValueError(f"seeds must be one over processes, got {len(experiment.seeds)}")
    with seeded(seed):
        model = build_model(experiment, data.num_features, data.num_outputs)
    if not isinstance(model, DIFFormer):
        raise CannotRunError(f"{system} cannot run over processes: only DIFFormer is sharded")
    if isinstance(data, TemporalDataset):
        raise CannotRunError(f"{data.name} cannot be spread over processes: it has snapshots")
    settings = replace(experiment.train, seed=seed)
    with processes() as comm:
        return fit_distributed(model, data, split, settings, comm, graph=graph, **kept)


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

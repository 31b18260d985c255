"""From a job to its data, graph, split and batches, and its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.registry import load_dataset
from difformer.data.snapshots import TemporalDataset, complete_edges, neighbour_edges
from difformer.data.split import Split
from difformer.data.table.files import ENDINGS
from difformer.errors import DifformerError
from difformer.jobs.job import AUTO_SPLIT, FINGERPRINT, Experiment
from difformer.systems.registry import get_system
from difformer.systems.system import System
from difformer.train.batches import FullBatch, Snapshots, Source
from difformer.train.callbacks import Callback
from difformer.train.folder import FitResult, Run, agree_config, write_result
from difformer.train.interrupts import interruptible
from difformer.train.loop import fit
from difformer.train.memory import available_memory, keep_freed_memory
from difformer.train.objective import Objective, SnapshotError, objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings, launched


def graph_for(system: System, config: Any, dataset: Dataset) -> Graph | None:
    """The one graph over all rows that a system is given, or None; snapshots have their own."""
    if isinstance(dataset, TemporalDataset) or system.graph in ("none", "dense"):
        return None  # all pairs of one dataset need no edge list
    if system.graph != "knn":
        return given_graph(dataset)
    from difformer.data.neighbours import neighbour_graph

    how = {name: getattr(config, name) for name in ("metric", "mutual", "weights")}
    edges, weight = neighbour_graph(dataset.x, config.k, **how)
    return Graph.undirected_with_loops(edges, dataset.num_rows, weight)


def given_graph(dataset: Dataset) -> Graph | None:
    """The data's own graph, undirected and with one loop per row, or None if it has none."""
    if dataset.edge_index is None:
        return None
    return Graph.undirected_with_loops(dataset.edge_index, dataset.num_rows, dataset.edge_weight)


NEIGHBOURS = 5  # neighbours in the released kNN graphs over snapshots, including the node itself


def make_source(
    system: System,
    data: Dataset,
    split: Split,
    graph: Any | None,
    settings: TrainSettings | None = None,
) -> Source:
    """The batches a system trains on; `graph` comes from `graph_for`."""
    size = None if settings is None else settings.batch_size
    if isinstance(data, TemporalDataset):
        if size is not None:
            raise ValueError(f"batch_size must be left out for {data.name}: it has snapshots")
        return Snapshots(snapshots_for(system, data), split, per_step=data.per_step)
    if settings is None or (size is None and not settings.recompute):
        return FullBatch(data, split, graph)
    from difformer.train.chunks import CHUNK_ROWS

    if size is None:
        return FullBatch(data, split, graph, chunk=CHUNK_ROWS)
    from difformer.train.parts import Parts

    return Parts.of(data, split, graph, batch_size=size, seed=settings.seed, chunk=CHUNK_ROWS)


def snapshots_for(system: System, dataset: TemporalDataset) -> TemporalDataset:
    """The snapshots with a system's graphs: the data's own, neighbours, all pairs or none."""
    if system.graph == "none":
        return dataset.with_edges(())
    if system.graph == "knn":
        return neighbour_edges(dataset, NEIGHBOURS)
    return complete_edges(dataset) if system.graph == "dense" else dataset


def load_data(experiment: Experiment, data_dir: Path | str | None = None) -> Dataset:
    """The dataset an experiment names, with the options in ``experiment.data``.

    ``sample = n`` takes at most n rows, see `limit_rows`. ``neighbours = k`` joins each row to its
    k nearest by features (``metric``: "cosine" or "euclidean") where the data has no graph. The
    others are `load_dataset`'s. In place of a name it may be a file: a table, with the options of
    `read_table` (``label``, ``id``, ``edges``), or a .pt file with a Data of PyG, without options.
    """
    options, name = dict(experiment.data), experiment.dataset
    k, metric = options.pop("neighbours", None), options.pop("metric", "cosine")
    most, ending = options.pop("sample", None), Path(name).suffix.lower()
    if ending in ENDINGS:
        from difformer.data.table.read import read_table

        data = read_table(name, **options)
    elif ending == ".pt":
        if options:
            raise ValueError(f"{next(iter(options))} must be left out with a .pt file")
        from difformer.data.graphs import read_pyg

        data = read_pyg(name)
    else:
        data = load_dataset(name, data_dir, **options)
    data = data if most is None else limit_rows(data, most)
    if k is None:
        return data
    from difformer.data.neighbours import neighbour_graph

    if data.edge_index is not None:
        raise ValueError(f"neighbours must be left out for {data.name}: it has a graph of its own")
    return replace(data, edge_index=neighbour_graph(data.x, k, metric=metric)[0])


def limit_rows(data: Dataset, most: int) -> Dataset:
    """A random subset of at most `most` rows (seed 0), without the graph."""
    if data.num_rows <= most:
        return data
    order = torch.randperm(data.num_rows, generator=torch.Generator().manual_seed(0))
    rows = order[:most].sort().values
    x = data.x if data.x.layout == torch.strided else data.x.to_dense()
    return Dataset(data.name, x[rows], data.y[rows], data.task, class_names=data.class_names)


def choose_split(data: Dataset, name: str) -> Split:
    """The named split; "auto" is the first that comes with the data, else a random one."""
    return splits_of(data, 1)[0] if name == AUTO_SPLIT else data.split(name)


def splits_of(data: Dataset, number: int) -> list[Split]:
    """The first splits that come with the data if there are enough, else random ones."""
    if number < 1:
        raise ValueError(f"splits must be at least 1, got {number}")
    own = list(data.splits.values())
    if len(own) >= number:
        return own[:number]
    if data.task == "multiclass":
        with suppress(ValueError):  # too few rows for 20 per class and 1,500 more
            return [data.split(f"random:{seed}") for seed in range(number)]
    return [data.split(f"ratio:0.5/0.25/0.25:{seed}") for seed in range(number)]


def last_snapshot(data: TemporalDataset) -> tuple[Dataset, Graph | None]:
    """The rows of the last snapshot as a Dataset, and their graph."""
    n, last = data.num_nodes, data.num_snapshots - 1
    rows = slice(last * n, (last + 1) * n)
    edges = data.edges_at(last)
    graph = None if edges is None else Graph.from_edges(edges[0], n, edges[1])
    return Dataset(data.name, data.x[rows], data.y[rows], data.task), graph


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
) -> Run:
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
    system = get_system(experiment.system)
    options = system.configure(**experiment.model)
    _check_fits(system, options, data)
    graph, config = graph_for(system, options, data), experiment.config()
    if folder is not None:  # a run is resumed only with the same data
        config[FINGERPRINT] = data.fingerprint
    if objective is None and isinstance(data, TemporalDataset):
        objective = SnapshotError(num_nodes=data.num_nodes)  # also reports the released cost
    objective = objective or objective_for(data.task)

    if launched() and len(experiment.seeds) > 1:
        raise ValueError(f"seeds must be one over processes, got {len(experiment.seeds)}")

    def one(seed: int, folder: Path | None) -> FitResult:
        train = replace(experiment.train, seed=seed)
        look = () if callbacks is None else callbacks(seed)
        kept: Any = {"folder": folder, "config": config, "callbacks": look}
        with seeded(seed):
            model = build_model(experiment, data.num_features, data.num_outputs)
            source = None if launched() else make_source(system, data, split, graph, train)
        if source is None:
            return _over_processes(system, model, train, data, split, graph, **kept)
        return fit(model, source, objective, split, train, **kept)

    return _each_seed(experiment, one, None if folder is None else Path(folder), config)


def _each_seed(
    experiment: Experiment,
    one: Callable[[int, Path | None], FitResult],
    root: Path | None,
    config: Mapping[str, Any],
) -> Run:
    """One fit per seed, whose bits do not depend on which others are run.

    One seed is kept in the folder itself; several are in one subfolder each, with a result.json
    above them that sums up those done so far.
    """
    seeds = experiment.seeds
    if len(seeds) == 1:
        only = one(seeds[0], root)
        return Run({f"seed {seeds[0]}": only}, only.interrupted, root or Path(), config)
    if root is not None:
        train = {name: v for name, v in asdict(experiment.train).items() if name != "seed"}
        agree_config(root, {**config, "train": train})
    run = Run({}, False, root or Path(), config)
    with interruptible() as interrupt:
        for seed in seeds:
            done = one(seed, None if root is None else root / f"seed-{seed}")
            last = seed == seeds[-1]
            cut = done.interrupted or (interrupt.is_set() and not last)
            run = replace(run, fits={**run.fits, f"seed {seed}": done}, interrupted=cut)
            if root is not None:
                write_result(root, {**run.to_json(), "interrupted": cut or not last})
            if cut:
                break
    return run


def build_model(experiment: Experiment, features: int, outputs: int) -> nn.Module:
    """An untrained model of an experiment."""
    system = get_system(experiment.system)
    model = system.build(system.configure(**experiment.model), features, outputs)
    if not experiment.train.recompute:
        return model
    from difformer.nn.model import DIFFormer
    from difformer.train.chunks import recompute_layers

    if not isinstance(model, DIFFormer):
        raise CannotRunError(f"{system.name} cannot be recomputed: only DIFFormer's layers are")
    return recompute_layers(model)


def _over_processes(
    system: System,
    model: nn.Module,
    train: TrainSettings,
    data: Dataset,
    split: Split,
    graph: Any | None,
    **kept: Any,
) -> FitResult:
    """Train one seed over the processes that torchrun started."""
    from difformer.nn.model import DIFFormer
    from difformer.train.distributed import fit_distributed, processes

    if not isinstance(model, DIFFormer):
        raise CannotRunError(f"{system.name} cannot run over processes: only DIFFormer is sharded")
    if isinstance(data, TemporalDataset):
        raise CannotRunError(f"{data.name} cannot be spread over processes: it has snapshots")
    with processes() as comm:
        return fit_distributed(model, data, split, train, comm, graph=graph, **kept)


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

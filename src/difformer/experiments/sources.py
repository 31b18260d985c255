"""From an experiment to its data and split, and from these to batches and an objective."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from difformer.baselines.graphs import graph_for
from difformer.baselines.system import System
from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.data.rawtable import ENDINGS
from difformer.data.registry import load_dataset
from difformer.data.snapshots import TemporalDataset, complete_edges, neighbour_edges
from difformer.data.split import Split
from difformer.experiments.experiment import AUTO_SPLIT, Experiment
from difformer.train.batches import FullBatch, Source
from difformer.train.chunks import CHUNK_ROWS
from difformer.train.objective import Objective, SnapshotError, objective_for
from difformer.train.partition import Partitions
from difformer.train.settings import TrainSettings
from difformer.train.snapshots import Snapshots

__all__ = [
    "choose_split",
    "data_objective",
    "last_snapshot",
    "limit_rows",
    "load_data",
    "make_source",
    "snapshots_for",
    "splits_of",
    "whole_graph",
    "with_neighbours",
]

NEIGHBOURS = 5  # neighbours in the released kNN graphs over snapshots, including the node itself


def make_source(
    system: System,
    data: Dataset,
    split: Split,
    graph: Any | None,
    settings: TrainSettings | None = None,
) -> Source:
    """The batches a system trains on; `graph` comes from `whole_graph`."""
    size = None if settings is None else settings.batch_size
    if isinstance(data, TemporalDataset):
        if size is not None:
            raise ValueError(f"batch_size must be left out for {data.name}: it has snapshots")
        return Snapshots(snapshots_for(system, data), split, per_step=data.per_step)
    if size is None or settings is None:
        chunk = CHUNK_ROWS if settings is not None and settings.recompute else None
        return FullBatch(data, split, graph, chunk=chunk)
    return Partitions(data, split, graph, batch_size=size, seed=settings.seed)


def whole_graph(system: System, config: Any, data: Dataset) -> Any | None:
    """The one graph over all rows that a system is given; snapshots have their own."""
    return None if isinstance(data, TemporalDataset) else graph_for(system, config, data)


def data_objective(data: Dataset) -> Objective:
    """The objective of the data's task; for snapshots it also reports the released cost."""
    if isinstance(data, TemporalDataset):
        return SnapshotError(num_nodes=data.num_nodes)
    return objective_for(data.task)


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
    from difformer.data.neighbours import neighbour_graph

    if data.edge_index is not None:
        raise ValueError(f"neighbours must be left out for {data.name}: it has a graph of its own")
    return replace(data, edge_index=neighbour_graph(data.x, k, metric=metric)[0])


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

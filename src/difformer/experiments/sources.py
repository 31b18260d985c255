"""From a dataset and a system to batches and an objective: one set of rows, or many snapshots."""

from __future__ import annotations

from typing import Any

from difformer.baselines.graphs import graph_for
from difformer.baselines.system import System
from difformer.data.dataset import Dataset
from difformer.data.snapshots import TemporalDataset, complete_edges, neighbour_edges
from difformer.data.split import Split
from difformer.train.batches import FullBatch, Source
from difformer.train.chunks import CHUNK_ROWS
from difformer.train.objective import Objective, SnapshotError, objective_for
from difformer.train.partition import Partitions
from difformer.train.settings import TrainSettings
from difformer.train.snapshots import Snapshots

__all__ = ["data_objective", "make_source", "snapshots_for", "whole_graph"]

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

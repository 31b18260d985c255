"""Snapshots: one set of nodes at many times, as rows of a dataset for the one training loop.

Row r of a `TemporalDataset` is node r mod n of snapshot r div n. A snapshot's features are the last
`lags` values of each node, its target the next one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.data.dataset import Dataset, Edges, check_edges
from difformer.data.split import Split
from difformer.files import counted
from difformer.settings import check_count

RATIOS = (0.2, 0.2, 0.6)  # of the paper: training, validation and test, in time order


@dataclass(frozen=True, eq=False)
class TemporalDataset(Dataset):
    """t snapshots of n nodes stacked in time order; its graphs stay within their snapshots.

    Args:
        num_nodes: n; x is (t·n, lags) and y (t·n, h), a target for each of h steps.
        edges: () without a graph, one entry for a graph that does not change, else one per
            snapshot.
        node_names: one name per node; empty if there are none.
        per_step: snapshots per training step, as in publications on the data; None for all in one.
    """

    num_nodes: int = 0
    edges: tuple[Edges, ...] = ()
    node_names: tuple[str, ...] = ()
    per_step: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        n, rows = self.num_nodes, self.x.shape[0]
        if n < 1 or rows % n:
            raise ValueError(f"num_nodes must divide the {rows} rows, got {n}")
        if self.edge_index is not None:
            raise ValueError("edge_index must be None: a temporal dataset's graphs are its edges")
        if self.y.ndim != 2:
            raise ValueError(f"y must be ({rows}, targets), got {tuple(self.y.shape)}")
        if len(self.edges) not in (0, 1, rows // n):
            raise ValueError(
                f"edges must hold no graph, one, or one for each of the {rows // n} snapshots, "
                f"got {len(self.edges)}"
            )
        if self.node_names and len(self.node_names) != n:
            raise ValueError(f"node_names must name {n} nodes, got {len(self.node_names)}")
        for edge_index, edge_weight in self.edges:
            check_edges(edge_index, edge_weight, n)

    @property
    def num_snapshots(self) -> int:
        return self.x.shape[0] // self.num_nodes

    @property
    def num_edges(self) -> int:
        """Edges of all snapshots together."""
        each = [index.shape[1] for index, _ in self.edges]
        return sum(each) * (self.num_snapshots if len(each) == 1 else 1)

    def edges_at(self, snapshot: int) -> Edges | None:
        """The graph of one snapshot, or None where there is none."""
        return self.edges[snapshot % len(self.edges)] if self.edges else None

    def stacked_edges(self, snapshots: Sequence[int]) -> Edges | None:
        """The graphs of some snapshots side by side: node i of the s-th is row s·n + i. O(e)."""
        if not self.edges:
            return None
        parts = [self.edges[s % len(self.edges)] for s in snapshots]
        index = torch.cat([e + i * self.num_nodes for i, (e, _) in enumerate(parts)], dim=1)
        if all(weight is None for _, weight in parts):
            return index, None
        weights = [
            e.new_ones(e.shape[1], dtype=torch.float64) if w is None else w for e, w in parts
        ]
        return index, torch.cat(weights)

    def with_edges(self, edges: tuple[Edges, ...]) -> TemporalDataset:
        """The same snapshots with other graphs."""
        return replace(self, edges=edges)

    def describe(self) -> str:
        """One line for people."""
        kinds = {0: "no graph", 1: "one graph"}
        graphs = kinds.get(len(self.edges), "one graph per snapshot")
        return (
            f"{self.name}: {counted(self.num_snapshots, 'snapshot')} of "
            f"{counted(self.num_nodes, 'node')}; {counted(self.num_features, 'lag')}; {graphs}; "
            f"splits {', '.join(self.splits) or 'none'}"
        )


def time_split(
    num_snapshots: int,
    num_nodes: int,
    ratios: tuple[float, float, float] = RATIOS,
    *,
    name: str = "time",
) -> Split:
    """Whole snapshots in time order: the first train, the next validate, the last test.

    Sizes are rounded as the authors' code does it: ⌊a t⌋ train, ⌊b/(b + c) of the rest⌋ validate.
    """
    a, b, c = ratios
    if min(ratios) < 0 or a == 0 or not math.isclose(math.fsum(ratios), 1, abs_tol=1e-9):
        raise ValueError(f"ratios must be 0 or more, sum to 1 and train on some, got {ratios}")
    train = int(a * num_snapshots + 1e-9)
    rest = num_snapshots - train
    val = int(b / (b + c) * rest + 1e-9) if b + c > 0 else 0
    if train == 0:
        raise ValueError(f"split {name}: {a:g} of {num_snapshots} snapshots leave none to train on")
    rows = torch.arange(num_snapshots * num_nodes)
    first, middle, last = rows.split([k * num_nodes for k in (train, val, rest - val)])
    return Split(name, first, middle, last)


def from_windows(
    name: str,
    series: Tensor,
    lags: int,
    edges: tuple[Edges, ...] = (),
    *,
    node_names: tuple[str, ...] = (),
    source: str = "",
) -> TemporalDataset:
    """A standardised series (T, n) as T - lags snapshots, with the split "time" by `RATIOS`."""
    steps, n = series.shape
    if steps <= check_count("lags", lags):
        raise ValueError(f"lags must be fewer than the {steps} steps of the series, got {lags}")
    return TemporalDataset(
        name,
        series[:-1].unfold(0, lags, 1).reshape(-1, lags),  # the oldest value first
        series[lags:].reshape(-1, 1),
        task="regression",
        splits={"time": time_split(steps - lags, n)},
        source=source,
        num_nodes=n,
        edges=edges,
        node_names=node_names,
    )


def neighbour_edges(dataset: TemporalDataset, k: int = 5) -> TemporalDataset:
    """Each node's k nearest of its snapshot by cosine of features, itself included. O(t n² p).

    An edge runs from a neighbour to the node it is a neighbour of, as in the authors' code.
    """
    n = dataset.num_nodes
    k = min(k, n)
    target = torch.arange(n).repeat_interleave(k)
    edges: list[Edges] = []
    for x in dataset.x.reshape(-1, n, dataset.num_features):
        unit = F.normalize(x, dim=-1)
        score = (unit @ unit.T).fill_diagonal_(2.0)  # a row of zeros is its own neighbour too
        source = score.topk(k, dim=-1).indices.flatten()
        edges.append((torch.stack([source, target]), None))
    return dataset.with_edges(tuple(edges))


def complete_edges(dataset: TemporalDataset) -> TemporalDataset:
    """Every node joined to every node, itself included: one graph of n² edges."""
    n = torch.arange(dataset.num_nodes)
    pairs = torch.stack([n.repeat(len(n)), n.repeat_interleave(len(n))])
    return dataset.with_edges(((pairs, None),))

"""Graph: an edge list cleaned and normalised once, and its product with a dense matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from difformer.core.sparse import SparseMatrix

NORMS = ("symmetric", "row")


@dataclass(frozen=True)
class Graph:
    """A graph over n rows with its normalised adjacency Ã = D^-1/2 A D^-1/2, or D^-1 A, prepared.

    An edge (j, i) of `edge_index` carries row j's value to row i, as in PyTorch Geometric, so
    A[i, j] is its weight. For a directed graph the left D counts what enters a row and the right D
    what leaves one, so that no edge is lost; for an undirected one they are the same. A row
    without edges receives zero.

    It holds 8 bytes per edge (12 with weights): the compressed rows of Ã, sorted by target and each
    pair once, are also the list of edges, which `edge_index` and `ends` read out of them.
    """

    edge_weight: Tensor | None  # (e,) or None where every edge weighs one
    num_nodes: int
    adjacency: SparseMatrix  # Ã, (n, n)
    norm: str = "symmetric"  # or "row": Ã = D^-1 A, the mean over what enters a row
    whole: bool = False  # Ã follows from these edges alone, so it can be made again

    @classmethod
    def from_edges(
        cls,
        edge_index: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        *,
        undirected: bool = False,
        self_loops: bool | None = None,
        norm: str = "symmetric",
    ) -> Graph:
        """Clean, normalise and compress an edge list, in O(e log e).

        Args:
            edge_index: (2, e) integers, source above target. Zero edges are allowed.
            num_nodes: n; ids run from 0 to n − 1.
            edge_weight: (e,) non-negative and finite. Without weights a repeated edge counts once;
                with them its weights are added.
            undirected: also carry each edge backwards: A ← max(A, Aᵀ).
            self_loops: True gives every row exactly one loop of weight one, False removes all
                loops, None leaves them as they are.
            norm: "symmetric" for D^-1/2 A D^-1/2, "row" for D^-1 A.
        """
        if norm not in NORMS:
            raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
        edge_index, edge_weight = _checked(edge_index, num_nodes, edge_weight)
        source, target = edge_index[0], edge_index[1]
        if self_loops is not None:
            keep = source != target
            source, target = source[keep], target[keep]
            edge_weight = edge_weight[keep] if edge_weight is not None else None
        source, target, edge_weight = _merge(source, target, edge_weight, num_nodes, "sum")
        if undirected:
            source, target = torch.cat([source, target]), torch.cat([target, source])
            edge_weight = edge_weight.repeat(2) if edge_weight is not None else None
        if self_loops:
            loops = torch.arange(num_nodes, device=source.device)
            source, target = torch.cat([source, loops]), torch.cat([target, loops])
            if edge_weight is not None:
                edge_weight = torch.cat([edge_weight, edge_weight.new_ones(num_nodes)])
        if undirected or self_loops:
            source, target, edge_weight = _merge(source, target, edge_weight, num_nodes, "amax")
        same = undirected or _is_symmetric(source, target, edge_weight, num_nodes)
        return cls.from_sorted(source, target, num_nodes, edge_weight, symmetric=same, norm=norm)

    @classmethod
    def undirected_with_loops(
        cls, edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None = None
    ) -> Graph:
        """Each edge both ways and one self-loop of weight one per row: what models are trained on.

        An edge list given to a model becomes this; pass a Graph from `from_edges` for anything
        else.
        """
        return cls.from_edges(edge_index, num_nodes, edge_weight, undirected=True, self_loops=True)

    @classmethod
    def from_sorted(
        cls,
        source: Tensor,
        target: Tensor,
        num_nodes: int,
        edge_weight: Tensor | None = None,
        *,
        symmetric: bool = False,
        norm: str = "symmetric",
        dtype: torch.dtype | None = None,
    ) -> Graph:
        """Normalise edges known to be clean and sorted by target, then source: O(e), no sort.

        Used to build parts of a Graph; nothing is checked. `symmetric` says that each edge
        is there both ways with one weight; `dtype` is that of Ã without weights.
        """
        ones = torch.ones(source.numel(), device=source.device, dtype=dtype)
        weight = ones if edge_weight is None else edge_weight
        into, out_of = (
            weight.new_zeros(num_nodes).index_add_(0, ends, weight) for ends in (target, source)
        )
        left, right = edge_scales(into, out_of, norm)
        value, shape = weight * (left[target] * right[source]), (num_nodes, num_nodes)
        same = symmetric and norm == "symmetric"
        matrix = SparseMatrix.from_sorted(target, source, value, shape, symmetric=same)
        return cls(edge_weight, num_nodes, matrix, norm, whole=True)

    @cached_property
    def neighbours_mean(self) -> Graph:
        """The graph without its self-loops and with D^-1 A: each row gets its neighbours' mean."""
        source, target = self.edge_index
        keep = source != target
        weight = None if self.edge_weight is None else self.edge_weight[keep]
        mean = Graph.from_sorted(source[keep], target[keep], self.num_nodes, weight, norm="row")
        return mean.to(self.adjacency.values)

    def around(self, rows: Tensor, steps: int) -> tuple[Tensor, Graph]:
        """The rows within `steps` edges of `rows`, sorted, and the graph between them.

        Costs O(steps · e). Up to `steps` products with its Ã, or with that of its
        `neighbours_mean`, give `rows` the values that the whole graph gives them. Only the
        outermost rows lack incoming edges, and what they lack is more than `steps` edges away.
        """
        source, target = self.edge_index
        near = torch.zeros(self.num_nodes, dtype=torch.bool, device=source.device)
        near[rows] = True
        for _ in range(steps):
            near[source[near[target]]] = True
        keep = near[source] & near[target]
        number = near.cumsum(0) - 1
        rows = near.nonzero().squeeze(1)
        ends, shape = (number[target[keep]], number[source[keep]]), (len(rows), len(rows))
        kept = SparseMatrix.from_sorted(*ends, self.adjacency.values[keep], shape, self.symmetric)
        weight = None if self.edge_weight is None else self.edge_weight[keep]
        return rows, Graph(weight, len(rows), kept, self.norm)

    @cached_property
    def edge_index(self) -> Tensor:
        """(2, e) int64, sorted by target, each pair once; built on first use: 16 bytes per edge."""
        source, target = self.ends(0, self.num_edges)
        return torch.stack([source.long(), target])

    def ends(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Sources and targets of the edges `start` to `stop`, without building the whole list."""
        rows, columns = self.adjacency.csr.crow_indices(), self.adjacency.csr.col_indices()
        first = int(torch.searchsorted(rows, start, right=True)) - 1
        last = max(first, int(torch.searchsorted(rows, stop)))  # the same if there are no edges
        bounds = rows[first : last + 1].clamp(start, stop)
        target = torch.arange(first, last, device=rows.device)
        return columns[start:stop], torch.repeat_interleave(target, bounds.diff())

    def chosen(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Sources and targets of some edges of the list, in O(their number log n)."""
        rows, columns = self.adjacency.csr.crow_indices(), self.adjacency.csr.col_indices()
        target = torch.searchsorted(rows, positions.to(rows.dtype), right=True) - 1
        return columns.index_select(0, positions), target

    @property
    def symmetric(self) -> bool:
        """Whether each edge is there both ways with one weight."""
        return self.adjacency.symmetric

    @property
    def num_edges(self) -> int:
        """How many directed edges are kept; an undirected edge counts twice, a loop once."""
        return self.adjacency.nonzeros

    def propagate(self, value: Tensor) -> Tensor:
        """Ã V for V of shape (n, ...): O(e · width) time, one output tensor."""
        if value.shape[0] != self.num_nodes:
            raise ValueError(
                f"value must have the graph's {self.num_nodes} rows, got {value.shape[0]}"
            )
        flat = value.reshape(self.num_nodes, -1)
        return (self.adjacency @ flat).view(value.shape)

    def to(self, like: Tensor) -> Graph:
        """The graph with the dtype and device of `like`; itself when they agree.

        For a finer dtype Ã is made again from the edges, if it can be: it has no coarser rounding.
        """
        adjacency = self.adjacency.to(like)
        if adjacency is self.adjacency:
            return self
        weight = self.edge_weight.to(like) if self.edge_weight is not None else None
        finer = torch.finfo(like.dtype).eps < torch.finfo(self.adjacency.values.dtype).eps
        if not (self.whole and finer):
            return replace(self, edge_weight=weight, adjacency=adjacency)
        source, target = (ends.to(like.device).long() for ends in self.ends(0, self.num_edges))
        how: Any = {"symmetric": self.symmetric, "norm": self.norm, "dtype": like.dtype}
        return Graph.from_sorted(source, target, self.num_nodes, weight, **how)

    def dense(self) -> Tensor:
        """Ã as a dense (n, n) matrix: the reference for tests and tiny graphs."""
        return self.adjacency.to_dense()


def _checked(
    edge_index: Tensor, num_nodes: int, edge_weight: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape (2, e), got {tuple(edge_index.shape)}")
    if edge_index.is_floating_point() or edge_index.dtype == torch.bool:
        raise ValueError(f"edge_index must hold integers, got {edge_index.dtype}")
    if num_nodes < 1:
        raise ValueError(f"num_nodes must be at least 1, got {num_nodes}")
    if edge_index.numel():
        low, high = int(edge_index.min()), int(edge_index.max())
        if low < 0 or high >= num_nodes:
            raise ValueError(
                f"edge_index must name rows 0 to {num_nodes - 1}, got {low if low < 0 else high}"
            )
    if edge_weight is not None:
        if edge_weight.requires_grad:
            raise ValueError("edge_weight must not require a gradient: a Graph is a constant")
        if edge_weight.shape != (edge_index.shape[1],):
            raise ValueError(
                f"edge_weight must have shape ({edge_index.shape[1]},), "
                f"got {tuple(edge_weight.shape)}"
            )
        if not edge_weight.is_floating_point():
            edge_weight = edge_weight.to(torch.get_default_dtype())
        if not bool(torch.isfinite(edge_weight).all()) or bool((edge_weight < 0).any()):
            raise ValueError("edge_weight must be finite and not negative")
    return edge_index.long(), edge_weight


def _merge(
    source: Tensor, target: Tensor, weight: Tensor | None, num_nodes: int, reduce: str
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Each (source, target) once, sorted by target; repeated weights are reduced."""
    key = target * num_nodes + source
    if weight is None:
        key = torch.unique(key)
    else:
        key, where = torch.unique(key, return_inverse=True)
        merged = weight.new_zeros(key.numel())
        weight = merged.scatter_reduce_(0, where, weight, reduce, include_self=False)
    return key % num_nodes, torch.div(key, num_nodes, rounding_mode="floor"), weight


def _is_symmetric(source: Tensor, target: Tensor, weight: Tensor | None, num_nodes: int) -> bool:
    order = torch.argsort(source * num_nodes + target)
    if not torch.equal(source[order], target) or not torch.equal(target[order], source):
        return False
    return weight is None or torch.equal(weight[order], weight)


def edge_scales(into: Tensor, out_of: Tensor, norm: str) -> tuple[Tensor, Tensor]:
    """What Ã multiplies the weight of an edge by, for its target and for its source, by degrees."""
    if norm == "row":
        tiny = torch.finfo(into.dtype).tiny
        return into.clamp_min(tiny).reciprocal(), torch.ones_like(out_of)
    return inverse_sqrt(into), inverse_sqrt(out_of)


def inverse_sqrt(degree: Tensor) -> Tensor:
    """1/√degree, and 0 where the degree is 0."""
    return torch.where(degree > 0, degree.clamp_min(torch.finfo(degree.dtype).tiny).rsqrt(), 0.0)


class TracedGraph:
    """Ã V by gather and scatter, for torch.export and torch.compile: no shape depends on values.

    As in `undirected_with_loops`, or in its `neighbours_mean` where `norm` is "row".
    """

    def __init__(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        norm: str,
        dtype: torch.dtype,
    ) -> None:
        source, target = edge_index[0], edge_index[1]
        weight = torch.ones_like(source, dtype=dtype)
        key = target * num_nodes + source
        if edge_weight is not None:
            key, weight = _merge_traced(key, edge_weight.to(dtype), "sum")
        source, target = key % num_nodes, key // num_nodes
        key = torch.cat([key, source * num_nodes + target])
        key, weight = _merge_traced(key, weight.repeat(2), "amax")
        self.source, self.target = key % num_nodes, key // num_nodes
        weight = torch.where(self.source == self.target, 0.0, weight)
        looped = float(norm == "symmetric")
        degree = weight.new_full((num_nodes,), looped).index_add(0, self.target, weight)
        left, right = edge_scales(degree, degree, norm)
        self.loop = (looped * left * right).unsqueeze(-1)
        self.weight = (weight * left[self.target] * right[self.source]).unsqueeze(-1)

    def propagate(self, value: Tensor) -> Tensor:
        """Ã V, (n, d)."""
        messages = value.index_select(0, self.source) * self.weight.to(value.dtype)
        return (value * self.loop.to(value.dtype)).index_add(0, self.target, messages)


def _merge_traced(key: Tensor, weight: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Sorted keys; the weights of repeated ones are reduced into the first, the others get 0."""
    key, order = key.sort()
    first = torch.cat([key[:1] >= 0, key[1:] != key[:-1]])
    group = first.long().cumsum(0) - 1
    total = torch.zeros_like(weight).scatter_reduce(
        0, group, weight[order], reduce, include_self=False
    )
    return key, torch.where(first, total[group], 0.0)

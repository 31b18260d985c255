"""Exchange: how rows interact in a diffusion step. Everything else is row by row.

Full-batch training, separate graphs, chunks, rows over processes and frozen rows each have their
own Exchange; the step itself is in one place, `DiffusionLayer`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from difformer.core.context import Context
from difformer.core.diffusivity import Diffusivity
from difformer.core.euler import AverageOfStates
from difformer.core.fixed import FixedAverage
from difformer.core.rows import Segments
from difformer.core.sparse import SparseMatrix


class Exchange:
    """Every row interacts with every other and with its neighbours; all rows are in memory."""

    here: ClassVar[bool] = True
    """Whether the graph's product of the rows in memory may be added in place."""

    def __init__(
        self,
        graph: Any = None,
        *,
        landmarks: Tensor | None = None,
        fixed: FixedAverage | None = None,
    ) -> None:
        """What rows interact with besides each other.

        Args:
            graph: a Graph, or an object with its `propagate`.
            landmarks: (m, p) that rows are compared with, if the diffusivity has them.
            fixed: Ŝ, if it is the same in every layer and already computed.
        """
        self.graph, self.landmarks, self.fixed = graph, landmarks, fixed

    def closed_form(self, kernel: Diffusivity, heads: int) -> AverageOfStates | None:
        """The average computed directly from the states, if this exchange allows it."""
        return kernel.closed_form(heads)

    def prepare(
        self, kernel: Diffusivity, q: Tensor, k: Tensor, landmarks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and keys (h, n, ·) as the diffusivity takes them.

        `landmarks` (h, m, ·) where the diffusivity has them.
        """
        return kernel.prepare(q, k, self.known(k) if landmarks is None else landmarks)

    def known(self, k: Tensor) -> Tensor | None:
        """The keys of all rows that rows with the keys k interact with; None: these keys."""
        return None

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        """The context that the rows are averaged with: their own, or merged with others'."""
        return kernel.summarise(k, v, q)

    def average(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Σ_j Ŝ_ij v_j, averaged over heads: q, k, v (h, n, d) -> (n, d)."""
        return kernel.apply(q, self.context(kernel, q, k, v)).mean(-3)

    def neighbours(self, value: Tensor | None) -> Tensor | None:
        """Ã V (n, d) for values (n, d); None without a graph."""
        if self.graph is None or value is None:
            return None
        return self.graph.propagate(value)

    @property
    def adjacency(self) -> SparseMatrix | None:
        """Ã itself, for the rows in memory."""
        return None if self.graph is None else self.graph.adjacency

    def add_beyond(self, out: Tensor, value: Tensor | None, weight: float) -> Tensor:
        """`out` (n, d) with what the graph carries from rows that are elsewhere, times `weight`."""
        return out

    def mean(self, u: Tensor) -> Tensor:
        """The mean over rows; broadcasts with u (n, d)."""
        return u.mean(0, keepdim=True)


class Apart(Exchange):
    """Rows of one tensor that belong to separate graphs and interact only within each."""

    def __init__(self, segments: Segments, graph: Any = None) -> None:
        super().__init__(graph)
        self.segments = segments

    def closed_form(self, kernel: Diffusivity, heads: int) -> None:
        return None

    def prepare(
        self, kernel: Diffusivity, q: Tensor, k: Tensor, landmarks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if landmarks is not None:
            return super().prepare(kernel, q, k, landmarks)
        if q is k:
            both = self._each(lambda q: kernel.prepare(q, q)[0].transpose(1, 2), q).transpose(0, 1)
            return both, both
        joined = self._each(lambda *qk: torch.cat(kernel.prepare(*qk), -1).transpose(1, 2), q, k)
        first, second = joined.transpose(0, 1).chunk(2, dim=-1)
        return first, second

    def average(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._each(lambda *qkv: kernel(*qkv).mean(-3), q, k, v)

    def _each(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`function` of the (graphs, h, rows, ·) of some (h, n, ·); it gives (graphs, rows, …)."""
        heads = max(t.shape[0] for t in tensors)
        rows = (t.expand(heads, -1, -1).transpose(0, 1) for t in tensors)
        return self.segments.map(lambda *each: function(*(t.transpose(1, 2) for t in each)), *rows)

    def mean(self, u: Tensor) -> Tensor:
        return self.segments.map(lambda t: t.mean(1, keepdim=True).expand_as(t), u)

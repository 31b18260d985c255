"""A model whose rows are spread over processes, and its graph.

Outputs and gradients are those of one process with all rows, up to the order of sums. For each
layer and direction the all-pair term of -s costs one message of d² + 2d + 1 numbers per head,
whatever the number of rows; the graph term sends the boundary rows; -a sends its keys and values
round a ring.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from difformer.core.context import Context, Pairs
from difformer.core.diffusivity import Diffusivity, Sharp, Sigmoid
from difformer.core.euler import AverageOfStates, add_product
from difformer.core.fixed import FixedAverage
from difformer.core.fused import RowAverage
from difformer.core.graph import inverse_sqrt
from difformer.core.rows import landmark_sample
from difformer.core.sparse import SparseMatrix
from difformer.nn.exchange import Exchange
from difformer.nn.inputs import Remembered
from difformer.nn.model import DIFFormer
from difformer.train.chunks import OfAll
from difformer.train.processes import Comm, ring_average


class ShardedDIFFormer(nn.Module):
    """A DIFFormer whose rows are spread over processes; each call returns this process's rows.

    It wraps the given model, without a copy, and saves and loads as that one does. Every process
    must make the same calls in the same order.
    """

    def __init__(self, model: DIFFormer, comm: Comm) -> None:
        super().__init__()
        self.model, self.comm, self.own_draws = model, comm, model.own_draws
        self._fixed: Remembered[FixedAverage] = Remembered()
        for tensor in (*model.parameters(), *model.buffers()):
            comm.broadcast(tensor.data)

    def forward(
        self, x: Tensor, edge_index: Any = None, edge_weight: Any = None, batch: Any = None
    ) -> Tensor:
        """Outputs of this process's rows; `edge_index` is a ShardedGraph or None."""
        if batch is not None or edge_weight is not None:
            raise ValueError("edge_weight and batch must be None: a sharded graph is one graph")
        model = self.model
        graph = edge_index if model.config.use_graph else None
        features = model.check_features(x) if x.shape[0] else x
        first = z = model.embed(features)
        exchange = _Spread(self.comm, None if graph is None else graph.to(z))
        self._choose_landmarks(features)
        exchange.landmarks = model.compared_landmarks()
        compared = None
        if model.compares_fixed_rows and isinstance(model.layers[0].diffusivity, Sharp):
            exchange.fixed = self._fixed.get((x,), None, lambda: self._fixed_average(features))
        else:
            compared = model.comparison(features, first, exchange)
        for layer in model.layers:
            # Recomputed layers are recomputed on every process in the same order, and send again.
            z = layer(z, first, exchange, compared)
        return model.decode(z)

    def _choose_landmarks(self, features: Tensor | SparseMatrix) -> None:
        """Choose landmarks among all processes' rows, if the model needs some and has none yet."""
        landmarks = self.model.landmarks
        if landmarks is None or not self.model.wants_landmarks:
            return
        own, total = self.comm.span(features.shape[0])
        sample = landmark_sample(total, self.model.in_channels, landmarks.shape[0])
        mine = sample[(sample >= own.start) & (sample < own.stop)] - own.start
        self.model.set_landmarks(self.comm.gather_rows(features[mine].to_dense()))
        self.comm.broadcast(landmarks.data)

    def _fixed_average(self, features: Tensor | SparseMatrix) -> FixedAverage:
        """Ŝ of this process's rows; all rows' features are held while it is computed."""
        kernel, comm = self.model.layers[0].diffusivity, self.comm
        assert isinstance(kernel, Sharp)
        own, _ = comm.span(features.shape[0])
        with torch.no_grad():
            rows = comm.gather_rows(features.to_dense())
            if rows.shape[0] > kernel.exact_rows:  # near rows: cheap enough for every process
                return OfAll(kernel.fixed(rows).block(own), comm.gather_rows)
            offset = comm.gather_rows(kernel.fixed_offsets(rows, own))
            return OfAll(kernel.fixed_rows(rows, own, offset), comm.gather_rows)

    def reduce_gradients(self) -> None:
        """Add up all processes' gradients, in one message."""
        if self.comm.size == 1:
            return
        trained = [p for p in self.model.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        for parameter, total in zip(trained, self.comm.sums(grads, "gradients"), strict=True):
            parameter.grad = total.clone()

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        return self.model.state_dict(*arguments, **options)

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.model.load_state_dict(*arguments, **options)

    def save(self, path: str | Path) -> None:
        """Save as the model itself does."""
        self.model.save(path)


class _Spread(Exchange):
    """Rows interact with those of all processes: contexts are summed, boundary rows are sent."""

    def __init__(self, comm: Comm, graph: ShardedGraph | None) -> None:
        super().__init__(graph)
        self.comm = comm

    def closed_form(self, kernel: Diffusivity, heads: int) -> AverageOfStates | None:
        closed = super().closed_form(kernel, heads)
        if not isinstance(closed, RowAverage):  # the whole-tensor norm is no sum of row sums
            return None
        return replace(closed, total=lambda sums: self.comm.sum(sums, "context"))

    @property
    def adjacency(self) -> SparseMatrix | None:
        return None if self.graph is None else self.graph.inner

    def add_beyond(self, out: Tensor, value: Tensor | None, weight: float) -> Tensor:
        if self.graph is None or value is None or self.comm.size == 1:
            return out
        return add_product(out, self.graph.outer, self.graph.received(value), weight)

    def known(self, k: Tensor) -> Tensor:
        # Every process sees all keys once, without their gradients: offsets are constants.
        return self.comm.gather_rows(k.detach().transpose(0, 1)).transpose(0, 1)

    def context(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Context:
        """That of all processes' rows: one message, whatever the number of rows.

        For diffusivities that do not separate, the rows themselves are gathered.
        """
        mine = super().context(kernel, q, k, v)
        if kernel.local or self.comm.size == 1:
            return mine
        names, fields = mine.tensors().keys(), mine.tensors().values()
        if isinstance(mine, Pairs):
            rows = [self.comm.gather_rows(t.transpose(0, -2)) for t in fields]
            merged = [t.transpose(0, -2) for t in rows]
        else:
            merged = self.comm.sums(list(fields), "context")
        return type(mine)(**dict(zip(names, merged, strict=True)))

    def average(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if isinstance(kernel, Sigmoid) and self.comm.size > 1:
            return ring_average(*kernel.factors(q, k), v, self.comm).mean(0)
        return super().average(kernel, q, k, v)

    def mean(self, u: Tensor) -> Tensor:
        total = torch.cat([u.sum(0), u.new_tensor([u.shape[0]])])
        total = self.comm.sum(total, "context")
        return total[:-1] / total[-1]


@dataclass(frozen=True)
class ShardedGraph:
    """Ã over rows spread over processes: own rows from here, boundary rows by one all-to-all.

    `propagate` is `Graph.propagate` for this process's rows, with its gradient.
    """

    inner: SparseMatrix  # (n_r, n_r)
    outer: SparseMatrix  # (n_r, boundary rows)
    boundary: Tensor  # own rows that others need, grouped by process
    send: list[int]
    receive: list[int]
    comm: Comm

    @classmethod
    def build(
        cls,
        source: Tensor,
        target: Tensor,
        weight: Tensor | None,
        starts: list[int],
        comm: Comm,
        *,
        symmetric: bool,
        norm: str = "symmetric",
        dtype: torch.dtype | None = None,
    ) -> ShardedGraph:
        """Agree on the boundary and normalise; a few all-to-alls, once per graph.

        Args:
            source, target, weight: the edges that enter this process's rows, sorted by target, then
                source.
            starts: the ranges of ids that the edges refer to; the same on every process.
            symmetric: the whole graph is, and so is the block of each process's own rows.
            norm, dtype: as in `Graph.from_sorted`.
        """
        low, high = starts[comm.rank], starts[comm.rank + 1]
        n = high - low
        target = target - low
        near = (source >= low) & (source < high)
        far = ~near
        wanted, column = torch.unique(source[far], return_inverse=True)
        bounds = torch.searchsorted(wanted, torch.tensor(starts))
        receive = bounds.diff().tolist()
        send = comm.deal(receive)
        boundary = comm.exchange(wanted, receive, send) - low
        weight = torch.ones(source.numel(), dtype=dtype) if weight is None else weight
        into = weight.new_zeros(n).index_add_(0, target, weight)
        if norm == "row":
            left = into.clamp_min(torch.finfo(into.dtype).tiny).reciprocal()
            right = torch.ones_like(into)
        else:
            out_of = weight.new_zeros(n).index_add_(0, source[near] - low, weight[near])
            # Out-degrees towards other processes are known there: they send them back.
            elsewhere = weight.new_zeros(wanted.numel()).index_add_(0, column, weight[far])
            out_of.index_add_(0, boundary, comm.exchange(elsewhere, receive, send))
            left, right = inverse_sqrt(into), inverse_sqrt(out_of)
        far_right = comm.exchange(right[boundary], send, receive)
        value = weight.clone()
        value[near] *= left[target[near]] * right[source[near] - low]
        value[far] *= left[target[far]] * far_right[column]
        inner = SparseMatrix.from_sorted(
            target[near], source[near] - low, value[near], (n, n), symmetric=symmetric
        )
        outer = SparseMatrix.from_sorted(target[far], column, value[far], (n, wanted.numel()))
        return cls(inner, outer, boundary, send, receive, comm)

    def propagate(self, value: Tensor) -> Tensor:
        """Ã V for the rows held here: O(edges here · width) time, sends the boundary rows."""
        here = self.inner @ value
        return here if self.comm.size == 1 else here + self.outer @ self.received(value)

    def received(self, value: Tensor) -> Tensor:
        """The values of the boundary rows of other processes; sends the own ones they need."""
        needed = value.index_select(0, self.boundary)
        return self.comm.exchange(needed, self.send, self.receive, "boundary")

    def to(self, like: Tensor) -> ShardedGraph:
        """The graph with the dtype and device of `like`; itself when they agree."""
        inner = self.inner.to(like)
        if inner is self.inner:
            return self
        boundary = self.boundary.to(like.device)
        return replace(self, inner=inner, outer=self.outer.to(like), boundary=boundary)

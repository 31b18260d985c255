"""A model and an objective whose rows are spread over processes.

The losses and gradients are those of one process with all rows, up to the order of sums. For each
layer and direction the all-pair term of -s costs one message of d² + 2d + 1 numbers per head,
whatever the number of rows; the graph term sends the boundary rows; -a sends its keys and values
round a ring.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from difformer.core.context import Context
from difformer.core.diffusivity import Diffusivity, Sharp, Sigmoid
from difformer.core.euler import AverageOfStates, add_product
from difformer.core.fixed import FixedAverage
from difformer.core.fused import RowAverage
from difformer.core.rows import landmark_sample
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import Batch
from difformer.metrics import Metric
from difformer.nn.exchange import Exchange
from difformer.nn.inputs import Remembered
from difformer.nn.model import DIFFormer
from difformer.train.formulas import HERE, Together
from difformer.train.objective import Objective
from difformer.train.processes import Comm, ring_average
from difformer.train.sharding import ShardedGraph

SAMPLE = 256  # scores sampled per process to divide the range of scores


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
        kernel = self.model.layers[0].diffusivity
        assert isinstance(kernel, Sharp)
        own, _ = self.comm.span(features.shape[0])
        with torch.no_grad():
            rows = self.comm.gather_rows(features.to_dense())
            if rows.shape[0] > kernel.exact_rows:  # near rows: cheap enough for every process
                return _SpreadAverage(kernel.fixed(rows).block(own), self.comm)
            offset = self.comm.gather_rows(kernel.fixed_offsets(rows, own))
            return _SpreadAverage(kernel.fixed_rows(rows, own, offset), self.comm)

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
        return replace(closed, total=lambda sums: self.comm.sum_in_place(sums, "context"))

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
        mine = super().context(kernel, q, k, v)
        return mine if kernel.local else self.comm.merge(mine)

    def average(self, kernel: Diffusivity, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if isinstance(kernel, Sigmoid) and self.comm.size > 1:
            return ring_average(*kernel.factors(q, k), v, self.comm).mean(0)
        return super().average(kernel, q, k, v)

    def mean(self, u: Tensor) -> Tensor:
        total = torch.cat([u.sum(0), u.new_tensor([u.shape[0]])])
        total = self.comm.sum(total, "context")
        return total[:-1] / total[-1]


@dataclass(frozen=True)
class _SpreadAverage(FixedAverage):
    """Some rows of Ŝ, the values of all rows gathered: O(n d) numbers per process are sent."""

    rows: FixedAverage
    comm: Comm

    def average(self, value: Tensor) -> Tensor:
        return self.rows.average(self.comm.gather_rows(value))


class Summable(Objective, Protocol):
    """An objective whose loss is a weighted mean, and that returns the sum of the weights."""

    def mass(self, output: Tensor, batch: Batch) -> Tensor: ...

    def metrics(
        self, output: Tensor, y: Tensor, rows: Tensor, together: Together = HERE
    ) -> dict[str, float]: ...


@dataclass(frozen=True)
class ShardedObjective:
    """The whole batch's loss as its value, this process's share of it as its gradient."""

    objective: Summable
    comm: Comm

    @property
    def monitor(self) -> Metric:
        return self.objective.monitor

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        mass = self.objective.mass(output, batch).detach()
        whole = self.comm.sum_in_place(mass.clone(), "loss")
        if float(mass) == 0:  # no labelled row here; the others' losses still depend on these rows
            mine = output.sum() * 0
        else:
            mine = self.objective.loss(output, batch) * (mass / whole)
        rest = self.comm.sum_in_place(mine.detach().clone(), "loss") - mine.detach()
        return mine + rest

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        """The metrics of all processes' rows, from this one's: sums are sent, not outputs."""
        return self.objective.metrics(output, y, rows, SpreadSums(self.comm))


class SpreadSums(Together):
    """Sums over the rows of all processes."""

    def __init__(self, comm: Comm) -> None:
        self.comm = comm

    def sum(self, value: Tensor) -> Tensor:
        return self.comm.sum_in_place(value.clone(), "metrics")

    def before(self, count: int) -> int:
        return self.comm.span(count)[0].start

    def by_value(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each process gets the scores of one range: O(n / P) numbers are sent and held.

        Bounds are quantiles of a sample, and equal scores go to the same process.
        """
        comm = self.comm
        if comm.size == 1:
            return score, y
        rows = torch.stack([score.double(), y.double()], 1).cpu()
        rows = rows[rows[:, 0].argsort()]
        some = torch.linspace(0, max(rows.shape[0] - 1, 0), min(rows.shape[0], SAMPLE)).long()
        pooled = comm.gather_rows(rows[some, 0]).sort().values
        if not pooled.numel():
            return score, y
        cuts = pooled[[pooled.numel() * rank // comm.size for rank in range(1, comm.size)]]
        ends = torch.searchsorted(rows[:, 0].contiguous(), cuts, right=True)
        bounds = torch.cat([ends.new_zeros(1), ends, ends.new_tensor([rows.shape[0]])])
        send = bounds.diff().tolist()
        found = comm.swap(rows, send, comm.deal(send))
        return found[:, 0], found[:, 1]

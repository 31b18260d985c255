"""Training one model on rows spread over processes: source, model and objective.

The losses and gradients are those of one process with all rows, up to the order of sums. For each
layer and direction the all-pair term of -s costs one message of d² + 2d + 1 numbers per head,
whatever the number of rows; the graph term sends the boundary rows; -a sends its keys and values
round a ring.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.context import Context
from difformer.core.diffusivity import Diffusivity, Sharp, Sigmoid
from difformer.core.euler import AverageOfStates, add_product
from difformer.core.fixed import FixedAverage
from difformer.core.fused import RowAverage
from difformer.core.graph import Graph
from difformer.core.randomness import generator
from difformer.core.sparse import SparseMatrix
from difformer.data.batch import Batch
from difformer.data.split import PARTS, HeldSplit
from difformer.nn.exchange import Exchange
from difformer.nn.model import DIFFormer
from difformer.nn.remembered import Remembered
from difformer.train.background import background_worker
from difformer.train.batches import hide_labels, predict
from difformer.train.comm import Comm
from difformer.train.metrics import HERE, Together
from difformer.train.objective import Monitor
from difformer.train.partition import Epoch, bucket
from difformer.train.ring import ring_average
from difformer.train.sharding import Layout, LocalEdges, ShardedGraph

if TYPE_CHECKING:
    from difformer.data import Dataset, Split


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
        counts = self.comm.counts(features.shape[0])
        start = sum(counts[: self.comm.rank])
        sample = self.model.landmark_sample(sum(counts))
        mine = sample[(sample >= start) & (sample < start + features.shape[0])] - start
        dense = (
            features[mine] if isinstance(features, Tensor) else features.rows(mine).csr.to_dense()
        )
        self.model.set_landmarks(self.comm.gather_rows(dense))
        self.comm.broadcast(landmarks.data)

    def _fixed_average(self, features: Tensor | SparseMatrix) -> FixedAverage:
        """Ŝ of this process's rows; all rows' features are held while it is computed."""
        kernel = self.model.layers[0].diffusivity
        assert isinstance(kernel, Sharp)
        mine = features if isinstance(features, Tensor) else features.csr.to_dense()
        counts = self.comm.counts(mine.shape[0])
        start = sum(counts[: self.comm.rank])
        with torch.no_grad():
            rows = self.comm.gather_rows(mine)
            own = slice(start, start + mine.shape[0])
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
        packed = torch.cat([g.reshape(-1) for g in grads])
        self.comm.sum_in_place(packed, "gradients")
        pieces = packed.split([g.numel() for g in grads])
        for parameter, piece in zip(trained, pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()

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


class Summable(Protocol):
    """An objective whose loss is a weighted mean, and that returns the sum of the weights."""

    @property
    def monitor(self) -> Monitor: ...

    def loss(self, output: Tensor, batch: Batch) -> Tensor: ...

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
    def monitor(self) -> Monitor:
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
        return sum(self.comm.counts(count)[: self.comm.rank])

    def by_value(self, score: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Each process gets the scores of one range: O(n / P) numbers are sent and held.

        Bounds are quantiles of a sample, and equal scores meet in one process.
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
        send = bounds.diff()
        receive = comm.swap(send, [1] * comm.size, [1] * comm.size)
        found = comm.swap(rows, send.tolist(), receive.tolist())
        return found[:, 0], found[:, 1]


def held_split(mark: Tensor, split: str, sizes: Mapping[str, int], text: str | None) -> HeldSplit:
    """The split of the rows held here, by (n_r,) marks: 0, 1, 2 for train, val, test, else -1."""
    train, val, test = (torch.nonzero(mark == i).flatten() for i in range(len(PARTS)))
    return HeldSplit(split, train, val, test, sizes=sizes, text=text)


def draw_anew(seed: int, number: int, comm: Comm) -> None:
    """Seed an epoch's dropout by its number and the rank: a restarted run draws the same."""
    if comm.size == 1:
        return
    words = np.random.SeedSequence([seed, number, comm.rank]).generate_state(1)
    own = generator()
    draw: Any = torch.manual_seed if own is None else own.manual_seed
    draw(int(words[0]))


class Shards:
    """The rows this process holds, whole or in the mini-batches of `Partitions`. Source of batches.

    A mini-batch is the same random set of rows for any number of processes; each contributes those
    it holds. There is one pass over the edges per epoch, in the background. Dropout is seeded for
    each epoch and process, so that a restarted run draws the same.

    Args:
        dataset, split, graph: the whole data, the same on every process; only the process's own
            rows and edges are kept. Features may be memory-mapped: only its rows are read.
        comm: the processes.
        partition: "range" or "metis": which rows go where.
        batch_size: rows in a batch of all processes together; None for all rows.
        seed: with the epoch's number it decides the batches and, with the rank, dropout.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        graph: Graph | None,
        comm: Comm,
        *,
        partition: str = "range",
        batch_size: int | None = None,
        seed: int = 0,
    ) -> None:
        n = dataset.num_rows
        if batch_size is not None and not 1 <= batch_size <= n:
            raise ValueError(
                f"batch_size must lie in 1 to {n}, the number of rows, not {batch_size}"
            )
        self.comm, self._size, self._seed = comm, batch_size, seed
        self.layout = Layout.make(graph, n, comm, partition)
        labels = dataset.y if dataset.task == "multiclass" else dataset.y.reshape(n, -1)
        held = self.layout.order[self.layout.own(comm.rank)]
        self.y = labels[held]
        mark = torch.full((n,), -1, dtype=torch.int8)
        for index, part in enumerate(PARTS):
            mark[getattr(split.check(n), part)] = index
        sizes = {part: split.size(part) for part in PARTS}
        self.split = held_split(mark[held], split.name, sizes, split.to_json())
        trains = torch.zeros(n, dtype=torch.bool)
        trains[split.train] = True
        self._trains = trains[self.layout.order]  # by new id, of all rows
        y = hide_labels(self.y, self.split.train)
        sparse = dataset.x.layout != torch.strided
        self._sparse = SparseMatrix.from_csr(dataset.x).rows(held) if sparse else None
        x = dataset.x[held] if self._sparse is None else self._sparse.csr
        self._edges = None if graph is None else LocalEdges.of(graph, self.layout, comm.rank)
        whole = None
        if self._edges is not None:
            whole = ShardedGraph.build(self._edges, list(self.layout.starts), comm)
        self._all = Batch(x, y, whole, self.split.train, counted=int(trains.sum()))
        self._worker: ThreadPoolExecutor | None = None
        self._next: tuple[int, Future[Any]] | None = None

    def observed(self) -> Batch:
        return self._all

    def epoch(self, number: int) -> Iterator[Batch]:
        draw_anew(self._seed, number, self.comm)
        if self._size is None:
            yield self._all
            return
        if self._worker is None:
            self._worker = background_worker()
        pending = self._next[1] if self._next and self._next[0] == number else None
        plan: _Plan = (pending or self._worker.submit(self._plan, number)).result()
        self._next = number + 1, self._worker.submit(self._plan, number + 1)
        for index in range(len(plan.members)):
            batch = self._batch(plan, index)
            if batch.size:
                yield batch

    def evaluate(self, model: nn.Module) -> Tensor:
        """Outputs of the rows held here."""
        return predict(model, self._all).output

    def to(self, device: torch.device) -> Shards:
        if device == self._all.x.device:
            return self
        moved = object.__new__(Shards)
        moved.__dict__.update(self.__dict__)
        moved._all, moved.y = self._all.to(device), self.y.to(device)
        moved._worker, moved._next = None, None
        return moved

    def _plan(self, number: int) -> _Plan:
        """The part of an epoch's preparation that needs no other process."""
        assert self._size is not None
        n = self.layout.order.numel()
        part = Epoch.draw(n, self._size, [self._seed, number], None).part[self.layout.order]
        batches = -(-n // self._size)
        order = torch.from_numpy(np.argsort(part.numpy(), kind="stable"))
        members = list(order.split(torch.bincount(part, minlength=batches).tolist()))
        place = torch.empty(n, dtype=torch.int64)
        for ids in members:
            place[ids] = torch.arange(ids.numel())
        edges: list[Tensor] = []
        if self._edges is not None:
            edges = bucket(part, self._edges.ends, self._edges.edge_index.shape[1], batches)
        return _Plan(members, place, edges)

    def _batch(self, plan: _Plan, index: int) -> Batch:
        members, own = plan.members[index], self.layout.own(self.comm.rank)
        starts = torch.searchsorted(members, torch.tensor(self.layout.starts)).tolist()
        mine = members[starts[self.comm.rank] : starts[self.comm.rank + 1]] - own.start
        graph = None
        if self._edges is not None:
            chosen = plan.edges[index]
            weight = None if self._edges.weight is None else self._edges.weight[chosen]
            ends = plan.place[self._edges.edge_index[:, chosen]]
            local = replace(self._edges, edge_index=ends, weight=weight)
            graph = ShardedGraph.build(local, starts, self.comm)
        device = self._all.x.device
        where = mine.to(device)
        x = self._all.x[where] if self._sparse is None else self._sparse.rows(mine).csr
        rows = self._trains[own][mine].nonzero().squeeze(1)
        counted = int(self._trains[members].sum())
        y = self._all.y[where]
        return Batch(x.to(device), y, graph, rows.to(device), counted=counted)


@dataclass(frozen=True)
class _Plan:
    """One epoch's batches: their rows by new id, each row's place in its batch, edges held here."""

    members: list[Tensor]
    place: Tensor
    edges: list[Tensor]

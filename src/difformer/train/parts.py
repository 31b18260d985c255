"""The rows that each process trains on, of a dataset in memory or in parts on disk.

All rows at once, or mini-batches: a random partition of the rows each epoch (appendix I.4 of the
paper), each with the edges inside it, that is prepared in a separate thread while the model trains.
On disk an epoch draws runs of neighbouring rows, so that a batch is read in runs; a process opens
only the parts it holds, and holds besides its batches its labels and a few bytes per run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from difformer.core.draws import generator
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import Batch
from difformer.data.split import PARTS, HeldSplit
from difformer.nn.model import DIFFormer
from difformer.shards.folder import Held, ShardFolder
from difformer.shards.partition import metis_parts
from difformer.train.batches import (
    hide_labels,
    labels_of,
    outputs_of,
    predict,
    training_labels,
)
from difformer.train.processes import ALONE, Comm
from difformer.train.sharded import ShardedGraph

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.data.split import Split

MOST_RUNS = 2**20  # runs of rows in an epoch; with no more rows on disk than this, each is a run
AHEAD = 2  # batches prepared in advance while the model trains

T = TypeVar("T")
Edges = tuple[Tensor, Tensor, Tensor | None]
"""Sources, targets and weights, sorted by target, then source."""
Plan = tuple[list[Tensor], Tensor, Tensor]
"""The sorted runs of each batch; of each run, its batch and its place there."""


class Parts:
    """The rows that this process holds, in memory or on disk. Source of batches.

    A mini-batch is the same random set of rows for any number of processes, in the order of their
    ids; each process contributes those it holds. Dropout is seeded for each epoch and process, so
    that a restarted run draws the same.

    Args:
        held: the labels and split of the rows of this process and the edges that enter them, and
            their features on disk.
        split: of these rows.
        starts: the first row that each process holds, and the number of rows.
        comm: the processes.
        model: decides which of the data is read, and in which precision; None: all of it, as it is.
        x: (n_r, p) the features held in memory.
        graph: the one over all rows that one process holds in memory.
        batch_size: rows in a batch of all processes together; None for all rows.
        seed: with the epoch's number it decides the batches and, with the rank, dropout.
        symmetric: the whole graph is.
        chunk: rows that the model processes at a time when one process evaluates all.
        runs: the most runs of rows that are drawn.
        ids: (n,) the row that each drawn number stands for; None for the same.
    """

    def __init__(
        self,
        held: Held,
        split: Split,
        starts: Sequence[int],
        comm: Comm,
        model: DIFFormer | None = None,
        *,
        x: Tensor | None = None,
        graph: Graph | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        symmetric: bool = True,
        chunk: int | None = None,
        runs: int = MOST_RUNS,
        ids: Tensor | None = None,
    ) -> None:
        n = starts[-1]
        check_batch_size(batch_size, n)
        self.held, self.split, self.comm, self.y, self._x = held, split, comm, held.y, x
        dense = x is None or x.layout == torch.strided
        self._sparse = None if x is None or dense else SparseMatrix.from_csr(x)
        self._starts, self._size, self._seed, self._chunk = list(starts), batch_size, seed, chunk
        self._ids, self._graph, self._symmetric = ids, graph, symmetric
        self._joined = held.joined and (model is None or model.config.use_graph)
        # One process passes the graph unchanged; the model prepares it.
        self._mean = model is not None and model.config.graph_norm == "row" and comm.size > 1
        self._dtype = None if model is None else model.input.weight.dtype
        self._seen = hide_labels(self.y, split.train)
        self._device = torch.device("cpu")
        self._run = 1 if batch_size is None else min(-(-n // runs), batch_size)
        # Rows on disk are evaluated in batches too: all at once may not fit into memory.
        self._all = None if x is None and batch_size is not None else self._everything()
        self.outputs: Tensor | None = None  # of the rows held, when they were last evaluated

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        split: Split,
        graph: Graph | None = None,
        model: DIFFormer | None = None,
        comm: Comm = ALONE,
        *,
        partition: str = "range",
        **options: Any,
    ) -> Parts:
        """From the whole data, the same on every process, which keeps its own rows and edges.

        One process keeps the data as it is; features may be memory-mapped: only rows that are held
        or in a batch are read. `partition` is that of `layout`.
        """
        n = dataset.num_rows
        check_batch_size(options.get("batch_size"), n)
        if graph is not None and graph.num_nodes != n:
            raise ValueError(f"graph must have the dataset's {n} rows, it has {graph.num_nodes}")
        order, starts = layout(graph, n, comm, partition)
        x, y, mark = dataset.x, labels_of(dataset), torch.full((n,), -1, dtype=torch.int8)
        training_labels(y, split)
        for index, part in enumerate(PARTS):
            mark[getattr(split, part)] = index
        rows, ids = order, None
        if comm.size > 1:
            rows, ids = order[starts[comm.rank] : starts[comm.rank + 1]], torch.argsort(order)
            x = x[rows] if x.layout == torch.strided else SparseMatrix.from_csr(x)[rows].csr
            y, mark = y[rows], mark[rows]
        arrays = {"y": y, "split": mark, "row": rows, **_edges(graph, rows, ids)}
        held = Held(starts[comm.rank], ({k: array.numpy() for k, array in arrays.items()},))
        sizes = {part: split.size(part) for part in PARTS}
        options |= {"symmetric": graph is None or graph.symmetric, "runs": n, "ids": ids}
        options |= {"x": x, "graph": graph if comm.size == 1 else None}
        return cls(
            held, _held_split(held, split.name, sizes, split), starts, comm, model, **options
        )

    @classmethod
    def on_disk(cls, shards: ShardFolder, model: DIFFormer, comm: Comm, **options: Any) -> Parts:
        """From a sharded dataset; the parts of this process are verified and mapped."""
        manifest, starts = shards.manifest, shards.starts(comm.size)
        check_batch_size(options.get("batch_size"), manifest.rows)
        held = shards.hold(*shards.share(comm.rank, comm.size))
        sizes = {part: manifest.size(part) for part in PARTS}
        return cls(held, _held_split(held, manifest.split, sizes), starts, comm, model, **options)

    def observed(self) -> Batch:
        if self._all is None:
            raise ValueError("batch_size must be None for a model that looks at all rows first")
        return self._all.to(self._device)

    def epoch(self, number: int) -> Iterator[Batch]:
        seed_epoch(self._seed, number, self.comm)
        if self._size is None:
            yield self.observed()
            return
        for _, batch in self._batches(number):
            if batch.size:
                yield batch

    def evaluate(self, model: nn.Module, rows: Tensor | None = None) -> Tensor:
        """Outputs of the rows held here."""
        if self._all is not None:
            chunked = self._chunk is not None and isinstance(model, DIFFormer)
            whole = self._all if chunked else self.observed()
            self.outputs = outputs_of(model, whole, self._chunk)
            return self.outputs
        out: Tensor | None = None
        for mine, batch in self._batches(0):
            found = predict(model, batch).output
            out = found.new_empty(self.held.rows, found.shape[1]) if out is None else out
            out[mine.to(out.device)] = found
        assert out is not None
        self.outputs = out
        return out

    def to(self, device: torch.device) -> Parts:
        """The same source, handing out its batches on a device; what is held stays where it is."""
        if device != self._device:
            self._device, self.y = device, self.y.to(device)
            if self._size is None:
                self._all = self.observed()
        return self

    def _everything(self) -> Batch:
        held, graph = self.held, self._graph
        if self._joined and graph is None:
            target = torch.repeat_interleave(torch.arange(held.rows), held.crow.diff()) + held.start
            graph = self._made((held.col, target, held.weight), self._starts)
        x = held.x if self._x is None else self._x
        counted = None if self.comm.size == 1 else self.split.size("train")
        return Batch(x.to(dtype=self._dtype), self._seen, graph, self.split.train, counted=counted)

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return background_worker()

    def _batches(self, number: int) -> Iterator[tuple[Tensor, Batch]]:
        """The batches of an epoch, read ahead, and the places of their rows among those held."""
        assert self._size is not None
        runs, per_batch = -(-self._starts[-1] // self._run), max(1, self._size // self._run)
        plan = draw(runs, per_batch, [self._seed, number], self._ids)
        reads = ahead(self._worker, partial(self._read, plan), len(plan[0]))
        for (mine, starts, edges, batch), counted in zip(reads, self._counted(plan), strict=True):
            # Processes agree on the boundary here, all in the same order.
            graph = batch.graph if edges is None else self._made(edges, starts)
            yield mine, replace(batch, graph=graph, counted=counted).to(self._device)

    def _counted(self, plan: Plan) -> list[int]:
        """How many training rows each batch has in all processes: one short message."""
        of = plan[1][(self.split.train.cpu() + self.held.start) // self._run].long()
        return self.comm.sum(torch.bincount(of, minlength=len(plan[0])), "plan").tolist()

    def _read(self, plan: Plan, index: int) -> tuple[Tensor, list[int], Edges | None, Batch]:
        """One process's share of a batch; needs no other process.

        The places of its rows among those held, where each process's rows begin in the batch, the
        edges of a graph that all processes have to make together, and the rest of the batch.
        """
        held, run, (batches, part, place) = self.held, self._run, plan
        rows = (batches[index][:, None] * run + torch.arange(run)).flatten()
        rows = rows[rows < self._starts[-1]]  # the last run may be a shorter one
        starts = torch.searchsorted(rows, torch.tensor(self._starts)).tolist()
        first = starts[self.comm.rank]
        mine = rows[first : starts[self.comm.rank + 1]] - held.start
        edges, graph = None, None
        if self._joined:
            source, target, weight = held.entering(mine)
            of = source if run == 1 else source // run
            inside = (part.index_select(0, of) == index).nonzero().squeeze(1)
            source, of = source[inside], of[inside]
            source = place.index_select(0, of).long() * run + source - of * run
            edges = source, target[inside] + first, None if weight is None else weight[inside]
            if self.comm.size == 1:
                edges, graph = None, self._made(edges, starts)
        trains = (held.splits(mine) == 0).nonzero().squeeze(1)
        x = self._features(mine).to(dtype=self._dtype)
        return mine, starts, edges, Batch(x, self._seen[mine], graph, trains)

    def _features(self, mine: Tensor) -> Tensor:
        if self._x is None:
            return self.held.features(mine)
        return self._x[mine] if self._sparse is None else self._sparse[mine].csr

    def _made(self, edges: Edges, starts: list[int]) -> Any:
        """The graph of a batch, normalised within it; its rows are those of all processes."""
        source, target, weight = edges
        made: dict[str, Any] = {"symmetric": self._symmetric, "dtype": self._dtype}
        if self.comm.size == 1:
            made["norm"] = "symmetric" if self._graph is None else self._graph.norm
            return Graph.from_sorted(source, target, starts[-1], weight, **made)
        if weight is not None:  # normalised in the model's precision, or their own if that is more
            weight = weight.to(torch.promote_types(weight.dtype, self._dtype or weight.dtype))
        if self._mean:
            keep, made["symmetric"], made["norm"] = source != target, False, "row"
            source, target = source[keep], target[keep]
            weight = None if weight is None else weight[keep]
        return ShardedGraph.build(source, target, weight, starts, self.comm, **made)


def layout(
    graph: Graph | None, n: int, comm: Comm, partition: str = "range"
) -> tuple[Tensor, list[int]]:
    """Which process holds which row: the old id of each new one, and where its ranges begin.

    Equal ranges of the ids as they are, or METIS's parts, which cut few edges: METIS runs on rank
    0 and its answer is sent to the others.
    """
    if comm.size > n:
        raise ValueError(f"rows must be at least one per process, got {n} for {comm.size}")
    if partition == "range" or graph is None or comm.size == 1:
        return torch.arange(n), [n * r // comm.size for r in range(comm.size + 1)]
    part = torch.empty(n, dtype=torch.int64)
    if comm.rank == 0:
        part.copy_(_metis(graph, comm.size))
    comm.broadcast(part)
    counts = torch.bincount(part, minlength=comm.size)
    return torch.argsort(part, stable=True), [0, *counts.cumsum(0).tolist()]


def _metis(graph: Graph, parts: int) -> Tensor:
    edges = graph.edge_index
    if not graph.symmetric:
        edges = Graph.from_edges(edges, graph.num_nodes, undirected=True).edge_index
    source, target = edges[:, edges[0] != edges[1]]
    ends = torch.bincount(target, minlength=graph.num_nodes).cumsum(0)
    whole = (0, ends.numpy(), source.numpy())
    return torch.from_numpy(metis_parts(lambda: [whole], graph.num_nodes, parts))


def _edges(graph: Graph | None, rows: Tensor, ids: Tensor | None) -> dict[str, Tensor]:
    """The edges that enter rows, compressed, by new ids: sorted by target, then source."""
    if graph is None:
        return {}
    csr, weight = graph.adjacency.csr, graph.edge_weight
    arrays = {"crow": csr.crow_indices(), "col": csr.col_indices()}
    arrays |= {} if weight is None else {"weight": weight}
    if ids is None:
        return arrays
    whole = {**arrays, "row": torch.arange(graph.num_nodes)}
    whole = Held(0, ({name: array.numpy() for name, array in whole.items()},))
    source, target, weight = whole.entering(rows)
    source = ids[source]
    order = torch.argsort(target * graph.num_nodes + source)
    counts = torch.bincount(target, minlength=len(rows))
    arrays = {"crow": torch.cat([counts.new_zeros(1), counts.cumsum(0)]), "col": source[order]}
    return arrays if weight is None else {**arrays, "weight": weight[order]}


def _held_split(
    held: Held, name: str, sizes: dict[str, int], whole: Split | None = None
) -> HeldSplit:
    """The split of the rows held here, by their marks: 0, 1, 2 for train, val, test, else -1."""
    train, val, test = (torch.nonzero(held.split == i).flatten() for i in range(len(PARTS)))
    text = None if whole is None else whole.to_json()
    return HeldSplit(name, train, val, test, sizes=sizes, text=text)


def check_batch_size(batch_size: int | None, n: int) -> None:
    """Raise a ValueError unless it is None, for all rows at once, or at most their number."""
    if batch_size is not None and not 1 <= batch_size <= n:
        raise ValueError(
            f"batch_size must lie in 1 to {n}, the number of rows, got {batch_size}; "
            "leave it out to train on all rows at once"
        )


def seed_epoch(seed: int, number: int, comm: Comm) -> None:
    """Seed an epoch's dropout by its number and the rank: a restarted run draws the same."""
    if comm.size == 1:
        return
    words = np.random.SeedSequence([seed, number, comm.rank]).generate_state(1)
    own = generator()
    draw: Any = torch.manual_seed if own is None else own.manual_seed
    draw(int(words[0]))


def draw(n: int, size: int, seed: list[int], ids: Tensor | None = None) -> Plan:
    """Draw a partition of n runs into batches of `size`; `ids` are the numbers they get. O(n)."""
    state = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
    drawn = torch.randperm(n, generator=torch.Generator().manual_seed(state))
    drawn = drawn if ids is None else ids[drawn]
    batches = [part.sort().values for part in drawn.split(size)]
    part = torch.empty(n, dtype=torch.int16 if len(batches) < 2**15 else torch.int32)
    place = torch.empty(n, dtype=torch.int32)
    for index, members in enumerate(batches):
        part[members] = index
        place[members] = torch.arange(members.numel(), dtype=torch.int32)
    return batches, part, place


def ahead(worker: ThreadPoolExecutor, make: Callable[[int], T], count: int) -> Iterator[T]:
    """make(0) to make(count − 1), each begun early in another thread."""
    waiting: deque[Future[T]] = deque()
    try:
        for index in range(count):
            while len(waiting) <= AHEAD and index + len(waiting) < count:
                waiting.append(worker.submit(make, index + len(waiting)))
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def background_worker() -> ThreadPoolExecutor:
    """One thread for preparing batches, in which PyTorch uses a single thread.

    By default each thread gets its own OpenMP team, and once there are more threads than
    processors, OpenMP lets all of them sleep between operators: the model's steps would be slower
    for as long as the thread exists, even while it waits.
    """
    threads = torch.get_num_threads()
    worker = ThreadPoolExecutor(1, "difformer-batches", initializer=_alone)
    worker.submit(int).result()
    # The number one thread sets is also the default of threads started later.
    torch.set_num_threads(threads)
    return worker


def _alone() -> None:
    torch.get_num_threads()  # a thread starts with the common number; only then can it set its own
    torch.set_num_threads(1)

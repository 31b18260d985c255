"""What the trained model of a run computes on its data: states, and which rows influence which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.data.dataset import Dataset, Prediction
from difformer.data.snapshots import TemporalDataset
from difformer.data.split import Split
from difformer.jobs.rows import last_snapshot
from difformer.nn.model import DIFFormer
from difformer.nn.passages import Passage
from difformer.runs.open import LoadedRun, look_into
from difformer.systems.difformer import Auto
from difformer.train.batches import Snapshots


@dataclass(frozen=True)
class Inspection:
    """A run's model on its data: outputs and states of all rows."""

    dataset: Dataset
    split: Split
    graph: Any | None
    model: nn.Module
    output: Tensor  # (n, c) logits or targets
    states: list[Tensor]  # Z⁰ … Zᴷ; only the output if the model has no states
    within: Inspection | None = None  # for data over time: one snapshot, whose rows interact
    title: str = ""

    @property
    def difformer(self) -> DIFFormer | None:
        """The model if it is a DIFFormer, which alone has energies and diffusivities."""
        return self.model if isinstance(self.model, DIFFormer) else None

    @property
    def class_names(self) -> list[str]:
        """A name for each class."""
        given = list(self.dataset.class_names)
        count = max(self.output.shape[1], len(given))
        return [*given, *(f"class {i}" for i in range(len(given), count))]

    @property
    def probability(self) -> Tensor:
        """(n, c) class probabilities; logits through a softmax, yes-or-no through a sigmoid."""
        if self.dataset.task == "multiclass":
            return self.output.softmax(-1)
        return self.output.sigmoid()


def inspect_run(run: LoadedRun) -> Inspection:
    """Run the model once on all its rows."""
    model, data, split, graph = run.model, run.dataset, run.split, run.graph
    if isinstance(data, TemporalDataset):
        return _inspect_snapshots(model, data, split)
    with torch.no_grad():
        result: Tensor | Prediction = model(data.x, graph, None, None)
        output = result if isinstance(result, Tensor) else result.output
        states = model.states(data.x, graph) if isinstance(model, DIFFormer) else [output]
    if run.own is not None and data.task == "regression":
        output = torch.as_tensor(run.own.estimator.transduction_)  # in the units of the label
    if output.ndim == 1:
        output = output.unsqueeze(1)
    found = Inspection(data, split, graph, model, output, states)
    return _inspect_average(found, model) if isinstance(model, Auto) else found


def _inspect_average(found: Inspection, model: Auto) -> Inspection:
    """Outputs of the average; states of the member that is looked into."""
    fitted = model.fitted
    assert fitted is not None  # it has just answered
    shown, seen, graph = look_into(fitted, found.dataset)
    with torch.no_grad():
        states = shown.states(seen.x, graph)
    title = f"{model.choice}. What follows is of {fitted.shown_member.name}."
    inner = Inspection(seen, found.split, graph, shown, found.output, states)
    return replace(found, within=inner, title=title[:1].upper() + title[1:])


def _inspect_snapshots(model: nn.Module, data: TemporalDataset, split: Split) -> Inspection:
    """Outputs of all rows; states of the last snapshot, because snapshots do not interact."""
    with torch.no_grad():
        output = Snapshots(data, split).evaluate(model)
    n, last = data.num_nodes, data.num_snapshots - 1
    rows = slice(last * n, (last + 1) * n)
    one, graph = last_snapshot(data)
    with torch.no_grad():
        states = model.states(one.x, graph) if isinstance(model, DIFFormer) else [output[rows]]
    ends = {name: getattr(split, name) == last * n for name in ("train", "val", "test")}
    train, val, test = (torch.arange(n if bool(found.any()) else 0) for found in ends.values())
    inner = Inspection(one, Split("snapshot", train, val, test), graph, model, output[rows], states)
    title = f"Of the last of {data.num_snapshots:,} snapshots: snapshots do not interact."
    return Inspection(data, split, None, model, output, states, within=inner, title=title)


CHUNK = 2**23  # diffusivities held together
MOST_PAIRS = 2**29  # diffusivities computed per layer of a page: a few seconds


class LayerWeights:
    """Ŝ of one layer of a model on given rows, kept as queries and keys. O(n d h) memory.

    Ŝ is averaged over heads, as the layer does; each row sums to one.
    """

    def __init__(self, passage: Passage) -> None:
        with torch.no_grad():
            self.q, self.k, _ = passage.project()
        self.kernel, self.n = passage.layer.diffusivity, passage.before.shape[0]

    def rows(self, rows: Tensor) -> Tensor:
        """Ŝ[rows] (r, n)."""
        with torch.no_grad():
            return self.kernel.weights_of(rows, self.q, self.k).mean(-3)

    def chunks(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of (some of the rows, their Ŝ), until all rows are covered."""
        size = max(1, CHUNK // (self.n * self.q.shape[0]))
        for part in rows.split(size):
            yield part, self.rows(part)

    def average(self, value: Tensor) -> Tensor:
        """Σ_j Ŝ_ij value_j (n, e) at the layer's own cost: O(n d e) where Ŝ separates."""
        heads = self.q.shape[0]
        with torch.no_grad():
            return self.kernel(self.q, self.k, value.expand(heads, -1, -1)).mean(-3)


def layer_weights(model: DIFFormer, x: Tensor, graph: Any = None) -> list[LayerWeights]:
    """The weights of every layer of a model on given rows, at the cost of a forward pass."""
    with torch.no_grad():
        return [LayerWeights(passage) for passage in model.passages(x, graph)]


@dataclass(frozen=True)
class Pairs:
    """The strongest pairs, strongest first: row `target` gets `weight` from row `source`."""

    target: Tensor  # (k,)
    source: Tensor  # (k,)
    weight: Tensor  # (k,) Ŝ[target, source]
    uniform: float  # 1/n, the weight of every pair if all were equal


def strongest(weights: LayerWeights, *, k: int, rows: Tensor | None = None) -> Pairs:
    """The k largest Ŝ_ij with i ≠ j of a layer, exactly: O(n² d) time, O(k + chunk) memory.

    `rows` restricts both ends to some rows (Ŝ is still that of all rows).
    """
    if k < 1:
        raise ValueError(f"k must be a whole number of at least 1, got {k!r}")
    within = torch.arange(weights.n) if rows is None else rows.sort().values
    best = torch.empty(0)
    ends = torch.empty(2, 0, dtype=torch.int64)
    for part, block in weights.chunks(within):
        columns = block[:, within].float()
        columns[part.unsqueeze(1) == within] = -1.0  # a row is not paired with itself
        flat = columns.flatten()
        found = flat.topk(min(k, flat.numel()))
        i, j = found.indices // within.numel(), found.indices % within.numel()
        best = torch.cat([best, found.values])
        ends = torch.cat([ends, torch.stack([part[i], within[j]])], dim=1)
        keep = best.argsort(descending=True, stable=True)[:k]
        best, ends = best[keep], ends[:, keep]
    real = best > 0
    return Pairs(ends[0, real], ends[1, real], best[real], 1.0 / weights.n)


@dataclass(frozen=True)
class ClassFlow:
    """How much of its diffusivity each class gives to each class, in one layer.

    `flow[a, b]` is the mean over rows of class a of Σ_{j in b} Ŝ_ij: rows sum to one, less what
    goes to rows without a class; a class without rows is nan. `within` is the mean over all rows of
    the share that goes to their own class, and `expected` that of a uniform Ŝ.
    """

    flow: Tensor  # (c, c)
    within: float
    expected: float

    @property
    def lift(self) -> float:
        """How many times more goes to a row's own class than with uniform weights."""
        return self.within / self.expected if self.expected else float("nan")


def flow_between(weights: LayerWeights, y: Tensor) -> ClassFlow:
    """The share of a layer's diffusivity within and across classes; the cost of one layer.

    Ŝ times the one-hot labels is one more average, so pairs are never enumerated.

    Args:
        y: (n,) int64 classes, -1 where unknown.
    """
    if y.shape != (weights.n,) or y.is_floating_point():
        raise ValueError(f"y must be ({weights.n},) whole numbers, one class per row")
    known = y >= 0
    classes = int(y.max()) + 1 if bool(known.any()) else 0
    if classes == 0:
        raise ValueError("y must hold at least one class, every row is unknown")
    one_hot = torch.zeros(weights.n, classes, dtype=weights.q.dtype)
    one_hot[known] = F.one_hot(y[known], classes).to(one_hot.dtype)
    shares = weights.average(one_hot)  # (n, c)
    counts = one_hot.sum(0)
    flow = (one_hot.T @ shares) / counts.unsqueeze(1)  # 0/0 is nan: a class without rows
    own = shares[known].gather(1, y[known].unsqueeze(1))
    expected = float((counts / counts.sum() * counts / weights.n).sum())
    return ClassFlow(flow, float(own.mean()), expected)


@dataclass(frozen=True)
class Concentration:
    """The effective number of rows that influence a row, in one layer.

    The effective number 1 / Σ_j Ŝ_ij² is n where all weights are alike, and 1 where one row takes
    all; `each` holds it for the chosen rows.
    """

    each: Tensor  # (r,)
    n: int

    @property
    def median(self) -> float:
        return float(self.each.median())

    @property
    def share(self) -> float:
        """The median as a share of all rows: 1 is uniform."""
        return self.median / self.n


def spread(weights: LayerWeights, rows: Tensor | None = None) -> Concentration:
    """The effective number of neighbours of `rows` (by default all): O(r n d) time."""
    rows = torch.arange(weights.n) if rows is None else rows
    each = [1.0 / block.double().square().sum(1) for _, block in weights.chunks(rows)]
    return Concentration(torch.cat(each), weights.n)

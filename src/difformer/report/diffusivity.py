"""Which rows influence which, how much within and across classes, and how many at a time.

No function here holds an n × n matrix: rows are processed in chunks, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.nn.model import DIFFormer
from difformer.nn.passages import Passage

__all__ = [
    "ClassFlow",
    "Concentration",
    "LayerWeights",
    "Pairs",
    "flow_between",
    "layer_weights",
    "spread",
    "strongest",
]

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

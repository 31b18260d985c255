"""Which rows of a trained model influence which, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.blocks import Note, Section, Table, number
from difformer.nn.model import DIFFormer
from difformer.nn.exchange import Passage
from difformer.runs.open import LoadedRun

CHUNK = 2**23  # diffusivities held together
MOST_PAIRS = 2**29  # diffusivities computed per layer of a page: a few seconds
ROWS_SPREAD = 500  # rows whose effective number of neighbours is computed


class LayerWeights:
    """Ŝ of one layer of a model on given rows, kept as queries and keys. O(n d h) memory.

    Ŝ is averaged over heads, as the layer does; each row sums to one.
    """

    def __init__(self, passage: Passage) -> None:
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

    @property
    def affordable(self) -> int:
        """How many rows' Ŝ a page computes."""
        return MOST_PAIRS // (self.n * self.q.shape[0])


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
        return self.within / self.expected


def flow_between(weights: LayerWeights, y: Tensor) -> ClassFlow:
    """The share of a layer's diffusivity within and across classes; the cost of one layer.

    Ŝ times the one-hot labels is one more average, so pairs are never enumerated.

    Args:
        y: (n,) int64 classes, -1 where unknown; one at least is known.
    """
    known = y >= 0
    one_hot = torch.zeros(weights.n, int(y.max()) + 1, dtype=weights.q.dtype)
    one_hot[known] = F.one_hot(y[known], one_hot.shape[1]).to(one_hot.dtype)
    shares = weights.average(one_hot)  # (n, c)
    counts = one_hot.sum(0)
    flow = (one_hot.T @ shares) / counts.unsqueeze(1)  # 0/0 is nan: a class without rows
    own = shares[known].gather(1, y[known].unsqueeze(1))
    expected = float((counts / counts.sum() * counts / weights.n).sum())
    return ClassFlow(flow, float(own.mean()), expected)


def spread(weights: LayerWeights, rows: Tensor) -> Tensor:
    """(r,) the effective number of rows that influence each of `rows`: O(r n d) time.

    1 / Σ_j Ŝ_ij² is n where all weights are alike, and 1 where one row takes all.
    """
    each = [1.0 / block.double().square().sum(1) for _, block in weights.chunks(rows)]
    return torch.cat(each)


def sample_rows(n: int, most: int, *, seed: int = 0) -> Tensor:
    """At most `most` of n rows, sorted, drawn at random: O(n)."""
    if n <= most:
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[:most].sort().values


def diffusivity_section(run: LoadedRun, weights: list[LayerWeights]) -> Section:
    """How far diffusivity spreads, and how much of it stays within a class, layer by layer."""
    none: list[Any] = [Note("The model is not a DIFFormer: it has no diffusivity.")]
    return Section("diffusivity", "Diffusivity", _spreads(run, weights) if weights else none)


def _spreads(run: LoadedRun, weights: list[LayerWeights]) -> list[Any]:
    n, y = run.dataset.num_rows, run.dataset.y
    rows = sample_rows(n, min(ROWS_SPREAD, max(1, weights[0].affordable // len(weights))))
    medians = [float(spread(w, rows).median()) for w in weights]
    classes = run.dataset.task == "multiclass" and bool((y >= 0).any())
    flows = [flow_between(w, y) for w in weights] if classes else []
    header = ["layer", "effective neighbours (median)", "share of all rows"]
    header += ["within own class", "if all pairs were alike", "times more"] if flows else []
    cells = [[str(i), number(m), f"{100 * m / n:.3g} %"] for i, m in enumerate(medians, 1)]
    for row, f in zip(cells, flows, strict=False):
        row += [f"{100 * f.within:.3g} %", f"{100 * f.expected:.3g} %", number(f.lift, 3)]
    looked = "" if rows.numel() == n else f" The neighbours: median of {rows.numel():,} rows."
    blocks: list[Any] = [Table("How diffusivity spreads, layer by layer." + looked, header, cells)]
    ends = sorted({0, len(weights) - 1})
    blocks += [Note(_advice(i + 1, medians[i], n, flows[i] if flows else None)) for i in ends]
    if flows and 2 <= flows[0].flow.shape[0] <= 30:
        blocks += [_flow_table(flows[i].flow, i + 1, run.class_names) for i in ends]
    return blocks


def _advice(layer: int, median: float, n: int, flow: ClassFlow | None) -> str:
    text = f"Layer {layer}: a row is influenced by {number(median)} of {n:,} rows in effect"
    if median / n > 0.9:
        text += ", nearly all alike: its all-pair term is close to the mean of all rows"
    elif median < 2:
        text += ": by hardly more than one"
    if flow is not None:
        lift = number(flow.lift, 3)
        text += f"; its own class gets {lift} times what uniform weights would give it"
    return text + "."


def _flow_table(flow: Tensor, layer: int, names: list[str]) -> Table:
    # Shaded from the smallest to the largest share.
    low, high = float(flow.nan_to_num(1.0).min()), float(flow.nan_to_num(0.0).max())
    shades = ((flow - low) / ((high - low) or 1.0)).nan_to_num(0.0).tolist()
    rows = [
        [name, *("–" if v != v else f"{100 * v:.1f}" for v in shares)]
        for name, shares in zip(names, flow.tolist(), strict=False)
    ]
    return Table(
        f"Layer {layer}: of the diffusivity of a row of this class, per cent that comes from each "
        "class (– : a class without rows).",
        ["class", *names[: flow.shape[1]]],
        rows,
        shades,
    )

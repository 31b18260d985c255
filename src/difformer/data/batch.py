"""What a model and an objective see: one batch of rows, and one prediction for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Rows that go through a model in one call; it holds nothing but its tensors.

    Args:
        x: (n, p) features, dense or sparse CSR.
        y: (n,) int64 labels, -1 where unknown or hidden; or (n, t) floats, nan there.
        graph: a prepared ``difformer.core.Graph`` over the n rows, or None.
        rows: indices into this batch of the rows the loss counts.
        segments: (n,) graph id of each row where the batch holds separate graphs, or None.
        weight: (n,) weight of each row in the loss, or None for one each.
        counted: how many rows the loss counts in all processes together, where the batch is one
            process's part of a larger one; None for the length of ``rows``.
    """

    x: Tensor
    y: Tensor
    graph: Any | None
    rows: Tensor
    segments: Tensor | None = None
    weight: Tensor | None = None
    counted: int | None = None

    @property
    def size(self) -> int:
        """The number of rows that the loss averages over."""
        return self.rows.numel() if self.counted is None else self.counted

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device; a tensor already there is not copied."""
        parts = {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}
        moved = {name: part.to(device) for name, part in parts.items()}
        graph = None if self.graph is None else self.graph.to(moved["x"])
        return replace(self, graph=graph, **moved)


@dataclass(frozen=True)
class Prediction:
    """What a model may return in place of a bare tensor: its output and an auxiliary loss."""

    output: Tensor
    penalty: Tensor | None = None

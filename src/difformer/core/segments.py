"""Segments: many separate sets of rows in one tensor, each treated exactly as if it were alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Segments"]


@dataclass(frozen=True)
class Segments:
    """Rows grouped by the graph they belong to, graphs of one size stacked together.

    Each group is an index (g, s) of g graphs with s rows: stacking equal sizes needs no padding,
    so there is nothing that could leak from one graph into another.
    """

    groups: tuple[Tensor, ...]  # each (g, s) int64
    num_rows: int
    contiguous: bool  # one group, rows in order: stacking is a view

    @classmethod
    def from_batch(cls, batch: Tensor, num_rows: int) -> Segments:
        """Group rows by `batch` (n,), the id of each row's graph, in any order; O(n log n)."""
        if batch.shape != (num_rows,):
            raise ValueError(f"batch must have shape ({num_rows},), got {tuple(batch.shape)}")
        if batch.is_floating_point() or batch.dtype == torch.bool:
            raise ValueError(f"batch must hold integers, got {batch.dtype}")
        order = torch.argsort(batch, stable=True)
        counts = torch.unique_consecutive(batch[order], return_counts=True)[1]
        starts = counts.cumsum(0) - counts
        groups: list[Tensor] = []
        for size in torch.unique(counts).tolist():
            first = starts[counts == size]
            within = torch.arange(size, device=batch.device)
            groups.append(order[first.unsqueeze(1) + within])
        in_order = torch.equal(order, torch.arange(num_rows, device=batch.device))
        return cls(tuple(groups), num_rows, len(groups) == 1 and in_order)

    def map(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Apply `function` to the rows of each graph separately; tensors (n, ...) -> (n, ...).

        `function` sees and returns (g, s, ...): a leading dimension of graphs, then rows.
        """
        if self.contiguous:
            shape = self.groups[0].shape
            out = function(*(t.reshape(*shape, *t.shape[1:]) for t in tensors))
            return out.flatten(0, 1)
        parts = [function(*(t[rows] for t in tensors)).flatten(0, 1) for rows in self.groups]
        order = torch.cat([rows.flatten() for rows in self.groups])
        return torch.cat(parts)[torch.argsort(order)]

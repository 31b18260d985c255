"""The graph of an edge list inside torch.export and torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["TracedGraph"]


class TracedGraph:
    """Ã V by gather and scatter, for torch.export and torch.compile: no shape depends on values."""

    def __init__(
        self,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        num_nodes: int,
        norm: str,
        dtype: torch.dtype,
    ) -> None:
        source, target = edge_index[0], edge_index[1]
        weight = torch.ones_like(source, dtype=dtype)
        key = target * num_nodes + source
        if edge_weight is not None:
            key, weight = _merged(key, edge_weight.to(dtype), "sum")
        source, target = key % num_nodes, key // num_nodes
        key = torch.cat([key, source * num_nodes + target])
        key, weight = _merged(key, weight.repeat(2), "amax")
        self.source, self.target = key % num_nodes, key // num_nodes
        weight = torch.where(self.source == self.target, 0.0, weight)
        if norm == "row":
            into = weight.new_zeros(num_nodes).index_add(0, self.target, weight)
            into = into.clamp_min(torch.finfo(weight.dtype).tiny)
            self.loop = torch.zeros_like(into).unsqueeze(-1)
            self.weight = (weight / into[self.target]).unsqueeze(-1)
            return
        scale = weight.new_ones(num_nodes).index_add(0, self.target, weight).rsqrt()
        self.loop = scale.square().unsqueeze(-1)
        self.weight = (weight * (scale[self.target] * scale[self.source])).unsqueeze(-1)

    def propagate(self, value: Tensor) -> Tensor:
        """Ã V, (n, d)."""
        messages = value.index_select(0, self.source) * self.weight.to(value.dtype)
        return (value * self.loop.to(value.dtype)).index_add(0, self.target, messages)


def _merged(key: Tensor, weight: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """Sorted keys; the weights of repeated ones are reduced into the first, the others get 0."""
    key, order = key.sort()
    first = torch.cat([key[:1] >= 0, key[1:] != key[:-1]])
    group = first.long().cumsum(0) - 1
    total = torch.zeros_like(weight).scatter_reduce(
        0, group, weight[order], reduce, include_self=False
    )
    return key, torch.where(first, total[group], 0.0)

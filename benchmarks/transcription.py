"""Plain transcriptions of the paper's algorithms, to measure against: right, and unoptimised.

The graph's normalisation is rebuilt in every layer of every step, messages are gathered and
scattered edge by edge, all tensors are whole, and -a holds n × n × h matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer import DIFFormer


def graph_conv(x: Tensor, edge_index: Tensor) -> Tensor:
    """D^-1/2 A D^-1/2 x for x (n, h, d), from the edge list."""
    n = x.shape[0]
    source, target = edge_index[0], edge_index[1]
    degree = torch.zeros(n, device=x.device, dtype=x.dtype)
    degree.index_add_(0, target, torch.ones_like(target, dtype=x.dtype))
    value = degree[target].rsqrt() * degree[source].rsqrt()
    value = torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
    adjacency = torch.sparse_coo_tensor(torch.stack([target, source]), value, (n, n)).coalesce()
    return torch.stack([adjacency @ x[:, h] for h in range(x.shape[1])], dim=1)


class Transcription(nn.Module):
    """A DIFFormer's own weights, run by the algorithms of appendix E as printed."""

    def __init__(self, model: DIFFormer) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor | None = None) -> Tensor:
        """Outputs (n, out_channels)."""
        model, config = self.model, self.model.config
        z = model.input(x)
        if model.input_norm is not None:
            z = model.input_norm(z)
        z = F.dropout(F.relu(z), config.dropout, self.training)
        for layer in model.layers:
            average = self._all_pairs(layer, z)
            value = self._heads(layer.value, z)
            if edge_index is not None:
                average = average + graph_conv(value, edge_index)
            z = config.tau * average.mean(1) + (1 - config.tau) * z
            if layer.norm is not None:
                z = layer.norm(z)
            z = F.dropout(z, config.dropout, self.training)
        return model.output(z)

    def _all_pairs(self, layer: nn.Module, z: Tensor) -> Tensor:
        q, k, v = (self._heads(m, z) for m in (layer.query, layer.key, layer.value))
        n = z.shape[0]
        if self.model.config.kernel == "sigmoid":
            attention = torch.sigmoid(torch.einsum("nhm,lhm->nlh", q, k))
            normaliser = torch.einsum("nlh,l->nh", attention, z.new_ones(n))
            normaliser = normaliser.unsqueeze(1).repeat(1, n, 1)
            return torch.einsum("nlh,lhd->nhd", attention / normaliser, v)
        if self.model.config.qk_norm == "tensor":
            q, k = q / torch.norm(q, p=2), k / torch.norm(k, p=2)
        else:
            q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
        numerator = torch.einsum("nhm,hmd->nhd", q, torch.einsum("lhm,lhd->hmd", k, v))
        numerator = numerator + v.sum(0, keepdim=True)
        key_sum = torch.einsum("lhm,l->hm", k, z.new_ones(n))
        mass = torch.einsum("nhm,hm->nh", q, key_sum) + n
        return numerator / mass.unsqueeze(2)

    def _heads(self, linear: nn.Linear | None, z: Tensor) -> Tensor:
        if linear is None:
            return z.unsqueeze(1).expand(-1, self.model.config.num_heads, -1)
        return linear(z).view(z.shape[0], self.model.config.num_heads, -1)

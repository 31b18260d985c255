"""GCN (Kipf and Welling 2017), plain or with what makes classic GNNs strong (Luo et al. 2024)."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from difformer.baselines.configs import GCNConfig
from difformer.baselines.layers import Edges, FeatureLinear, GraphModel, make_norm

__all__ = ["GCN", "build"]


class GCN(GraphModel):
    """Graph convolutions of PyTorch Geometric, O(e d + n d²) a layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(D^-1/2 (A + I) D^-1/2 H⁽ᵏ⁾ W_k [+ H⁽ᵏ⁾ R_k])))     (eq. 2)

    Residual, norm and linear head are off in Kipf and Welling's; "Classic GNNs are strong
    baselines" (2024) turns the first two on. The adjacency is normalised once, in the Graph; the
    layers are told not to. Left out: nothing.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    title = "GCN"

    def __init__(self, in_channels: int, out_channels: int, config: GCNConfig) -> None:
        super().__init__()
        hidden, layers = config.hidden_channels, config.num_layers
        if layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {layers}")
        last = hidden if config.head else out_channels
        widths = [in_channels, *[hidden] * (layers - 1), last]
        pairs = list(itertools.pairwise(widths))
        self.convs = nn.ModuleList(GCNConv(a, b, normalize=False) for a, b in pairs)
        # The features may be sparse: PyG's own linear layer would not take them.
        rate = config.input_dropout
        first = FeatureLinear(*pairs[0], dropout=rate, bias=False, init="glorot")
        self.convs[0].lin = first
        inner = pairs if config.head else pairs[:-1]
        self.norms = nn.ModuleList(make_norm(config.norm, b) for _, b in inner)
        self.skips = nn.ModuleList(
            FeatureLinear(a, b, dropout=0.0 if k else rate) if config.residual else nn.Identity()
            for k, (a, b) in enumerate(pairs)
        )
        self.out = nn.Linear(hidden, out_channels) if config.head else None
        self.config = config

    def forward(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        like = next(self.parameters())
        adjacency = self.graph(edge_index, edge_weight, x).to(like).adjacency.csr
        h = x
        for k, (conv, skip) in enumerate(zip(self.convs, self.skips, strict=True)):
            new = conv(h, adjacency)
            h = new + skip(h) if self.config.residual else new
            if k < len(self.norms):
                h = F.relu(self.norms[k](h))
                h = F.dropout(h, self.config.dropout, self.training)
        return h if self.out is None else self.out(h)


def build(config: GCNConfig, in_channels: int, out_channels: int) -> GCN:
    return GCN(in_channels, out_channels, config)

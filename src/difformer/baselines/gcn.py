"""GCN (Kipf and Welling 2017), plain or with what makes classic GNNs strong (Luo et al. 2024)."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from difformer.baselines.configs import GCNConfig
from difformer.baselines.convolutions import ConvStack
from difformer.baselines.layers import Edges, FeatureLinear

__all__ = ["GCN", "build"]


class GCN(ConvStack):
    """Graph convolutions of PyTorch Geometric, O(e d + n d²) a layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(D^-1/2 (A + I) D^-1/2 H⁽ᵏ⁾ W_k [+ H⁽ᵏ⁾ R_k])))     (eq. 2)

    Residual, norm and linear head are off in Kipf and Welling's; "Classic GNNs are strong
    baselines" (2024) turns the first two on. The adjacency is normalised once, in the Graph; the
    layers are told not to. Left out: nothing.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    title = "GCN"
    activation = staticmethod(F.relu)

    def __init__(self, in_channels: int, out_channels: int, config: GCNConfig) -> None:
        super().__init__(config)
        hidden, layers = config.hidden_channels, config.num_layers
        last = hidden if config.head else out_channels
        pairs = list(itertools.pairwise([in_channels, *[hidden] * (layers - 1), last]))
        self.convs = nn.ModuleList(GCNConv(a, b, normalize=False) for a, b in pairs)
        rate = config.input_dropout
        self.convs[0].lin = FeatureLinear(
            *pairs[0], dropout=rate, bias=False, init="glorot", scaled=config.scale_features
        )
        self.join(pairs, out_channels, skip_dropout=rate)

    def forward(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        like = next(self.parameters())
        return self.stack(x, self.graph(edge_index, edge_weight, x).to(like).adjacency.csr)


def build(config: GCNConfig, in_channels: int, out_channels: int) -> GCN:
    return GCN(in_channels, out_channels, config)

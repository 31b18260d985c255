"""GCN (Kipf and Welling 2017), plain or with what makes classic GNNs strong (Luo et al. 2024)."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from difformer.baselines.convolutions import ConvStack
from difformer.baselines.layers import FeatureLinear
from difformer.baselines.registry.stack import Convolutions
from difformer.core.graph import Graph

__all__ = ["GCN"]


class GCN(ConvStack):
    """Graph convolutions of PyTorch Geometric, O(e d + n d²) per layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(D^-1/2 (A + I) D^-1/2 H⁽ᵏ⁾ W_k [+ H⁽ᵏ⁾ R_k])))     (eq. 2)

    Residual, norm and linear head are off in Kipf and Welling's; "Classic GNNs are strong
    baselines" (2024) turns the first two on. The adjacency is normalised once, in the Graph; the
    layers are told not to. Left out: nothing.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    title = "GCN"
    activation = staticmethod(F.relu)

    def __init__(self, in_channels: int, out_channels: int, config: Convolutions) -> None:
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

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        like = next(self.parameters())
        return self.stack(x, graph.to(like).adjacency.csr)

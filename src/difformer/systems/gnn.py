"""Graph networks with layers of PyTorch Geometric: GCN, GraphSAGE and GAT, plain or tuned."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GCNConv

from difformer.core.draws import dropout
from difformer.core.graph import Graph
from difformer.nn.inputs import Remembered
from difformer.systems.layers import (
    ConvStack,
    EdgeProduct,
    FeatureLinear,
    edge_softmax,
)
from difformer.systems.system import Convolutions, GATConfig


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


class GraphSAGE(GCN):
    """GraphSAGE with the mean of all neighbours, O(e d + n d²) per layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ R_k + D^-1 A H⁽ᵏ⁾ W_k)))              (algorithm 1, mean)

    That is a GCN's stack with another matrix and a residual that is always on. A has no loops: a
    row has its own weight. Left out: sampled neighbours (all are taken) and rows of unit length.
    """

    title = "GraphSAGE"

    def __init__(self, in_channels: int, out_channels: int, config: Convolutions) -> None:
        super().__init__(in_channels, out_channels, replace(config, residual=True))

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        return super().run(x, graph.neighbours_mean, batch)


class EdgeGATConv(GATConv):
    """PyTorch Geometric's layer and parameters with α as a sparse matrix of each head.

    PyTorch Geometric computes α_ij W h_j for every edge, O(e h d) numbers to write and read again;
    here only the O(e h) weights are stored.
    """

    def forward(self, x: Tensor, edges: EdgeProduct) -> Tensor:  # type: ignore[override]
        value, target, source = self.scores(x)
        score = F.leaky_relu(
            target.index_select(0, edges.target) + source.index_select(0, edges.source),
            self.negative_slope,
        )
        weight = edge_softmax(score, edges.target, edges.n)
        return self.merge(edges(dropout(weight, self.dropout, self.training), value))

    def scores(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """W x (n, h, d), and its scores (n, h) as the target and as the source of an edge."""
        assert self.lin is not None
        value = self.lin(x).view(-1, self.heads, self.out_channels)
        return value, (value * self.att_dst).sum(-1), (value * self.att_src).sum(-1)

    def merge(self, out: Tensor) -> Tensor:
        """Concatenate or average the heads (n, h, d), and add the bias."""
        return (out.flatten(1) if self.concat else out.mean(1)) + self.bias


class GAT(ConvStack):
    """Graph attention, O(e h d + n d²) time and O(e h + n d) memory per layer.

        α_ij = softmax over j of LeakyReLU(a · [W h_i ‖ W h_j]),   h_i' = ELU(‖ Σ_j α_ij W h_j)

    (eqs. 3 to 6). Heads are concatenated, except in the last layer, which averages them. Edge
    weights are ignored: attention replaces them. Left out: nothing.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels); hidden_channels per head.
    """

    title = "GAT"
    activation = staticmethod(F.elu)
    layer: ClassVar[type[EdgeGATConv]] = EdgeGATConv

    def __init__(self, in_channels: int, out_channels: int, config: GATConfig) -> None:
        super().__init__(config)
        wide, last = config.hidden_channels * config.num_heads, config.num_layers - 1
        widths = [in_channels, *[wide] * last]
        outs = [wide] * last + [wide if config.head else out_channels]
        self.convs = nn.ModuleList()
        for k, width in enumerate(widths):
            concat = config.head or k < last
            self.convs.append(
                self.layer(
                    width,
                    config.hidden_channels if concat else out_channels,
                    heads=config.num_heads if concat else config.out_heads,
                    concat=concat,
                    dropout=config.attention_dropout,
                    add_self_loops=False,  # the prepared graph has them
                )
            )
        first_width = wide if config.head or last else out_channels * config.out_heads
        self.convs[0].lin = FeatureLinear(
            in_channels,
            first_width,
            dropout=config.input_dropout,
            bias=False,
            init="glorot",
            scaled=config.scale_features,
        )
        self.join(list(zip(widths, outs, strict=True)), out_channels, skip_dropout=0.0)
        self._plan: Remembered[EdgeProduct] = Remembered()

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        return self.stack(x, self.plan(graph))

    def plan(self, graph: Graph) -> EdgeProduct:
        """The prepared edge products, made once per graph."""
        return self._plan.get((graph.edge_index,), None, lambda: EdgeProduct(graph))

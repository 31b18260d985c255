"""Systems along edges, by PyTorch Geometric: GCN, GraphSAGE, GAT, and labels that are spread."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import CorrectAndSmooth as Library
from torch_geometric.nn import GATConv, GCNConv
from torch_geometric.nn import LabelPropagation as Propagation
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from difformer.core.draws import dropout
from difformer.core.graph import Graph
from difformer.data.dataset import Batch
from difformer.nn.inputs import Remembered
from difformer.systems.layers import (
    MLP,
    EdgeProduct,
    FeatureLinear,
    GraphModel,
    edge_softmax,
    make_norm,
)


class GCN(GraphModel):
    """Graph convolutions of PyTorch Geometric, O(e d + n d²) per layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(D^-1/2 (A + I) D^-1/2 H⁽ᵏ⁾ W_k [+ H⁽ᵏ⁾ R_k])))     (eq. 2)

    Residual, norm and linear head are off in Kipf and Welling's; "Classic GNNs are strong
    baselines" (2024) turns the first two on. After the last layer norm, ReLU and dropout come only
    if a head follows. The adjacency is normalised once, in the Graph; the layers are told not to.
    Left out: nothing.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    activation: ClassVar[Callable[[Tensor], Tensor]] = staticmethod(F.relu)
    drops_residual: ClassVar[bool] = True  # the first residual has its own dropout of the features

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.config, rate = config, config.input_dropout
        wide, layers = config.hidden_channels * getattr(config, "num_heads", 1), config.num_layers
        ends = [in_channels, *[wide] * (layers - 1), wide if config.head else out_channels]
        widths = list(itertools.pairwise(ends))
        inner = widths if config.head else widths[:-1]
        self.convs = nn.ModuleList(
            self.conv(a, b, inner=k < len(inner)) for k, (a, b) in enumerate(widths)
        )
        # The library's own linear layer takes no sparse features.
        first: Any = self.convs[0]
        scaled, lin_width = config.scale_features, first.lin.out_channels
        first.lin = FeatureLinear(
            in_channels, lin_width, dropout=rate, bias=False, init="glorot", scaled=scaled
        )
        self.norms = nn.ModuleList(make_norm(config.norm, b) for _, b in inner)
        dropped = rate if self.drops_residual else 0.0
        self.skips = nn.ModuleList(
            FeatureLinear(a, b, dropout=0.0 if k else dropped, scaled=scaled and not k)
            if config.residual
            else nn.Identity()
            for k, (a, b) in enumerate(widths)
        )
        self.out = nn.Linear(widths[-1][1], out_channels) if config.head else None

    def conv(self, inputs: int, outputs: int, *, inner: bool) -> nn.Module:
        """A layer; the last is not `inner` unless a head follows."""
        return GCNConv(inputs, outputs, normalize=False)

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        like = next(self.parameters())
        return self.stack(x, graph.to(like).adjacency.csr)

    def stack(self, x: Tensor, edges: Tensor | EdgeProduct | None) -> Tensor:
        """x (n, in_channels) -> (n, out_channels), along edges as the convolutions take them."""
        h = x
        for k, (conv, skip) in enumerate(zip(self.convs, self.skips, strict=True)):
            new = conv(h, edges)
            h = new + skip(h) if self.config.residual else new
            if k < len(self.norms):
                h = type(self).activation(self.norms[k](h))
                h = F.dropout(h, self.config.dropout, self.training)
        return h if self.out is None else self.out(h)


class GraphSAGE(GCN):
    """GraphSAGE with the mean of all neighbours, O(e d + n d²) per layer.

        H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ R_k + D^-1 A H⁽ᵏ⁾ W_k)))              (algorithm 1, mean)

    That is a GCN's stack with another matrix and a residual that is always on. A has no loops: a
    row has its own weight. Left out: sampled neighbours (all are taken) and rows of unit length.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
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


class GAT(GCN):
    """Graph attention, O(e h d + n d²) time and O(e h + n d) memory per layer.

        α_ij = softmax over j of LeakyReLU(a · [W h_i ‖ W h_j]),   h_i' = ELU(‖ Σ_j α_ij W h_j)

    (eqs. 3 to 6). Heads are concatenated, except in the last layer, which averages them. Edge
    weights are ignored: attention replaces them. Left out: nothing.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels); hidden_channels per head.
    """

    activation = staticmethod(F.elu)
    drops_residual = False
    layer: ClassVar[type[EdgeGATConv]] = EdgeGATConv

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__(in_channels, out_channels, config)
        self._plan: Remembered[EdgeProduct] = Remembered()

    def conv(self, inputs: int, outputs: int, *, inner: bool) -> nn.Module:
        config = self.config
        return self.layer(
            inputs,
            config.hidden_channels if inner else outputs,
            heads=config.num_heads if inner else config.out_heads,
            concat=inner,
            dropout=config.attention_dropout,
            add_self_loops=False,  # the prepared graph has them
        )

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        return self.stack(x, self.plan(graph))

    def plan(self, graph: Graph) -> EdgeProduct:
        """The prepared edge products, made once per graph."""
        return self._plan.get((graph.edge_index,), None, lambda: EdgeProduct(graph))


class LabelPropagation(GraphModel):
    """Spread the training labels along edges, O(steps · e · c); features are ignored.

        F ← α D^-1/2 A D^-1/2 F + (1 − α) Y,   the limit is (1 − α) (I − α S)^-1 Y.

    The iteration is PyTorch Geometric's. A has no loops, so that a row depends on others only.
    The output is the logarithm of each row's shares, so that a softmax recovers them; a row that no
    label reaches gets equal shares. Left out: class mass normalisation.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.spread = Propagation(config.steps, config.alpha)
        self.out_channels = out_channels
        self._labels: Tensor | None = None
        self._several = False

    def observe(self, batch: Batch) -> None:
        """Take the training labels: (n, c), zero where unknown."""
        known = torch.zeros(batch.y.shape[0], dtype=torch.bool, device=batch.y.device)
        known[batch.rows] = True
        self._several = batch.y.is_floating_point()
        if self._several:
            self._labels = torch.where(known.unsqueeze(1), batch.y.nan_to_num(0.5), 0.0)
            return
        labels = F.one_hot(batch.y.clamp_min(0), self.out_channels).float()
        self._labels = labels * (known & (batch.y >= 0)).unsqueeze(1)

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        if self._labels is None or self._labels.shape[0] != x.shape[0]:
            raise ValueError("observe(batch) must be called with these rows' training labels first")
        away = graph.edge_index[0] != graph.edge_index[1]
        edges, weight = graph.edge_index[:, away], graph.edge_weight
        if weight is not None:
            _, weight = gcn_norm(edges, weight[away], x.shape[0], add_self_loops=False)
        share = self.spread(self._labels, edges, edge_weight=weight)
        if self._several:
            return torch.logit(share, eps=1e-6)
        return share_logits(share)


def share_logits(share: Tensor) -> Tensor:
    """Logarithms of each row's shares (n, c); equal shares for a row that has none."""
    return torch.log(share / share.sum(1, keepdim=True).clamp_min(1e-12) + 1e-6)


class CorrectAndSmooth(GraphModel):
    """Errors, then labels, spread over the graph after an MLP: O(n d² + steps · e · c).

        spread(V, α):  Z ← α S Z + (1 − α) V,   S = D^-1/2 (A + I) D^-1/2
        E = spread(Y − P on labelled rows; α₁),   P' = P + E · mean ‖E⁰‖₁ / ‖E_i‖₁   (eqs. 4, 5)
        Z = spread(Y on labelled rows, else P'; α₂)                                     (eq. 7)

    The MLP is trained by the loop; correcting and smoothing happen when it predicts, and validation
    picks the epoch by the smoothed answer. Left out: spectral features beside the given ones.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        steps = config.steps
        self.spread = Library(steps, config.correct_alpha, steps, config.smooth_alpha)
        self._rows = self._labels = torch.zeros(0, dtype=torch.int64)

    def observe(self, batch: Batch) -> None:
        """Take the training rows and their labels."""
        super().observe(batch)
        self._rows = batch.rows[batch.y[batch.rows] >= 0]
        self._labels = batch.y[self._rows]

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        output = self.mlp(x)
        if self.training:
            return output
        if not self._rows.numel():
            raise ValueError("observe(batch) must be called with the training labels first")
        return share_logits(self.smooth(output.softmax(1), graph.to(output)))

    def smooth(self, share: Tensor, graph: Graph) -> Tensor:
        """Probabilities (n, c), corrected and smoothed; rows need not sum to one."""
        matrix = graph.adjacency
        known = self._labels, self._rows, matrix.csr, matrix.values
        corrected = self.spread.correct(share, *known)
        # Where no row has an error the library divides zero by zero.
        return self.spread.smooth(corrected.where(~corrected.isnan(), share), *known)

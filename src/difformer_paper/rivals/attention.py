"""Attention between all pairs by layers of PyTorch Geometric: Dense GAT and SGFormer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn.models import SGFormer as Library

from difformer.core.graph import Graph
from difformer.systems.gnn import GAT, GCN, EdgeGATConv
from difformer.systems.layers import EdgeProduct, FeatureLinear, GraphModel
from difformer.systems.registry import get_system


def all_pairs_attention(
    target: Tensor,
    source: Tensor,
    value: Tensor,
    slope: float,
    joined: tuple[EdgeProduct, Tensor] | None = None,
) -> Tensor:
    """Σ_j α_ij v_j with α_ij = softmax over all j of LeakyReLU(s_i + t_j), no α formed.

    Where s_i + t_j > 0 the weight is exp(s_i) exp(t_j), elsewhere exp(γ s_i) exp(γ t_j): with t in
    decreasing order the first kind comes first and the second last. So each row needs one entry of
    a cumulative sum from either side, found by bisection: O(n log n + n d) instead of O(n² d). Sums
    are of exp(t_j − max t), and each row is divided by its largest weight, so that nothing
    overflows; neither shift changes the result, so neither has a gradient.

    Args:
        target: s (n, h), source: t (n, h), value: v (n, h, d), slope: γ of the LeakyReLU.
        joined: edges and b (h,): the score of the pairs that an edge joins is b higher, so their
            part is added e^b − 1 times; O(e d).
    """
    n = value.shape[0]
    falling, order = source.sort(dim=0, descending=True)
    top = falling[0].detach()
    ones = torch.ones_like(value[..., :1])
    ranked = torch.cat([value, ones], -1).gather(
        0, order[..., None].expand(*order.shape, value.shape[-1] + 1)
    )
    excess = (falling - top)[..., None]
    none = torch.zeros_like(ranked[:1])
    first = torch.cat([none, (excess.exp() * ranked).cumsum(0)])
    last = torch.cat([((slope * excess).exp() * ranked).flip(0).cumsum(0).flip(0), none])
    rising = (-falling.detach()).T.contiguous()
    above = torch.searchsorted(rising, target.detach().T.contiguous()).T  # how many t_j > −s_i
    index = above[..., None].expand(n, *ranked.shape[1:])
    score = target + top
    largest = F.leaky_relu(score, slope).detach()
    total = (score - largest).exp()[..., None] * first.gather(0, index)
    total = total + (slope * score - largest).exp()[..., None] * last.gather(0, index)
    if joined is not None:
        edges, bias = joined
        near = F.leaky_relu(target[edges.target] + source[edges.source], slope)
        weight = torch.expm1(bias) * (near - largest[edges.target]).exp()
        total = total + edges(weight, torch.cat([value, ones], -1))
    return total[..., :-1] / total[..., -1:]


class AllPairsGATConv(EdgeGATConv):
    """Without edges it attends over all pairs."""

    def forward(self, x: Tensor, edges: EdgeProduct | None = None) -> Tensor:  # type: ignore[override]
        if edges is not None:
            return super().forward(x, edges)
        value, target, source = self.scores(x)
        return self.merge(all_pairs_attention(target, source, value, self.negative_slope))


class BiasedGATConv(EdgeGATConv):
    """Attention over all pairs, with a learned number per head added where an edge joins them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.edge_bias = nn.Parameter(torch.zeros(self.heads))

    def forward(self, x: Tensor, edges: EdgeProduct) -> Tensor:  # type: ignore[override]
        value, target, source = self.scores(x)
        joined = (edges, self.edge_bias)
        return self.merge(all_pairs_attention(target, source, value, self.negative_slope, joined))


class DenseGAT(GAT):
    """GAT whose rows attend to all rows, O(n log n + n d²) per layer (eqs. 3 to 6 with j = 1 … n).

    It ignores the edges of the data; with several graphs, the pairs within each are given as edges.
    Left out: dropout on attention weights, because no weight is formed.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels); hidden_channels per head.
    """

    needs_graph = False
    layer = AllPairsGATConv

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__(in_channels, out_channels, config)
        if config.attention_dropout:
            raise ValueError(
                f"attention_dropout must be 0 with Dense GAT, which forms no weights, "
                f"got {config.attention_dropout}"
            )

    def run(self, x: Tensor, graph: Graph | None, batch: Tensor | None) -> Tensor:
        if graph is not None:
            return super().run(x, graph, batch)
        self.one_graph(batch)
        return self.stack(x, None)


class BiasedDenseGAT(DenseGAT):
    """Dense GAT that sees the edges, O(n log n + e d + n d²) per layer.

        α_ij = softmax over all j of LeakyReLU(a · [W h_i ‖ W h_j]) + b A_ij

    b, one per head and layer, is learned, starting at `edge_bias`: with b = 0 it is Dense GAT, and
    it tends to GAT as b grows. It is not in the paper; it shows what the edges add to Dense GAT.
    """

    needs_graph = True
    layer = BiasedGATConv

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__(in_channels, out_channels, config)
        for conv in self.convs:
            assert isinstance(conv, BiasedGATConv)
            nn.init.constant_(conv.edge_bias, config.edge_bias)

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:  # type: ignore[override]
        self.one_graph(batch)
        return self.stack(x, self.plan(graph))


class SGFormer(GraphModel):
    """PyTorch Geometric's SGFormer, O(n d² + e d) per layer.

        Z = α GCN(x) + (1 − α) (linear attention over all rows)(x)                    (eqs. 4, 5)

    With backbone "residual" it is the library's own, but for first linear layers that take sparse
    features and convolutions that take the prepared adjacency. That is the authors' model for large
    graphs; their runs on the citation networks have a plain GCN in its place, backbone "gcn". Left
    out: different weight decays for the two parts.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels) log-probabilities.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        d = config.hidden_channels
        self.plain = config.backbone == "gcn"
        self.model = Library(
            d,
            d,
            out_channels,
            trans_num_layers=config.num_layers,
            trans_num_heads=config.num_heads,
            trans_dropout=config.dropout,
            gnn_num_layers=config.graph_layers,
            gnn_dropout=config.graph_dropout,
            graph_weight=config.graph_weight,
        )
        # The library's two input layers are these; features may be sparse, so they come first.
        rate, scaled = config.input_dropout, config.scale_features
        self.model.trans_conv.fcs[0] = nn.Identity()
        self.attention_input = FeatureLinear(in_channels, d, dropout=rate, scaled=scaled)
        if self.plain:
            self.graph_input = nn.Identity()
            plain = get_system("gcn").configure(
                hidden_channels=d,
                num_layers=config.graph_layers,
                dropout=config.graph_dropout,
                input_dropout=rate,
                scale_features=scaled,
            )
            self.model.add_module("graph_conv", GCN(in_channels, d, plain))
            return
        self.model.graph_conv.fcs[0] = nn.Identity()
        self.graph_input = FeatureLinear(in_channels, d, dropout=rate, scaled=scaled)
        for conv in self.model.graph_conv.convs:
            setattr(conv, "normalize", False)  # noqa: B010 - an attribute torch types as a module

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        if batch is None:
            batch = torch.zeros(x.shape[0], dtype=torch.int64, device=x.device)
        model = self.model
        pairs = model.trans_conv(self.attention_input(x), batch)
        edges = graph if self.plain else graph.adjacency.csr
        along = model.graph_conv(self.graph_input(x), edges)
        mixed = model.graph_weight * along + (1 - model.graph_weight) * pairs
        return torch.log_softmax(model.fc(mixed), dim=-1)

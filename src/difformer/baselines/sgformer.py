"""SGFormer (Wu et al. 2023): one layer of linear all-pair attention beside a GCN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn.models import SGFormer as Library

from difformer.baselines.gcn import GCN
from difformer.baselines.layers import FeatureLinear, GraphModel
from difformer.baselines.registry.stack import Convolutions
from difformer.baselines.registry.transformers import SGFormerConfig
from difformer.core.graph import Graph

__all__ = ["SGFormer"]


class SGFormer(GraphModel):
    """PyTorch Geometric's SGFormer, O(n d² + e d) per layer.

        Z = α GCN(x) + (1 − α) (linear attention over all rows)(x)                    (eqs. 4, 5)

    With backbone "residual" it is the library's own, but for first linear layers that take sparse
    features and convolutions that take the prepared adjacency. That is the authors' model for large
    graphs; their runs on the citation networks have a plain GCN in its place, backbone "gcn". Left
    out: different weight decays for the two parts.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels) log-probabilities.
    """

    title = "SGFormer"

    def __init__(self, in_channels: int, out_channels: int, config: SGFormerConfig) -> None:
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
            plain = Convolutions(
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

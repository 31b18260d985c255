"""Label propagation (Zhu et al. 2003; Zhou et al. 2004): no features, nothing to train."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import LabelPropagation as Propagation
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from difformer.baselines.layers import GraphModel
from difformer.baselines.registry.labels import LPConfig
from difformer.core.graph import Graph
from difformer.data.batch import Batch

__all__ = ["LabelPropagation", "share_logits"]


class LabelPropagation(GraphModel):
    """Spread the training labels along edges, O(steps · e · c); features are ignored.

        F ← α D^-1/2 A D^-1/2 F + (1 − α) Y,   the limit is (1 − α) (I − α S)^-1 Y.

    The iteration is PyTorch Geometric's. A has no loops, so that a row depends on others only.
    The output is the logarithm of each row's shares, so that a softmax recovers them; a row that no
    label reaches gets equal shares. Left out: class mass normalisation.
    """

    title = "label propagation"

    def __init__(self, in_channels: int, out_channels: int, config: LPConfig) -> None:
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

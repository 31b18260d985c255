"""Systems that spread labels along edges: label propagation, correct and smooth."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import LabelPropagation as Propagation
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from difformer.core.graph import Graph
from difformer.data.dataset import Batch
from difformer.systems.families import LPConfig, SmoothConfig
from difformer.systems.layers import GraphModel
from difformer.systems.perceptrons import MLP


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


class CorrectAndSmooth(GraphModel):
    """Errors, then labels, spread over the graph after an MLP: O(n d² + steps · e · c).

        spread(V, α):  Z ← α S Z + (1 − α) V,   S = D^-1/2 (A + I) D^-1/2
        E = spread(Y − P on labelled rows; α₁),   P' = P + E · mean ‖E⁰‖₁ / ‖E_i‖₁   (eqs. 4, 5)
        Z = spread(Y on labelled rows, else P'; α₂)                                     (eq. 7)

    The MLP is trained by the loop; correcting and smoothing happen when it predicts, and validation
    picks the epoch by the smoothed answer. Left out: spectral features beside the given ones.
    """

    title = "correct and smooth"

    def __init__(self, in_channels: int, out_channels: int, config: SmoothConfig) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        self.config, self.out_channels = config, out_channels
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
        config, rows = self.config, self._rows
        labels = F.one_hot(self._labels, self.out_channels).to(share)
        error = torch.zeros_like(share)
        error[rows] = labels - share[rows]
        usual = error[rows].abs().sum(1).mean()
        error = _spread(error, graph, config.correct_alpha, config.steps, -1.0)
        scale = usual / error.abs().sum(1, keepdim=True)
        # A row that no error reaches, or hardly any, keeps its own prediction.
        share = share + error * scale.where(scale.isfinite() & (scale <= 1000), 1.0)
        share[rows] = labels
        return _spread(share, graph, config.smooth_alpha, config.steps, 0.0)


def _spread(value: Tensor, graph: Graph, alpha: float, steps: int, least: float) -> Tensor:
    z = value
    for _ in range(steps):
        z = torch.lerp(value, graph.propagate(z), alpha).clamp_(least, 1.0)
    return z

"""Correct and smooth (Huang et al. 2021): spread a perceptron's errors, then its answers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.baselines.layers import GraphModel
from difformer.baselines.lp import share_logits
from difformer.baselines.mlp import MLP
from difformer.baselines.registry.labels import SmoothConfig
from difformer.core.graph import Graph
from difformer.data.batch import Batch

__all__ = ["CorrectAndSmooth"]


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

"""Forecasts without a network: the last value, the mean of the lags, linear autoregressions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from difformer.data.dataset import Batch
from difformer.systems.registry import NaiveConfig


class Lags(nn.Module):
    """Predict the newest lag of every row, or the mean of them. O(n lags). (n, lags) -> (n, 1)."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor, *_: object) -> Tensor:
        return x.mean(1, keepdim=True) if self.mean else x[:, -1:]


class Autoregression(nn.Module):
    """Least squares on the lags, one line per node or one for all, solved once in `observe`.

        w_i = argmin Σ_t (y_it − x_it·w − b)² + ridge ‖w‖²,   b without a penalty

    Cost: O(t n lags²). The rows of a batch are nodes in order, once for each of its segments.

    Shapes: x (t·n, lags) -> (t·n, 1); weight (n, lags + 1), or (1, lags + 1) for all nodes.
    """

    weight: Tensor

    def __init__(self, lags: int, *, per_node: bool, ridge: float) -> None:
        super().__init__()
        self.lags, self.per_node, self.ridge = lags, per_node, ridge
        self.register_buffer("weight", torch.zeros(1, lags + 1))

    def observe(self, batch: Batch) -> None:
        n = 1
        if self.per_node and batch.segments is not None:
            n = int((batch.segments == batch.segments[0]).sum())
        x, y = self._by_node(batch.x, n).double(), batch.y.reshape(-1, n).T.double()  # (n, t)
        known = (~y.isnan()).to(x.dtype).unsqueeze(-1)
        penalty = self.ridge * torch.eye(self.lags + 1, dtype=x.dtype)
        penalty[-1, -1] = 0.0
        gram = (known * x).mT @ x + penalty
        moment = x.mT @ y.nan_to_num(0.0).unsqueeze(-1)
        # The pseudo-inverse: a node with fewer steps than lags gets its shortest solution.
        self.weight = (torch.linalg.pinv(gram, hermitian=True) @ moment).squeeze(-1).to(batch.x)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        n = self.weight.shape[0]
        out = (self._by_node(x, n) * self.weight.unsqueeze(1)).sum(-1)  # (n, t)
        return out.T.reshape(-1, 1)

    def _by_node(self, x: Tensor, n: int) -> Tensor:
        """(t·n, lags) -> (n, t, lags + 1), a one at the end for the constant."""
        stacked = x.reshape(-1, n, self.lags).transpose(0, 1)
        return torch.cat([stacked, stacked.new_ones(*stacked.shape[:2], 1)], dim=-1)


def build(in_channels: int, out_channels: int, config: NaiveConfig) -> nn.Module:
    if out_channels != 1:
        raise ValueError(f"a naive forecast has one output, got {out_channels}")
    if config.rule in ("last", "mean"):
        return Lags(mean=config.rule == "mean")
    return Autoregression(in_channels, per_node=config.rule == "node", ridge=config.ridge)

"""MLP: each row by itself, no graph."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F

from difformer.baselines.layers import FeatureLinear, make_norm
from difformer.baselines.registry.stack import Perceptron
from difformer.data.batch import Batch

__all__ = ["MLP"]


class MLP(nn.Module):
    """A multi-layer perceptron, O(n d²) per layer; the graph is ignored.

        H⁽⁰⁾ = x,   H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ W_k + b_k))),   the last layer is linear.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    def __init__(self, in_channels: int, out_channels: int, config: Perceptron) -> None:
        super().__init__()
        widths = [config.hidden_channels] * (config.num_layers - 1) + [out_channels]
        self.first = FeatureLinear(
            in_channels, widths[0], dropout=config.input_dropout, standardised=config.standardise
        )
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(make_norm(config.norm, width) for width in widths[:-1])
        self.dropout = config.dropout

    def observe(self, batch: Batch) -> None:
        """Measure the features, where they are to be standardised."""
        self.first.measure(batch.x)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        h = self.first(x)
        for norm, linear in zip(self.norms, self.rest, strict=True):
            h = linear(F.dropout(F.relu(norm(h)), self.dropout, self.training))
        return h

"""Stacks of layers that several systems share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from difformer.baselines.layers import EdgeProduct, FeatureLinear, GraphModel, make_norm
from difformer.baselines.registry.stack import Convolutions, Stack

__all__ = ["ConvStack", "FilteredStack"]


class ConvStack(GraphModel):
    """h ← dropout(act(norm(conv(h, edges) [+ h R]))); after the last layer only if a head follows.

    GCN and GAT are such stacks; norms, residuals and the linear head are optional. A subclass makes
    `convs`, whose first takes features that may be sparse (PyTorch Geometric's linear layer does
    not), then calls `join`.
    """

    activation: ClassVar[Callable[[Tensor], Tensor]]
    convs: nn.ModuleList

    def __init__(self, config: Convolutions) -> None:
        super().__init__()
        self.config = config

    def join(
        self, widths: Sequence[tuple[int, int]], out_channels: int, *, skip_dropout: float
    ) -> None:
        """The norms, residuals and head of convolutions of these (inputs, outputs)."""
        config = self.config
        inner = widths if config.head else widths[:-1]
        self.norms = nn.ModuleList(make_norm(config.norm, b) for _, b in inner)
        self.skips = nn.ModuleList(
            FeatureLinear(
                a, b, dropout=0.0 if k else skip_dropout, scaled=config.scale_features and not k
            )
            if config.residual
            else nn.Identity()
            for k, (a, b) in enumerate(widths)
        )
        self.out = nn.Linear(widths[-1][1], out_channels) if config.head else None

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


class FilteredStack(GraphModel):
    """h ← P(h W_k) with dropout(ReLU(·)) between layers, for a propagation P of the model.

    A subclass calls `add_layers`.
    """

    def add_layers(self, in_channels: int, out_channels: int, config: Stack) -> None:
        widths = [config.hidden_channels] * (config.num_layers - 1) + [out_channels]
        self.first = FeatureLinear(
            in_channels, widths[0], dropout=config.input_dropout, bias=False, init="glorot"
        )
        self.rest = nn.ModuleList(
            FeatureLinear(a, b, bias=False, init="glorot") for a, b in itertools.pairwise(widths)
        )
        self.dropout = config.dropout

    def filtered(self, x: Tensor, propagate: Callable[[Tensor], Tensor]) -> Tensor:
        """x (n, in_channels) -> (n, out_channels)."""
        h = propagate(self.first(x))
        for linear in self.rest:
            h = F.dropout(F.relu(h), self.dropout, self.training)
            h = propagate(linear(h))
        return h

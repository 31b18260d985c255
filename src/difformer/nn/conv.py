"""DIFFormerConv: diffusion steps as a layer of other models, called like PyTorch Geometric's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from difformer.nn.config import DIFFormerConfig
from difformer.nn.model import DIFFormer, Edges
from difformer.settings import takes


class DIFFormerConv(nn.Module):
    """Map the features of every row, then average over all rows and over the neighbours in a graph.

        Z⁽⁰⁾ = ReLU(LayerNorm(W x + b)),   Z' = one diffusion step of Z⁽⁰⁾       (eqs. 20, 30)

    It is a `DIFFormer` without its output layer, with one diffusion step by default. Cost: O(n d²)
    for ``kernel="simple"``, O(n² d) for "sigmoid", and O(e d) for the graph.

    >>> import torch
    >>> conv = DIFFormerConv(16, 8, kernel="sigmoid")
    >>> conv(torch.randn(5, 16), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([5, 8])

    Args:
        in_channels, out_channels: widths of x and of the output.
        The rest: see `DIFFormerConfig`; `num_layers` is 1 unless given.
    """

    @takes(DIFFormerConfig)
    def __init__(self, in_channels: int, out_channels: int, **options: Any) -> None:
        super().__init__()
        self.in_channels, self.out_channels = in_channels, out_channels
        options = {"num_layers": 1, **options}
        self.model = DIFFormer(in_channels, out_channels, out_channels, **options)
        self.model.add_module("output", nn.Identity())

    def forward(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """States (n, out_channels); the arguments are those of `DIFFormer.forward`."""
        return self.model(x, edge_index, edge_weight, batch)

    def reset_parameters(self) -> None:
        """Draw new parameters."""
        self.model.reset_parameters()

    def __repr__(self) -> str:
        return f"DIFFormerConv({self.in_channels}, {self.out_channels})"

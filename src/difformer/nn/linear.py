"""Linear layers: weights from the thread's generator, and outputs that are bitwise reproducible."""

from __future__ import annotations

import math
from typing import TypeVar

from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.randomness import generator

__all__ = ["IdentityLinear", "Linear", "make_steady"]

M = TypeVar("M", bound=nn.Module)


class Linear(nn.Linear):
    """`torch.nn.Linear`; the same seed gives the same bits as in torch."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5), generator=generator())
        if self.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
            nn.init.uniform_(self.bias, -bound, bound, generator=generator())


class IdentityLinear(Linear):
    """A linear layer that starts as the identity, once per head: x -> (x, ..., x)."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        for head in self.weight.data.split(self.in_features):
            nn.init.eye_(head)


class _SteadyLinear(Linear):
    """A linear layer whose rows have the same bits at any position in a block.

    The weights are transposed, contiguous and padded to a multiple of eight columns, and the bias
    is added separately: a fused bias, or another alignment, sends the last rows of a tile through a
    kernel that rounds in another order.
    """

    def forward(self, input: Tensor) -> Tensor:
        weight = F.pad(self.weight.T, (0, -self.out_features % 8)).contiguous()
        out = (input @ weight)[:, : self.out_features]
        return out if self.bias is None else out + self.bias  # pyright: ignore[reportUnnecessaryComparison]


def make_steady(model: M) -> M:
    """The model, every linear layer of it giving the same bits wherever a row is in its block."""
    for module in model.modules():
        if isinstance(module, Linear):
            module.__class__ = _SteadyLinear
    return model

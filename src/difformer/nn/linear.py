"""A linear layer whose weights are drawn from the thread's own generator, if it has one."""

from __future__ import annotations

import math

from torch import nn

from difformer.core.randomness import generator

__all__ = ["IdentityLinear", "Linear"]


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

"""ResNet-18 for small images: a 3 × 3 stem without pooling, as SimCLR uses on CIFAR-10."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ResNet18"]


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut: ReLU(norm(W₂ ReLU(norm(W₁ x))) + x)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images (n, 3, h, w) in [0, 1] to features (n, 8 · width), by four stages of two blocks.

    Args:
        width: channels of the first stage, 64 in the paper's ResNet-18; the last has eight times
            as many. A narrower one is for processors and tests.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages: list[nn.Module] = []
        inputs = width
        for i in range(4):
            outputs = width * 2**i
            stages += [Block(inputs, outputs, 1 if i == 0 else 2), Block(outputs, outputs, 1)]
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.out_channels = inputs

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(F.relu(self.norm(self.stem(2 * x - 1))))
        return torch.flatten(F.adaptive_avg_pool2d(h, 1), 1)

"""Random views of images for contrastive learning: crop, flip, colours; all of a batch at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["random_view"]

AREA, RATIO = (0.2, 1.0), (3 / 4, 4 / 3)
JITTER, HUE = 0.4, 0.1  # brightness, contrast, saturation; hue, as a part of the circle
P_JITTER, P_GRAY = 0.8, 0.2
GRAY = (0.299, 0.587, 0.114)


def random_view(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One random view per image, as SimCLR makes them for CIFAR-10. O(pixels).

    A crop of 20 to 100 % of the area scaled back to the whole, a flip at 1/2, brightness, contrast,
    saturation and hue changed at 0.8, no colour at 0.2. Hue rotates the colour plane (YIQ) instead
    of going through HSV: linear, so one product per pixel.

    Args:
        images: (n, 3, height, width) in [0, 1].
        generator: on the images' device; None for the global one.
    """
    n, device = images.shape[0], images.device

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, device=device, generator=generator)

    def chance(p: float) -> Tensor:
        return torch.rand(n, device=device, generator=generator) < p

    area, ratio = uniform(*AREA), torch.exp(uniform(math.log(RATIO[0]), math.log(RATIO[1])))
    across, down = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    flip = torch.where(chance(0.5), -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1] = across * flip, down
    theta[:, 0, 2], theta[:, 1, 2] = uniform(-1, 1) * (1 - across), uniform(-1, 1) * (1 - down)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    x = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)

    on = chance(P_JITTER).float()
    factor = [1 + on * uniform(-JITTER, JITTER) for _ in range(3)]
    turn = on * uniform(-HUE, HUE) * 2 * math.pi
    x = (x * factor[0][:, None, None, None]).clamp(0, 1)
    mean = _gray(x).mean(dim=(1, 2, 3), keepdim=True)
    x = (mean + (x - mean) * factor[1][:, None, None, None]).clamp(0, 1)
    gray = _gray(x)
    x = gray + (x - gray) * factor[2][:, None, None, None]
    x = torch.einsum("nij,njhw->nihw", _hue(turn), x).clamp(0, 1)
    return torch.where(chance(P_GRAY)[:, None, None, None], _gray(x).expand_as(x), x)


def _gray(x: Tensor) -> Tensor:
    return (x * x.new_tensor(GRAY)[:, None, None]).sum(1, keepdim=True)


def _hue(turn: Tensor) -> Tensor:
    """(n, 3, 3): to brightness and two axes of colour, those turned by an angle, and back."""
    there = turn.new_tensor([GRAY, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
    turned = torch.zeros(turn.shape[0], 3, 3, device=turn.device)
    turned[:, 0, 0] = 1
    turned[:, 1, 1] = turned[:, 2, 2] = turn.cos()
    turned[:, 1, 2], turned[:, 2, 1] = -turn.sin(), turn.sin()
    return torch.linalg.inv(there) @ turned @ there

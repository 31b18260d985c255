"""SimCLR: ResNet-18 trained so that two views of an image are nearest to each other; no labels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.app.encoders import FeatureSettings, encode_images, unit_pixels
from difformer.data.dataset import Batch
from difformer.data.raw import Images
from difformer.data.split import Split
from difformer.metrics import METRICS, Metric
from difformer.train.loop import fit
from difformer.train.seeding import seeded

if TYPE_CHECKING:
    from difformer.train.callbacks import Callback


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

    area, ratio = uniform(*AREA), torch.exp(uniform(*map(math.log, RATIO)))
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
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

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
        self.stages = nn.Sequential()
        for inputs, outputs in pairwise(width * each for each in (1, 1, 2, 4, 8)):
            self.stages.append(Block(inputs, outputs, 1 if outputs == width else 2))
            self.stages.append(Block(outputs, outputs, 1))
        self.out_channels = 8 * width

    def forward(self, x: Tensor) -> Tensor:
        h = self.stages(F.relu(self.norm(self.stem(2 * x - 1))))
        return torch.flatten(F.adaptive_avg_pool2d(h, 1), 1)


WATCHED = 256  # images whose two fixed views are used to monitor the loss


@dataclass(frozen=True)
class NTXent:
    """The objective: outputs are the projections of two views side by side, (n, 2 d). O(n² d).

    Each projection is told from all others of the batch; the other view of its image is the answer.
    """

    temperature: float = 0.5
    monitor: Metric = METRICS["loss"]

    def loss(self, output: Tensor, batch: Batch | None = None) -> Tensor:
        n = output.shape[0]
        z = F.normalize(torch.cat(output.chunk(2, dim=1)), dim=1)
        scores = (z @ z.T / self.temperature).masked_fill(
            torch.eye(2 * n, dtype=torch.bool, device=z.device), float("-inf")
        )
        return F.cross_entropy(scores, torch.arange(2 * n, device=z.device).roll(n))

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        return {"loss": float(self.loss(output[rows]))}


class SimCLR(nn.Module):
    """An encoder and its projection head; (n, 3, h, w) uint8 to pairs of projections."""

    def __init__(self, encoder: ResNet18, projection: int = 128) -> None:
        super().__init__()
        width = encoder.out_channels
        self.encoder = encoder
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, projection)
        )

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """`project` for the pixels of a batch."""
        return self.project(unit_pixels(x))

    def project(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n, 2 d): the projections of two random views side by side."""
        views = [random_view(images, generator) for _ in range(2)]
        a, b = self.head(self.encoder(torch.cat(views))).chunk(2)
        return torch.cat([a, b], dim=1)


class ImageBatches:
    """Images in shuffled batches; an epoch's order depends on its number and the seed alone.

    Args:
        pixels: (n, 3, h, w) uint8.
        batch_size: at least 2; an epoch's last batch is left out if it would have fewer.
    """

    def __init__(self, pixels: Tensor, batch_size: int, *, seed: int = 0) -> None:
        n = pixels.shape[0]
        if not 2 <= batch_size <= n:
            raise ValueError(f"batch_size must lie in 2 to {n}, the images, got {batch_size}")
        self.pixels, self.batch_size, self.seed = pixels, batch_size, seed
        self.watched = min(n, WATCHED)
        self.y = torch.full((self.watched,), -1)

    @property
    def split(self) -> Split:
        """The rows whose loss is reported; there is no validation, so the last epoch is kept."""
        return Split("watched", torch.arange(self.watched), torch.arange(0), torch.arange(0))

    def observed(self) -> Batch:
        return self._batch(torch.arange(self.watched))

    def epoch(self, number: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        for rows in torch.randperm(len(self.pixels), generator=generator).split(self.batch_size):
            if rows.numel() > 1:
                yield self._batch(rows)

    def evaluate(self, model: nn.Module, rows: Tensor | None = None) -> Tensor:
        assert isinstance(model, SimCLR)
        generator = torch.Generator(self.pixels.device).manual_seed(0)
        return model.project(unit_pixels(self.pixels[: self.watched]), generator)

    def to(self, device: torch.device) -> ImageBatches:
        moved = copy(self)
        moved.pixels, moved.y = self.pixels.to(device), self.y.to(device)
        return moved

    def _batch(self, rows: Tensor) -> Batch:
        x = self.pixels[rows.to(self.pixels.device)]
        everyone = torch.arange(rows.numel(), device=x.device)
        return Batch(x, torch.full_like(everyone, -1), None, everyone)


def simclr(
    source: Images,
    settings: FeatureSettings,
    *,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> tuple[Tensor, dict[str, Any]]:
    """The features (n, d), and how they were made; trained in `folder` if it is to be resumed.

    Raises KeyboardInterrupt if training was interrupted: half-trained features are of no use.
    """
    model, made = _untrained(settings)
    made |= {"epochs": settings.train.epochs, "batch_size": settings.batch_size}
    batches = ImageBatches(source.pixels, settings.batch_size, seed=settings.train.seed)
    kept = {"encoder": settings.encoder, **made, "temperature": settings.temperature}
    result = fit(
        model,
        batches,
        NTXent(settings.temperature),
        batches.split,
        settings.train,
        folder=folder,
        config={"simclr": kept},
        callbacks=callbacks,
    )
    if result.interrupted:
        raise KeyboardInterrupt
    return encode_images(model.encoder, source.pixels), made


def random(source: Images, settings: FeatureSettings, **_: Any) -> tuple[Tensor, dict[str, Any]]:
    """The features of the network that SimCLR starts from: what training has to beat."""
    model, made = _untrained(settings)
    return encode_images(model.encoder, source.pixels), made


def _untrained(settings: FeatureSettings) -> tuple[SimCLR, dict[str, Any]]:
    with seeded(settings.train.seed):
        model = SimCLR(ResNet18(settings.width))
    return model, {"width": settings.width, "seed": settings.train.seed}

"""SimCLR: the two views of an image should be nearer to each other than to all other views.

    L = −1/(2n) Σ_i log( exp(s(i, i⁺)/T) / Σ_{j ≠ i} exp(s(i, j)/T) )                    (NT-Xent)

s is the cosine of two projections, i⁺ the other view of the same image (Chen et al., "A simple
framework for contrastive learning of visual representations", ICML 2020). No label is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.data.batch import Batch
from difformer.data.split import Split
from difformer.train.objective import Monitor
from difformer.train.views import random_view

__all__ = ["ImageBatches", "NTXent", "SimCLR", "encode_images", "nt_xent"]

WATCHED = 256  # images whose two fixed views are used to monitor the loss


def nt_xent(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """The loss of two (n, d) sets of projections, row i of one belonging to row i of the other."""
    if a.shape != b.shape or a.ndim != 2 or a.shape[0] < 2:
        raise ValueError(
            "a and b must be (n, d) of one shape with n of at least 2, "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    n = a.shape[0]
    z = F.normalize(torch.cat([a, b]), dim=1)
    scores = (z @ z.T / temperature).masked_fill(
        torch.eye(2 * n, dtype=torch.bool, device=z.device), float("-inf")
    )
    return F.cross_entropy(scores, torch.arange(2 * n, device=z.device).roll(n))


@dataclass(frozen=True)
class NTXent:
    """The objective: outputs are pairs of projections, (n, 2 d). O(n² d)."""

    temperature: float = 0.5
    monitor: Monitor = Monitor("loss", "min")

    def loss(self, output: Tensor, batch: Batch) -> Tensor:
        a, b = output.chunk(2, dim=1)
        return nt_xent(a, b, self.temperature)

    def metrics(self, output: Tensor, y: Tensor, rows: Tensor) -> dict[str, float]:
        a, b = output[rows].chunk(2, dim=1)
        return {"loss": float(nt_xent(a, b, self.temperature))}


class SimCLR(nn.Module):
    """An encoder and its projection head; (n, 3, h, w) uint8 to pairs of projections."""

    def __init__(self, encoder: nn.Module, width: int, projection: int = 128) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, projection)
        )

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """`project` for the pixels of a batch."""
        return self.project(_unit(x))

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

    def evaluate(self, model: nn.Module) -> Tensor:
        assert isinstance(model, SimCLR)
        generator = torch.Generator(self.pixels.device).manual_seed(0)
        return model.project(_unit(self.pixels[: self.watched]), generator)

    def to(self, device: torch.device) -> ImageBatches:
        if device == self.pixels.device:
            return self
        moved = ImageBatches(self.pixels.to(device), self.batch_size, seed=self.seed)
        moved.y = self.y.to(device)
        return moved

    def _batch(self, rows: Tensor) -> Batch:
        x = self.pixels[rows.to(self.pixels.device)]
        everyone = torch.arange(rows.numel(), device=x.device)
        return Batch(x, torch.full_like(everyone, -1), None, everyone)


def encode_images(encoder: nn.Module, pixels: Tensor, *, batch_size: int = 256) -> Tensor:
    """Features (n, d) of uint8 images, on the CPU; the encoder in eval mode. O(n) calls / batch."""
    device = next(encoder.parameters()).device
    encoder.eval()
    with torch.no_grad():
        parts = [encoder(_unit(part.to(device))).cpu() for part in pixels.split(batch_size)]
    return torch.cat(parts)


def _unit(pixels: Tensor) -> Tensor:
    return pixels.float() / 255

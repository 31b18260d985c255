"""SimCLR: the loss by hand, views that stay images, a loss that falls, equal seeds equal bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.train.callbacks import Callback
from difformer.train.loop import fit
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings
from difformer_paper.simclr import (
    ImageBatches,
    NTXent,
    ResNet18,
    SimCLR,
    encode_images,
    random_view,
)

SETTINGS = TrainSettings(
    epochs=6, lr=0.003, schedule="cosine", eval_every=6, threads=1, checkpoint_every=0
)


def pictures(n: int, side: int = 8) -> tuple[Tensor, Tensor]:
    """Bright bars, upright or lying, at a random place and in a random colour."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 60, (n, 3, side, side), generator=generator, dtype=torch.uint8)
    place = torch.randint(0, side - 1, (n,), generator=generator)
    colour = torch.randint(120, 256, (n, 3, 1), generator=generator, dtype=torch.uint8)
    y = torch.arange(n) % 2
    for i in range(n):
        bar = slice(int(place[i]), int(place[i]) + 2)
        if y[i]:
            pixels[i, :, :, bar] = colour[i][:, :, None]
        else:
            pixels[i, :, bar, :] = colour[i][:, None]
    return pixels, y


def train(folder: Path | None = None, **options) -> tuple[SimCLR, list[float]]:
    pixels, _ = pictures(64)
    with seeded(0):
        encoder = ResNet18(4)
        model = SimCLR(encoder, encoder.out_channels, 16)
    batches = ImageBatches(pixels, 32)
    settings = options.pop("settings", SETTINGS)
    result = fit(model, batches, NTXent(), batches.split, settings, folder=folder, **options)
    return model, [row["loss"] for row in result.history]


def test_the_loss_is_that_of_the_definition() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(2, 3, 5)
    z = F.normalize(torch.cat([a, b]), dim=1)
    terms = []
    for i in range(6):
        scores = torch.stack([z[i] @ z[j] / 0.5 for j in range(6) if j != i])
        terms.append(torch.logsumexp(scores, 0) - z[i] @ z[(i + 3) % 6] / 0.5)
    loss = NTXent(0.5).loss(torch.cat([a, b], dim=1))
    torch.testing.assert_close(loss, torch.stack(terms).mean())


def test_views_are_images_drawn_by_their_generator() -> None:
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    one, two, other = (random_view(x, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert one.shape == x.shape
    assert float(one.min()) >= 0 <= 1 >= float(one.max())
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    black = random_view(torch.zeros(2, 3, 4, 4))
    assert float(black.abs().max()) < 1e-5


def test_the_loss_falls_and_equal_seeds_give_equal_features() -> None:
    pixels, _ = pictures(64)
    _, history = train(settings=TrainSettings(epochs=12, lr=0.003, schedule="cosine", threads=1))
    assert history[-1] < history[0] - 0.1
    one, two = (encode_images(train()[0].encoder, pixels) for _ in range(2))
    assert one.shape == (64, 32)
    assert torch.equal(one, two)


def test_a_run_cut_off_and_resumed_has_the_same_bits(tmp_path: Path) -> None:
    class Cut(Callback):
        def on_epoch(self, fit) -> None:
            if fit.epoch == 3:
                raise RuntimeError("cut off")

    train(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="cut off"):
        train(tmp_path / "cut", callbacks=[Cut()])
    train(tmp_path / "cut")
    one, two = ((tmp_path / p / "model.safetensors").read_bytes() for p in ("whole", "cut"))
    assert one == two


def test_bad_sizes_are_named() -> None:
    pixels, _ = pictures(4)
    with pytest.raises(ValueError, match="batch_size must lie in 2 to 4, the images, got 5"):
        ImageBatches(pixels, 5)
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        ResNet18(0)

"""ResNet-18 trained here without labels by SimCLR, or left at its random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from difformer.data.images import Images
from difformer.experiments.encoders.settings import FeatureSettings
from difformer.nn.resnet import ResNet18
from difformer.train.contrastive import ImageBatches, NTXent, SimCLR, encode_images
from difformer.train.loop import fit
from difformer.train.seeding import seeded

if TYPE_CHECKING:
    from difformer.train.callbacks import Callback

__all__ = ["random", "simclr"]


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
        encoder = ResNet18(settings.width)
        model = SimCLR(encoder, encoder.out_channels)
    return model, {"width": settings.width, "seed": settings.train.seed}

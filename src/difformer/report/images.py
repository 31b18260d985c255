"""Rows that are images, as small data URIs for the page; None for other data."""

from __future__ import annotations

import base64
import io
from typing import Any

from difformer.data.dataset import Dataset

__all__ = ["row_images"]

MOST = 3000  # images a page carries at most


def row_images(dataset: Dataset, rows: list[int]) -> list[str] | None:
    """A data URI for each of the rows, or None where the rows are not images, or are too many.

    `digits` is read from scikit-learn; any other dataset may bring an `images` attribute:
    (n, height, width) or (n, height, width, 3) of uint8.
    """
    if len(rows) > MOST:
        return None
    images = _pixels(dataset)
    if images is None or len(images) != dataset.num_rows:
        return None
    return [_uri(images[row]) for row in rows]


def _pixels(dataset: Dataset) -> Any:
    own: Any = getattr(dataset, "images", None)
    if own is not None:
        return own.numpy() if hasattr(own, "numpy") else own
    if dataset.name != "digits":
        return None
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    return (255 - bunch.images * (255 / 16)).round().astype("uint8")


def _uri(pixels: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    small = pixels.size <= 1024
    Image.fromarray(pixels).save(file, "PNG" if small else "JPEG", optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"

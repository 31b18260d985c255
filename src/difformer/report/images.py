"""Rows that are images, as small data URIs for the page; None for other data."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection
from typing import Any

from difformer.data.dataset import Dataset
from difformer.data.registry import load_raw, raw_datasets
from difformer.errors import DifformerError

__all__ = ["row_images"]

MOST = 2000  # the most images on a page


def row_images(
    dataset: Dataset,
    rows: list[int],
    data_dir: Any = None,
    *,
    first: Collection[int] = (),
) -> list[str | None] | None:
    """A data URI for each of the rows, or None where they are not images.

    With more than 2,000 rows, those at the positions `first` have an image, and an even sample of
    the others. Images are read again from the dataset's files.
    """
    images = _pixels(dataset, data_dir)
    if images is None or len(images) != dataset.num_rows:
        return None
    wanted = set(range(len(rows)))
    if len(rows) > MOST:
        wanted = set(sorted(first)[:MOST])
        others = [i for i in range(len(rows)) if i not in wanted]
        room = MOST - len(wanted)
        wanted |= set(others[:: -(-len(others) // room)]) if room else set()
    return [_uri(images[row]) if i in wanted else None for i, row in enumerate(rows)]


def _pixels(dataset: Dataset, data_dir: Any) -> Any:
    """(n, height, width, 3) uint8 of all rows, or None."""
    if dataset.name not in raw_datasets("images"):
        return None
    try:
        images: Any = load_raw(dataset.name, data_dir)
    except (DifformerError, OSError, ValueError):
        return None  # the features are available, the images are not
    return images.pixels.permute(0, 2, 3, 1).numpy()


def _uri(pixels: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    if (pixels == pixels[..., :1]).all():
        pixels = pixels[..., 0]  # grey takes a third of the bytes
    small = pixels.size <= 1024
    Image.fromarray(pixels).save(file, "PNG" if small else "JPEG", optimize=True)
    kind = "png" if small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"

"""digits: 1,797 handwritten digits of 8 × 8 pixels, embedded in scikit-learn; no graph.

Source: the test set of the UCI "Optical Recognition of Handwritten Digits" data (E. Alpaydin,
C. Kaynak, 1998), CC BY 4.0, as distributed with scikit-learn (BSD-3-Clause).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from difformer.data.dataset import Dataset
from difformer.data.raw import Images

CLASSES = tuple(str(digit) for digit in range(10))
SOURCE = "UCI optical digits (CC BY 4.0), through scikit-learn"


def load(name: str = "digits", root: Path | None = None) -> Dataset:
    """The pixels divided by 16, their largest value, less the mean image. `root` is unused.

    Centring matters to a model that compares directions: the raw images all point the same way.
    """
    bunch = _bunch()
    x = torch.from_numpy(bunch.data).to(torch.float32) / 16.0
    y = torch.from_numpy(bunch.target).to(torch.int64)
    return Dataset(name=name, x=x - x.mean(dim=0), y=y, class_names=CLASSES, source=SOURCE)


def load_raw(name: str = "digits", root: Path | None = None) -> Images:
    """The images, dark on light, in the order of `load`. `root` is unused."""
    bunch = _bunch()
    grey = torch.from_numpy((255 - bunch.images * (255 / 16)).round().astype("uint8"))
    y = torch.from_numpy(bunch.target).to(torch.int64)
    return Images(grey.unsqueeze(1).expand(-1, 3, -1, -1).contiguous(), y, CLASSES)


def _bunch() -> Any:
    from sklearn.datasets import load_digits  # 1 s to import, and only this dataset needs it

    return load_digits()

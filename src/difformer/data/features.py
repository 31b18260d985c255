"""Feature files: an .npz with one row of features per row, such as `difformer features` writes.

features  (n, p) floats, required
labels    (n,) whole numbers, -1 for unknown
classes   (c,) text, one name per label
files     (n,) text, what each row was made from
made      () text, how it was made
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.npz import read_npz
from difformer.errors import DataError
from difformer.files import write_atomic

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """Features (n, p) float32, labels (n,) int64 or None, and where they come from."""

    x: Tensor
    y: Tensor | None = None
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    made: str = ""

    def check_rows(self, y: Tensor, path: Path, what: str) -> FeatureFile:
        """Return it if its rows agree with the labels `y`; DataError if not."""
        n = self.x.shape[0]
        if n != y.shape[0]:
            raise DataError(f"{path} has {n} rows of features, {what} {y.shape[0]} labels")
        if self.y is not None:
            apart = int((self.y != y).sum())
            if apart:
                raise DataError(
                    f"{path} has other labels than {what} in {apart} of {n} rows: "
                    "its rows must be in the same order"
                )
        return self


def read_features(path: str | Path) -> FeatureFile:
    """Read a feature file; DataError names what is missing or does not match. O(bytes)."""
    path = Path(path).expanduser()
    try:
        arrays = read_npz(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist: `difformer features` makes such a file") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a feature file: {error}") from error
    if "features" not in arrays:
        raise DataError(f"{path} has no array 'features'; it has {', '.join(arrays) or 'none'}")
    return _checked(arrays, path)


def write_features(path: str | Path, features: FeatureFile) -> Path:
    """Write a feature file atomically; equal features give equal bytes. O(bytes)."""
    path = Path(path).expanduser()
    arrays: dict[str, Array] = {"features": features.x.numpy()}
    if features.y is not None:
        arrays["labels"] = features.y.numpy()
    told = {"classes": features.class_names, "files": features.names, "made": features.made}
    arrays |= {key: np.array(texts) for key, texts in told.items() if texts}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_atomic(path, content.getvalue(), error=DataError)
    return path


def standardize(x: Tensor) -> Tensor:
    """Each column less its mean, divided by its deviation; a constant column becomes 0. O(n p)."""
    x = x - x.mean(dim=0)
    deviation = x.square().mean(dim=0).sqrt()
    return x / torch.where(deviation > 1e-6, deviation, 1.0)


def _checked(arrays: dict[str, Array], path: Path) -> FeatureFile:
    x, y = arrays["features"], arrays.get("labels")
    if x.ndim != 2 or x.dtype.kind not in "fiu" or 0 in x.shape:
        raise DataError(f"{path}: features must be (rows, columns) numbers, not {_kind(x)}")
    n = len(x)
    bad = int((~np.isfinite(x.astype(np.float32))).any(axis=1).sum())
    if bad:
        raise DataError(f"{path}: features must be finite, {bad} of {n} rows are not")
    if y is not None and (y.ndim != 1 or y.dtype.kind not in "iu"):
        raise DataError(f"{path}: labels must be (rows,) whole numbers, not {_kind(y)}")
    if y is not None and len(y) != n:
        raise DataError(f"{path} has {n} rows of features, but {len(y)} labels")
    texts = {key: arrays.get(key, np.array([], str)) for key in ("classes", "files")}
    for key, each in texts.items():
        if each.ndim != 1 or each.dtype.kind != "U":
            raise DataError(f"{path}: {key} must be a list of text, not {_kind(each)}")
    classes, files = (tuple(each.tolist()) for each in texts.values())
    if y is not None and classes and y.size and int(y.max()) >= len(classes):
        raise DataError(f"{path} names {len(classes)} classes, but has label {int(y.max())}")
    labels = None if y is None else torch.from_numpy(y.astype(np.int64))
    made = str(arrays.get("made", ""))
    return FeatureFile(torch.from_numpy(x.astype(np.float32)), labels, classes, files, made)


def _kind(array: Array) -> str:
    return f"{array.shape} {array.dtype}"

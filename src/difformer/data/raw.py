"""What features are made from: images and texts, and the datasets of images, cifar10 and stl10.

Sources: CIFAR-10 (Krizhevsky, 2009), https://www.cs.toronto.edu/~kriz/cifar.html, and STL-10
(Coates, Ng and Lee, 2011), https://cs.stanford.edu/~acoates/stl10, in their binary layouts. As in
the paper: 1,500 images per class of CIFAR-10, all 13,000 labelled images of STL-10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from difformer.data.dataset import Dataset
from difformer.data.features import read_features, standardize
from difformer.data.fetch import search_path
from difformer.data.neighbours import neighbour_edges
from difformer.data.registry import Raw
from difformer.errors import DataError
from difformer.files import reading

CIFAR_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_RECORD = 1 + 3 * 32 * 32  # bytes: a label, then the red, green and blue rows
STL_SIDE = 96
STL_PARTS = ("train", "test")  # the 100,000 images of unlabeled_X.bin have no class
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm")
NAMED = 5  # how many bad files an error names


@dataclass(frozen=True, eq=False)
class Images:
    """Images as (n, 3, height, width) uint8, each with a class (-1: none) and a name."""

    kind: ClassVar[Raw] = "images"

    pixels: Tensor
    y: Tensor
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def first(self, per_class: int | None) -> Images:
        """The first `per_class` images of each class, in their order; None: all."""
        if per_class is None:
            return self
        if per_class < 1:
            raise ValueError(f"per_class must be at least 1, got {per_class}")
        rows: list[Tensor] = []
        for label in self.y.unique().tolist():
            own = torch.nonzero(self.y == label).flatten()
            if own.numel() < per_class:
                title = self.class_names[label] if self.class_names else str(label)
                raise DataError(
                    f"per_class={per_class} images are asked for, but class {title} has "
                    f"{own.numel()}"
                )
            rows.append(own[:per_class])
        kept = torch.cat(rows).sort().values
        names = tuple(self.names[i] for i in kept.tolist()) if self.names else ()
        return Images(self.pixels[kept], self.y[kept], self.class_names, names)


@dataclass(frozen=True, eq=False)
class Texts:
    """Documents with a class (-1 for none) and a name each."""

    kind: ClassVar[Raw] = "text"

    texts: list[str]
    y: Tensor
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def read_lines(path: Path) -> Texts:
    """Read a UTF-8 file with one text per line; empty lines are skipped."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    if not lines:
        raise DataError(f"{path} has no text")
    return Texts(lines, torch.full((len(lines),), -1))


def load(
    name: str,
    root: Path | None = None,
    *,
    features: str = "auto",
    per_class: int | None = None,
    normalize: bool = True,
    neighbours: int = 0,
) -> Dataset:
    """The dataset with one row of features per image.

    Args:
        features: the path of a feature file, whose rows must be those of the images; "pixels"; or
            "auto": the one feature file in the dataset's folder.
        per_class: how many images of each class, the first ones (with "pixels"); None: as in the
            paper, 1,500 of CIFAR-10 and all of STL-10.
        normalize: subtract each column's mean and divide by its deviation.
        neighbours: if above 0, a graph that joins each image to this many nearest by cosine.
    """
    if features == "pixels":
        images = load_raw(name, root, per_class=per_class)
        x = images.pixels.flatten(1).float() / 255
        y, classes, source = images.y, images.class_names, "pixels"
    else:
        path = _feature_path(name, root, features)
        file = read_features(path)
        y, classes, source = file.y, file.class_names, f"features {path.name}"
        if y is None:
            images = load_raw(name, root, per_class=per_class)
            file.check_rows(images.y, path, name)
            y, classes = images.y, images.class_names
        x = file.x
    x = standardize(x) if normalize else x
    return Dataset(
        name=name,
        x=x,
        y=y,
        edge_index=neighbour_edges(x, neighbours),
        class_names=classes,
        source=f"{LAYOUTS[name].source}; {source}",
    )


def load_raw(name: str, root: Path | None = None, *, per_class: int | None = None) -> Images:
    """The images of a dataset, in the order of its files: what its features are made from."""
    layout, places = LAYOUTS[name], search_path(root)
    inner = layout.folder
    for place in places:
        for folder in (place / name / inner, place / inner, place / name):
            if any(folder.glob("*.bin")):
                return layout.read(folder).first(per_class or layout.per_class)
    raise DataError(
        f"{name} is not in {', '.join(map(str, places))}: unpack {layout.address} so that "
        f"{name}/{inner} lies in one of them"
    )


def read_cifar(folder: Path) -> Images:
    """Read CIFAR-10's binary layout: for every image a label byte, then 3,072 bytes. O(bytes)."""
    files = [folder / name for name in CIFAR_BATCHES]
    parts = [_records(file, CIFAR_RECORD) for file in files if file.is_file()]
    if not parts:
        raise DataError(f"{folder} has none of {', '.join(CIFAR_BATCHES)}")
    records = np.concatenate(parts)
    classes = _class_names(folder / "batches.meta.txt", 10)
    y = torch.from_numpy(records[:, 0].astype(np.int64))
    if int(y.max()) >= len(classes):
        raise DataError(f"{folder} has label {int(y.max())}, but {len(classes)} classes")
    return Images(torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)), y, classes)


def read_stl(folder: Path) -> Images:
    """Read STL-10's binary layout: planes of 96 × 96, column by column; labels from 1. O(bytes)."""
    pixels: list[np.ndarray[Any, Any]] = []
    labels: list[np.ndarray[Any, Any]] = []
    classes = _class_names(folder / "class_names.txt", 10)
    for part in STL_PARTS:
        content = _records(folder / f"{part}_X.bin", 3 * STL_SIDE * STL_SIDE)
        y = _records(folder / f"{part}_y.bin", 1)
        if len(content) != len(y):
            raise DataError(
                f"{folder}: {part}_X.bin has {len(content)} images, {part}_y.bin {len(y)} labels"
            )
        if y.min() < 1 or y.max() > len(classes):
            raise DataError(f"{folder / f'{part}_y.bin'}: labels must lie in 1..{len(classes)}")
        pixels.append(content.reshape(-1, 3, STL_SIDE, STL_SIDE).transpose(0, 1, 3, 2))
        labels.append(y[:, 0].astype(np.int64) - 1)
    stacked = np.ascontiguousarray(np.concatenate(pixels))
    return Images(torch.from_numpy(stacked), torch.from_numpy(np.concatenate(labels)), classes)


def read_folder(folder: str | Path, *, side: int = 32) -> Images:
    """Read a folder of images, cropped to a square and scaled; subfolders are classes. O(bytes).

    Every file with the suffix of an image must be readable; the error names those that are not.
    """
    from PIL import Image, UnidentifiedImageError

    if side < 1:
        raise ValueError(f"side must be at least 1 pixel, got {side}")
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder of images")
    files = sorted(f for f in folder.rglob("*") if f.suffix.lower() in SUFFIXES and f.is_file())
    if not files:
        raise DataError(f"{folder} has no images: no file ends in {', '.join(SUFFIXES)}")
    pixels: list[np.ndarray[Any, Any]] = []
    bad: list[str] = []
    for file in files:
        try:
            with Image.open(file) as image:
                pixels.append(_square(image.convert("RGB"), side))
        except UnidentifiedImageError:
            bad.append(f"{file.relative_to(folder)} (not an image)")
        # Pillow raises what its many decoders raise.
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            bad.append(f"{file.relative_to(folder)} ({error})")
    if bad:
        more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        raise DataError(
            f"{len(bad)} of {len(files)} images in {folder} cannot be read: "
            f"{', '.join(bad[:NAMED])}{more}"
        )
    groups = [f.relative_to(folder).parts[0] if f.parent != folder else "" for f in files]
    classes = tuple(sorted({group for group in groups if group}))
    label = {group: i for i, group in enumerate(classes)} | {"": -1}
    return Images(
        pixels=torch.from_numpy(np.stack(pixels).transpose(0, 3, 1, 2).copy()),
        y=torch.tensor([label[group] for group in groups]),
        class_names=classes,
        names=tuple(str(f.relative_to(folder)) for f in files),
    )


class Layout(NamedTuple):
    """The files of a dataset: who reads them, their folder, and where they come from."""

    read: Callable[[Path], Images]
    folder: str
    address: str
    source: str
    per_class: int | None = None  # how many images of each class, the first ones; None: all


LAYOUTS = {
    "cifar10": Layout(
        read_cifar,
        "cifar-10-batches-bin",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "CIFAR-10 (Krizhevsky, 2009)",
        per_class=1500,
    ),
    "stl10": Layout(
        read_stl,
        "stl10_binary",
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "STL-10 (Coates, Ng and Lee, 2011)",
    ),
}


def _feature_path(name: str, root: Path | None, features: str) -> Path:
    if features != "auto":
        return Path(features).expanduser()
    places = [place / name for place in search_path(root)]
    found = next((files for place in places if (files := sorted(place.glob("*.npz")))), [])
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise DataError(
            f"{found[0].parent} has several feature files ({names}): name one, features=PATH"
        )
    raise DataError(
        f"{name} has no feature file in {', '.join(map(str, places))}: run `difformer features "
        f"{name} --out FILE.npz` and give features=FILE.npz, or features=pixels"
    )


def _records(file: Path, size: int) -> np.ndarray[Any, Any]:
    """The bytes of a file as (records, size)."""
    with reading(file, error=DataError):
        content = np.fromfile(file, dtype=np.uint8)
    if content.size == 0 or content.size % size:
        raise DataError(f"{file} is truncated: {content.size} bytes, not a multiple of {size}")
    return content.reshape(-1, size)


def _class_names(file: Path, least: int) -> tuple[str, ...]:
    """The names in a text file, one per line; numbers if there is no file."""
    try:
        lines = file.read_text("utf-8").split()
    except (OSError, UnicodeDecodeError):
        lines = []
    return tuple(lines) if len(lines) >= least else tuple(str(i) for i in range(least))


def _square(image: Any, side: int) -> np.ndarray[Any, Any]:
    """The middle square, scaled to side × side."""
    width, height = image.size
    edge = min(width, height)
    left, top = (width - edge) // 2, (height - edge) // 2
    box = (left, top, left + edge, top + edge)
    return np.asarray(image.resize((side, side), box=box, reducing_gap=2.0), dtype=np.uint8)

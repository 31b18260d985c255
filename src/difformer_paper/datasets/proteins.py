"""ogbn-proteins: 132,534 proteins of eight species, 39,561,252 associations, 112 yes-or-no labels.

Source: the Open Graph Benchmark (Hu et al., 2020; CC-0), the raw files of its archive. They are
read here and not by the `ogb` package, whose loader relies on unpickling that torch no longer
allows. The split is by species: training, validation and test have different ones. A protein has no
features of its own; it gets the mean of its associations' eight features, as in the released code
of the paper.
"""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from difformer.data.dataset import Dataset, check_edges
from difformer.data.fetch import UNKNOWN, Source, Zip, obtain
from difformer.data.split import Split
from difformer.errors import DataError
from difformer.files import reading, reason_of

TASKS, LINK_FEATURES = 112, 8

ARCHIVE = Zip("http://snap.stanford.edu/ogb/data/nodeproppred/proteins.zip", "proteins", 1 << 30)
FILES = (
    "raw/edge.csv.gz",
    "raw/edge-feat.csv.gz",
    "raw/node-label.csv.gz",
    "raw/num-node-list.csv.gz",
    "raw/num-edge-list.csv.gz",
    "split/species/train.csv.gz",
    "split/species/valid.csv.gz",
    "split/species/test.csv.gz",
)


def sources(name: str) -> tuple[Source, ...]:
    """Where it comes from. Its publisher gives no checksums: the reader counts what it reads."""
    return (Source(ARCHIVE, "ogbn_proteins", dict.fromkeys(FILES, UNKNOWN)),)


def load(name: str = "ogbn-proteins", root: Path | None = None) -> Dataset:
    """The dataset: x (n, 8), y (n, 112) of 0 and 1, edges in both directions, split "species"."""
    return read_folder(obtain(name, sources(name), root), name)


def read_folder(folder: Path, name: str = "ogbn-proteins") -> Dataset:
    """Read the raw files of OGB's layout, of any size: about 1 GB of memory for the real ones."""
    n, edges = (int(read_matrix(folder / file, 1, lines=1)[0, 0]) for file in FILES[3:5])
    links = read_matrix(folder / FILES[0], 2, lines=edges)
    features = read_matrix(folder / FILES[1], LINK_FEATURES, np.float32, lines=edges)
    labels = read_matrix(folder / FILES[2], TASKS, np.float32, lines=n)
    pairs = torch.from_numpy(np.ascontiguousarray(links.T))
    with reading(folder / FILES[0], error=DataError):
        check_edges(pairs, None, n)
    rows = [torch.from_numpy(read_matrix(folder / file, 1)[:, 0]) for file in FILES[5:]]
    return Dataset(
        name=name,
        x=torch.from_numpy(mean_of_links(links, features, n)),
        y=torch.from_numpy(labels),
        task="multilabel",
        edge_index=torch.cat([pairs, pairs.flip(0)], dim=1),
        splits={"species": Split("species", rows[0], rows[1], rows[2])},
        source="ogbn-proteins, Open Graph Benchmark (Hu et al., 2020; CC-0)",
    )


def mean_of_links(links: Any, features: Any, n: int) -> Any:
    """(n, 8): each protein's mean over its associations' features, at either end; 0 without any."""
    count = np.bincount(links.ravel(), minlength=n)
    out = np.zeros((n, features.shape[1]), dtype=np.float32)
    for column in range(features.shape[1]):
        total = sum(np.bincount(links[:, end], features[:, column], n) for end in (0, 1))
        out[:, column] = total / np.maximum(count, 1)
    return out


def read_matrix(
    path: Path,
    columns: int,
    dtype: Any = np.int64,
    *,
    separator: str = ",",
    lines: int | None = None,
) -> Any:
    """A (lines, columns) array from a file of numbers. O(size).

    DataError where the file is cut off or damaged, or has another number of columns, or of lines
    where that is given.
    """
    with reading_text(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a file without numbers
        found = np.loadtxt(path, dtype, delimiter=separator, ndmin=2, comments=None)
    found = found if found.size else np.zeros((0, columns), dtype)
    if found.shape[1] != columns:
        raise DataError(f"{path}: lines must have {columns} numbers, not {found.shape[1]}")
    if lines is not None and len(found) != lines:
        raise DataError(f"{path} must have {lines} lines, it has {len(found)}")
    return found


@contextmanager
def reading_text(path: Path) -> Generator[None, None, None]:
    """A DataError of one line for text, gzipped or not, that is cut off, damaged or not there."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is cut off or damaged ({error}): fetch it again") from error
    except (OSError, ValueError) as error:
        reason = reason_of(error).partition(";")[0]  # after it, numpy advises its caller
        raise DataError(f"{path} cannot be read: {reason}") from error

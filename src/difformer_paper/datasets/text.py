"""Numbers in comma- or tab-separated text, gzipped or not."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from difformer.errors import DataError
from difformer.files import reason_of


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
    with _reading(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a file without numbers
        found = np.loadtxt(path, dtype, delimiter=separator, ndmin=2, comments=None)
    found = found if found.size else np.zeros((0, columns), dtype)
    if found.shape[1] != columns:
        raise DataError(f"{path}: lines must have {columns} numbers, not {found.shape[1]}")
    if lines is not None and len(found) != lines:
        raise DataError(f"{path} must have {lines} lines, it has {len(found)}")
    return found


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped or not, without their ends."""
    with _reading(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        for line in stream:
            yield line.rstrip(b"\r\n")


@contextmanager
def _reading(path: Path) -> Generator[None, None, None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is cut off or damaged ({error}): fetch it again") from error
    except (OSError, ValueError) as error:
        reason = reason_of(error).partition(";")[0]  # after it, numpy advises its caller
        raise DataError(f"{path} cannot be read: {reason}") from error

"""Numbers in comma- or tab-separated text, gzipped or not, read in pieces."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from difformer.errors import DataError

PIECE = 1 << 25  # bytes of text parsed together


def read_matrix(path: Path, columns: int, dtype: Any = np.int64, *, separator: str = ",") -> Any:
    """A (lines, columns) array from a file of numbers; DataError where it is cut off or damaged.

    Time O(size); memory that of the array and one piece of text.
    """
    pieces: list[Any] = []
    lines = 0
    for text in _pieces(path):
        try:
            part = np.loadtxt(io.BytesIO(text), dtype, delimiter=separator, ndmin=2, comments=None)
        except ValueError as error:
            raise DataError(f"{path}, after line {lines}: {error}") from error
        if part.shape[1] != columns:
            raise DataError(f"{path}: lines must have {columns} numbers, not {part.shape[1]}")
        pieces.append(part)
        lines += len(part)
    return np.concatenate(pieces) if pieces else np.zeros((0, columns), dtype)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, gzipped or not, without their ends."""
    for text in _pieces(path):
        yield from text.splitlines()


def _pieces(path: Path) -> Iterator[bytes]:
    """Whole lines, about PIECE bytes of them at a time; a last line without an end gets one."""
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            rest = b""
            while text := stream.read(PIECE):
                end = text.rfind(b"\n") + 1
                if end:
                    yield (rest + text[:end]).replace(b"\r", b"")
                    rest = text[end:]
                else:
                    rest += text
            if rest:
                yield rest + b"\n"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is cut off or damaged ({error}): fetch it again") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error

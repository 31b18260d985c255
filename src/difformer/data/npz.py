"""Read untrusted .npz files: no pickles, and no more memory than their headers declare."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

LARGEST = 1 << 30  # bytes that a small file may unpack to; a larger one: four times its size

_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

Array = np.ndarray[Any, Any]


def read_npz(path: Path, names: Iterable[str] | None = None) -> dict[str, Array]:
    """The arrays of an .npz file, or those named. O(bytes); the headers are checked first.

    Raises:
        ValueError: not an .npz file, an array of objects, or one that unpacks to more than
            `LARGEST` bytes and four times the file, or to another size than its shape has.
        KeyError: a named array is not there.
        OSError: the file cannot be read.
    """
    # Opened here: np.load leaves a file it cannot read open.
    try:
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            limit = max(LARGEST, 4 * path.stat().st_size)
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = list(members) if names is None else list(names)
            if any(members[name].compress_type not in _COMPRESSIONS for name in wanted):
                raise ValueError("it is compressed in a way that numpy does not use")
            total = sum(members[name].file_size for name in wanted)
            if total > limit:
                raise ValueError(f"it unpacks to {total:,} bytes, {limit:,} are allowed")
            return {name: _read(archive, members[name]) for name in wanted}
    # zipfile raises a RuntimeError for an encrypted member.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(str(error)) from error


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as stream:
        shape, dtype = _header(stream)
        declared = math.prod(shape) * dtype.itemsize
        if dtype.hasobject:
            raise ValueError(f"{member.filename} holds objects, which need pickle")
        if declared != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} must hold {shape} {dtype} and nothing else")
    with archive.open(member) as stream:
        return npy.read_array(stream, allow_pickle=False)


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    # numpy writes all further versions, with other encodings of names, as the second.
    first = npy.read_magic(stream) == (1, 0)
    read = npy.read_array_header_1_0 if first else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"an array of the shape {shape}")
    return shape, dtype

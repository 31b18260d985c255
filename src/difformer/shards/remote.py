"""A sharded dataset at a URL: fsspec reads its files, which are copied to a cache and mapped."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from difformer.data.fetch import cache_dir
from difformer.errors import DataError
from difformer.files import cannot_write, give_name, one_line

BLOCK = 1 << 20  # bytes copied together


def is_url(name: str | Path) -> bool:
    """Whether a name is a URL such as s3://bucket/parts and not a folder."""
    return re.match(r"[a-z][a-z0-9+.-]*://", str(name)) is not None


def read_text(url: str) -> str:
    """The text of a small file; DataError if it cannot be read."""
    with _opened(url) as file:
        return file.read().decode("utf-8")


def url_exists(url: str) -> bool:
    """Whether a file exists; DataError if its file system does not answer."""
    with _said(url):
        import fsspec

        system, path = fsspec.core.url_to_fs(url)
        return bool(system.exists(path))


def copied(url: str, name: str, size: int, check: Callable[[Path], None]) -> Path:
    """The local copy of a file of `size` bytes, made unless it exists.

    `name` is its name in the cache. A copy that is interrupted, or for which `check` raises a
    DataError, leaves nothing behind.
    """
    path = cache_dir() / "shards" / name
    if path.is_file() and path.stat().st_size == size:
        return path
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as local:
            with _opened(url) as file:
                shutil.copyfileobj(file, local, BLOCK)
            if local.tell() != size:
                raise DataError(f"{url} must have {size:,} bytes, {local.tell():,} came")
        try:
            check(part)
        except DataError as error:
            raise DataError(f"{url} changed after it was written: {error}") from error
        give_name(part, path)
    except OSError as error:
        raise cannot_write(path, error, DataError) from error
    finally:
        part.unlink(missing_ok=True)
    return path


@contextmanager
def _opened(url: str) -> Generator[Any, None, None]:
    with _said(url):
        import fsspec

        with fsspec.open(url, "rb") as file:
            yield file


@contextmanager
def _said(url: str) -> Generator[None, None, None]:
    """A DataError of one line for any error of a file system, such as a lost connection."""
    try:
        yield
    except (DataError, KeyboardInterrupt):
        raise
    except Exception as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else None
        raise DataError(f"{url} cannot be read: {reason or one_line(error)}") from error

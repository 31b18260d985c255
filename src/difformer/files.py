"""Files that are whole or not there: written beside, flushed to the disk, then renamed. No torch.

Everything the package writes goes through here. A full disk, a read-only folder or a missing
permission is one line, and leaves what was there before.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import RawIOBase
from pathlib import Path
from typing import Any, TextIO, cast

from difformer.errors import DifformerError, RunError

__all__ = [
    "MISREAD",
    "answer_file",
    "cannot_write",
    "finite",
    "give_name",
    "natural",
    "one_line",
    "open_scratch",
    "plain_name",
    "read_json",
    "read_toml",
    "reading",
    "replacing",
    "write_atomic",
]

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# What code meets that takes a file at its word: text for a number, a list for a mapping, a size
# beyond all bounds.
MISREAD = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    AssertionError,
    OverflowError,
    RecursionError,
    RuntimeError,
    MemoryError,
)


@contextmanager
def reading(path: Path, *, error: type[DifformerError] = RunError) -> Generator[None, None, None]:
    """One line in place of whatever a damaged file makes its reader raise."""
    try:
        yield
    except MISREAD as problem:
        reason = getattr(problem, "strerror", None) or one_line(problem)
        raise error(f"{path} cannot be read: {reason}") from problem


@contextmanager
def replacing(path: Path, *, error: type[DifformerError] = RunError) -> Generator[Path, None, None]:
    """A path beside `path` to write to, which takes its place when the block ends well.

    Whatever happens, ``path`` is the old file or the new one. An OSError becomes an `error`.
    """
    # One fixed name beside it: what a killed process leaves behind is overwritten, not piled up.
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        give_name(part, path)
    except BaseException as problem:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise cannot_write(path, problem, error) from problem
        raise


def give_name(part: Path, path: Path) -> None:
    """Flush a written file to the disk, then let it take the place of `path`."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    _sync_folder(path.parent)


def write_atomic(
    path: Path, content: bytes | str, *, error: type[DifformerError] = RunError
) -> None:
    """Replace a file in one step: whatever happens, ``path`` is the old one or the new one."""
    with replacing(path, error=error) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def answer_file(out: str | Path, *, overwrite: bool = False) -> Generator[TextIO, None, None]:
    """A text file that a person named for answers, whole or not there.

    "-" is standard output, a link is followed, a special file such as a pipe is written to and
    never replaced, and a file that is there is replaced only with `overwrite`.
    """
    if str(out) == "-":
        yield sys.stdout
        return
    path = Path(out).resolve()
    if path.is_dir():
        raise RunError(f"{out} is a folder: name a file")
    if path.exists() and not path.is_file():
        try:
            with path.open("w", encoding="utf-8", newline="") as file:
                yield file
        except OSError as problem:
            raise RunError(f"cannot write {out}: {problem.strerror or problem}") from problem
        return
    if path.exists() and not overwrite:
        raise RunError(f"{out} is there already: add --overwrite to replace it")
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        yield file


def cannot_write(
    path: Path, problem: Exception, error: type[DifformerError] = RunError
) -> DifformerError:
    """One line for a write that failed: a full disk, a missing permission."""
    reason = getattr(problem, "strerror", None) or str(problem)
    return error(
        f"cannot write {path}: {reason}; what was there before is kept: "
        "make room (or fix the permissions) and run the same command again"
    )


def read_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text; ValueError where it is not one."""
    return _toml.loads(text)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError where it holds anything else."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return cast("dict[str, Any]", content)


def finite(value: Any) -> Any:
    """Nested values as JSON can hold them: NaN and infinity become None, other objects text."""
    if isinstance(value, dict):
        return {str(k): finite(item) for k, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def open_scratch(path: Path) -> RawIOBase:
    """A file of a work folder, to be filled bit by bit: nothing takes it for finished work."""
    return path.open("wb", buffering=0)


def one_line(error: BaseException, most: int = 300) -> str:
    """The message of an error as one line of at most `most` characters; its type if it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def plain_name(text: str) -> str:
    """A text as part of a file name: letters, digits and ._- are kept, the others become a dash."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts names by their numbers: run-2 before run-10."""
    return [(int(w), "") if w.isdigit() else (0, w) for w in re.findall(r"\d+|\D+", name)]


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened to flush it
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

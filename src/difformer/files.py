"""Files are complete or absent: written under a temporary name, flushed, then renamed. No torch.

Everything the package writes goes through here. A full disk, a read-only folder or a missing
permission is an error of one line, and the old file stays.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from importlib import import_module
from io import RawIOBase
from pathlib import Path
from typing import Any, TextIO, cast

from difformer.errors import DifformerError, RunError

_toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

# What a reader raises that trusts a damaged file: text in place of a number, a list in place of a
# mapping, a size that no memory can hold.
MISREAD = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    OverflowError,
    RuntimeError,
    MemoryError,
)


@contextmanager
def reading(path: Path, *, error: type[DifformerError] = RunError) -> Generator[None, None, None]:
    """Turn whatever a damaged file makes its reader raise into an `error` of one line."""
    try:
        yield
    except MISREAD as problem:
        raise error(f"{path} cannot be read: {reason_of(problem)}") from problem


@contextmanager
def alone_in(folder: Path, *, wait: bool = True) -> Generator[None, None, None]:
    """Keep other processes out of the same block for this folder; they wait, or are refused.

    The system ends the lock with the process, so a killed one leaves nothing behind. Where folders
    cannot be locked (Windows, some network disks), nobody waits.
    """
    handle = None
    with suppress(ImportError, OSError):  # what cannot be written is for the writer to say
        fcntl: Any = import_module("fcntl")
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise RunError(
                f"another run is writing to {folder}: wait until it ends, or give another folder"
            ) from error
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def replacing(path: Path, *, error: type[DifformerError] = RunError) -> Generator[Path, None, None]:
    """A temporary path to write to, which replaces `path` if the block raises nothing.

    Whatever happens, ``path`` is the old file or the new one. An OSError becomes an `error`.
    """
    # One fixed name: what a killed process leaves behind is overwritten by the next.
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
    """Flush a written file to the disk, then rename it to `path`."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)
    _sync_folder(path.parent)


def write_atomic(
    path: Path, content: bytes | str, *, error: type[DifformerError] = RunError
) -> None:
    """Write a file in one step: whatever happens, ``path`` is the old one or the new one."""
    with replacing(path, error=error) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def answer_file(out: str | Path, *, overwrite: bool = False) -> Generator[TextIO, None, None]:
    """Open the text file that a user named for answers; it is complete or absent afterwards.

    "-" is standard output, a link is followed, a special file such as a pipe is written to and
    never replaced, and an existing file is replaced only with `overwrite`.
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
            raise RunError(f"cannot write {out}: {reason_of(problem)}") from problem
        return
    if path.exists() and not overwrite:
        raise RunError(f"{out} is there already: add --overwrite to replace it")
    with replacing(path) as part, part.open("w", encoding="utf-8", newline="") as file:
        yield file


def cannot_write(
    path: Path, problem: Exception, error: type[DifformerError] = RunError
) -> DifformerError:
    """The error of one line for a failed write: a full disk, a missing permission."""
    hint = "make room (or fix the permissions) and run the same command again"
    if isinstance(problem, FileNotFoundError) and path.parent.is_dir():  # so it was there
        hint = "another process writes to this folder, which must wait or have one of its own"
    return error(
        f"cannot write {path}: {reason_of(problem)}; what was there before is kept: {hint}"
    )


def read_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text; ValueError if it is not TOML."""
    return _toml.loads(text)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError if it holds anything else."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return cast("dict[str, Any]", content)


def number_text(value: float) -> str:
    """The fewest digits that read back as the same number in its precision, "" for NaN.

    >>> number_text(5.0), number_text(1e9 + 0.001), number_text(float("nan"))
    ('5', '1000000000.001', '')
    """
    return "" if value != value else str(value).removesuffix(".0")


def counted(count: int, noun: str) -> str:
    """A number of things for people.

    >>> counted(1, "node"), counted(1200, "node")
    ('1 node', '1,200 nodes')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def csv_lines(lines: Iterable[Iterable[Any]]) -> str:
    """Lines of cells as CSV text; the first line has the names of the columns."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def finite(value: Any) -> Any:
    """Nested values as JSON allows them: NaN and infinity become None, other objects text."""
    if isinstance(value, dict):
        return {str(k): finite(item) for k, item in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def json_text(value: Any, **layout: Any) -> str:
    """`value` as JSON that every reader takes: a number that is not finite becomes null."""
    return json.dumps(finite(value), allow_nan=False, **layout)


def write_json(
    path: Path, value: Any, *, error: type[DifformerError] = RunError, **layout: Any
) -> None:
    """Write a file of JSON in one step, see `json_text`."""
    write_atomic(path, json_text(value, **layout) + "\n", error=error)


def open_scratch(path: Path) -> RawIOBase:
    """Open a file of a work folder that is written piece by piece and never read as complete."""
    return path.open("wb", buffering=0)


def one_line(error: BaseException, most: int = 300) -> str:
    """The message of an error as one line of at most `most` characters; its type if it has none."""
    return " ".join(str(error).split())[:most] or type(error).__name__


def reason_of(error: BaseException) -> str:
    """Why a file cannot be read or written, in one line: the words of the system if it has any."""
    if isinstance(error, KeyError):
        return f"it lacks {error}"
    return getattr(error, "strerror", None) or one_line(error)


def not_a_file(path: Path) -> str:
    """What a path is that does not name a file, for an error."""
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        return "no such file"
    except OSError as error:  # such as links that lead in a circle
        return reason_of(error)
    if stat.S_ISDIR(kind):
        return "is a folder: name a file"
    return "is a pipe or a device: write it to a file first"


def plain_name(text: str) -> str:
    """A text as part of a file name: all but letters, digits and ._- becomes a dash."""
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

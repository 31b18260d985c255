"""Files that are whole or not there: written beside, flushed to the disk, then renamed. No torch.

Everything the package writes goes through here. A full disk, a read-only folder or a missing
permission is one line, and leaves what was there before.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from difformer.errors import DifformerError, RunError

__all__ = ["cannot_write", "replacing", "write_atomic"]


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
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except BaseException as problem:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            raise cannot_write(path, problem, error) from problem
        raise


def write_atomic(
    path: Path, content: bytes | str, *, error: type[DifformerError] = RunError
) -> None:
    """Replace a file in one step: whatever happens, ``path`` is the old one or the new one."""
    with replacing(path, error=error) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def cannot_write(
    path: Path, problem: Exception, error: type[DifformerError] = RunError
) -> DifformerError:
    """One line for a write that failed: a full disk, a missing permission."""
    reason = getattr(problem, "strerror", None) or str(problem)
    return error(
        f"cannot write {path}: {reason}; what was there before is kept: "
        "make room (or fix the permissions) and run the same command again"
    )


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened to flush it
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Files that are whole or not there: written beside, flushed to the disk, then renamed."""

from __future__ import annotations

import os
from pathlib import Path

from difformer.errors import RunError


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file in one step: whatever happens, ``path`` is the old one or the new one."""
    # One fixed name beside it: what a killed process leaves behind is overwritten, not piled up.
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: Exception) -> RunError:
    """One line for a write that failed: a full disk, a missing permission."""
    reason = getattr(error, "strerror", None) or str(error)
    return RunError(
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

"""How much memory there is, and keeping what was freed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

__all__ = ["available_memory", "keep_freed_memory"]

# The parameters of glibc's mallopt, and a size above all tensors that come and go in a step.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ABOVE_ALL = -1, -3, 2**31 - 1


def available_memory() -> int | None:
    """Bytes a process may still take without swapping; None where the system does not say."""
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def keep_freed_memory() -> bool:
    """From now on this process keeps what tensors free; True where that could be arranged.

    glibc gives each large block back to the system as it is freed, and the next tensor of that size
    pays for fresh pages, as every layer of a step on many rows does. Kept blocks do not always fit,
    so the peak may rise. It concerns the whole process: experiments do it, the estimators and `fit`
    leave their caller's process alone. With another C library nothing happens.
    """
    if os.name != "posix":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all(
        library.mallopt(name, _ABOVE_ALL) == 1 for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)
    )

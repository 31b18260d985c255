"""How much memory is available and used, and how to reuse what was freed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

# Parameters of glibc's mallopt, and a size above that of any temporary tensor.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ABOVE_ALL = -1, -3, 2**31 - 1


def available_memory() -> int | None:
    """Bytes a process can still allocate without swapping; None if unknown."""
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


def peak_memory() -> int | None:
    """The largest resident size of this process so far, in bytes; None if unknown."""
    # On Linux `resource` would count the peak of the process that started this one.
    with suppress(OSError):
        return _status("VmHWM")
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def resident_memory() -> int:
    """The bytes this process holds now, or their peak where the system reports only that."""
    try:
        return _status("VmRSS")
    except OSError:
        return peak_memory() or 0


def memory_from_here() -> Callable[[], int | None]:
    """A function that returns the peak memory since this call, above what is held now.

    On Linux the peak so far is reset. Elsewhere it is not, and hides lower peaks that follow; the
    function returns None if the system reports no peak.
    """
    forget_peak_memory()
    try:
        held = _status("VmRSS")
        return lambda: max(0, _status("VmHWM") - held)
    except OSError:
        before = peak_memory()
    return lambda: None if before is None else max(0, (peak_memory() or 0) - before)


def forget_peak_memory() -> None:
    """Reset this process's peak memory, where the system supports it (Linux).

    What was freed and kept goes back to the system first: else the next peak would count it.
    """
    library = _gnu_library()
    if library is not None:
        library.malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


def keep_freed_memory() -> bool:
    """Keep memory that tensors free for reuse by this process; True if that is supported.

    glibc returns each large block to the system when it is freed, and the next tensor of that size
    pays for fresh pages, in every layer of a step on many rows. Kept blocks do not always fit, so
    the peak may rise. It affects the whole process: experiments use it, the estimators and `fit` do
    not. With another C library it does nothing.
    """
    library = _gnu_library()
    return library is not None and all(
        library.mallopt(name, _ABOVE_ALL) == 1 for name in (_MMAP_THRESHOLD, _TRIM_THRESHOLD)
    )


def _gnu_library() -> ctypes.CDLL | None:
    """The GNU C library of this process; None where it has another."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    return library if hasattr(library, "gnu_get_libc_version") else None

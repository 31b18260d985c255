"""How much memory there is, and keeping what was freed."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = [
    "available_memory",
    "forget_peak_memory",
    "keep_freed_memory",
    "memory_from_here",
    "peak_memory",
    "resident_memory",
]

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


def peak_memory() -> int | None:
    """The largest resident size of this process so far, in bytes."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def resident_memory() -> int:
    """The bytes this process holds now; their peak where the system says no more."""
    try:
        return _status("VmRSS")
    except OSError:
        return peak_memory() or 0


def memory_from_here() -> Callable[[], int | None]:
    """A function of the most bytes held since this call, above what is held now.

    On Linux the peak so far is forgotten. Elsewhere it stays, and hides what comes below it; the
    function gives None where the system does not say.
    """
    forget_peak_memory()
    try:
        held = _status("VmRSS")
        return lambda: max(0, _status("VmHWM") - held)
    except OSError:
        before = peak_memory()
    return lambda: None if before is None else max(0, (peak_memory() or 0) - before)


def forget_peak_memory() -> None:
    """Let this process's peak memory start from now, where the system can do that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _status(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))


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

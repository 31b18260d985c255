"""The machine a figure was measured on: cores, memory and versions, and nothing that names it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["describe_machine"]


def describe_machine() -> dict[str, Any]:
    """What a result file says of its machine."""
    return {
        "cores": os.cpu_count(),
        "memory_gb": _total_memory(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": version("torch").split("+")[0],
    }


def forget_peak_memory() -> None:
    """Let this process's peak memory start from now, where the system can do that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _total_memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None

"""The machine a figure was measured on: cores, memory and versions, and nothing that names it."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
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


def _total_memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None

"""What a result was measured with: the commit, and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

BEFORE = "before 2a0c100"  # result files name their commit from there on


@cache
def commit() -> str | None:
    """The commit of the checkout that runs, "-dirty" where its code was changed; one call of git.

    None where the package does not run from its own checkout.
    """
    here = Path(__file__).resolve().parent
    try:
        top = Path(_git(here, "rev-parse", "--show-toplevel")).resolve()
        if top / "src" / "difformer" != here:
            return None
        name = _git(top, "rev-parse", "--short=12", "HEAD")
        # Files of results and pages change while figures are measured.
        changed = _git(top, "status", "--porcelain", "--", "src", "benchmarks")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}-dirty" if changed else name


def commit_of(record: Mapping[str, Any]) -> str:
    """What a page says of the commit of a result file, in words."""
    if "commit" not in record:
        return BEFORE
    return "no git checkout" if record["commit"] is None else f"commit {record['commit']}"


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


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

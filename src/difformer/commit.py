"""The commit that a result was made at, and how a result file without one is shown."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["commit", "commit_of"]

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

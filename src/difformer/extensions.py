"""What other packages add by entry points: commands, systems, datasets and encoders."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any


@cache
def added(kind: str) -> dict[str, Any]:
    """What installed packages add, by name; `kind` is commands, systems, datasets or encoders.

    A package names a dict in its pyproject.toml, under ``[project.entry-points."difformer.KIND"]``.
    """
    found: dict[str, Any] = {}
    for entry in entry_points(group=f"difformer.{kind}"):
        found |= entry.load()
    return found

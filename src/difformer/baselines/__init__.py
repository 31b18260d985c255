"""Every system to compare with: one model per file, and one registry that names them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.baselines.graphs import graph_for
    from difformer.baselines.registry import SYSTEMS, get_system
    from difformer.baselines.system import System

__all__ = ["SYSTEMS", "System", "get_system", "graph_for"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "graphs": ("graph_for",),
        "registry": ("SYSTEMS", "get_system"),
        "system": ("System",),
    },
)

"""Every system the paper compares with: one a file, and one dict that names them all."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.baselines.graphs import graph_for
    from difformer.baselines.registry import SYSTEMS, get_system
    from difformer.baselines.system import System

__all__ = ["SYSTEMS", "System", "get_system", "graph_for"]

# Loaded when asked for: the command line lists the systems without torch.
_HOME = {"SYSTEMS": "registry", "System": "system", "get_system": "registry", "graph_for": "graphs"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

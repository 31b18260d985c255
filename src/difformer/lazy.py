"""Packages whose names load on first use (PEP 562), so that `difformer --help` imports no torch.

A package's `__init__` says where its names live; type checkers read the same names from imports
under `TYPE_CHECKING`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package whose names live in its submodules.

    >>> __getattr__, __dir__ = lazy_names("difformer.data", {"split": ("Split",)})
    >>> __getattr__("Split").__module__
    'difformer.data.split'

    Args:
        package: its `__name__`.
        homes: the names each submodule gives, by the submodule's name.
    """
    home = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        # From now on found in the package, without this function.
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home})

    return load, names

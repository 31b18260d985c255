"""Every system by name, one file per family: the options of each, then its entry. No torch.

To add a system: a file in `baselines/` with its model, and here its options and a `System`.
"""

from __future__ import annotations

from difformer.baselines.registry import (
    convolutions,
    difformer,
    diffusions,
    labels,
    learned,
    naive,
    rows,
    transformers,
)
from difformer.baselines.system import System

__all__ = ["FORECASTS", "SYSTEMS", "get_system"]

_FAMILIES = (difformer, rows, labels, convolutions, diffusions, learned, transformers)

SYSTEMS: dict[str, System] = {
    system.name: system for family in _FAMILIES for system in family.SYSTEMS
}

# Forecasts without a network: their features are the lags of a series, so they are not in SYSTEMS,
# but tables of forecasts show them.
FORECASTS: dict[str, System] = {system.name: system for system in naive.SYSTEMS}


def get_system(name: str) -> System:
    """The system of that name; ValueError lists the known ones.

    >>> get_system("mlp").title
    'MLP'
    """
    if name in FORECASTS:
        return FORECASTS[name]
    if name not in SYSTEMS:
        raise ValueError(f"model must be one of {', '.join(SYSTEMS)}, got {name!r}")
    return SYSTEMS[name]

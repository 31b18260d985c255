"""Every system by name: the options of each, and its entry. No torch.

To add a system: its model in a file here, and its options and a `System` in `of_rows.py` or
`of_graphs.py`. Other packages add theirs (see `difformer.extensions`).
"""

from __future__ import annotations

from difformer.extensions import added
from difformer.systems import of_difformer, of_graphs, of_naive, of_rows
from difformer.systems.system import System

_FAMILIES = (of_difformer, of_rows, of_graphs)

SYSTEMS: dict[str, System] = {
    system.name: system for family in _FAMILIES for system in family.SYSTEMS
} | added("systems")

# Forecasts without a network: their features are the lags of a series, so they are not in SYSTEMS,
# but tables of forecasts show them.
FORECASTS: dict[str, System] = {system.name: system for system in of_naive.SYSTEMS}


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

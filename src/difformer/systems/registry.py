"""Every system by name: the options of each, and its entry. No torch.

To add a system: its model in a file here, and its options and a `System` in `families.py`. Other
packages add theirs (see `difformer.extensions`).
"""

from __future__ import annotations

from dataclasses import dataclass

from difformer.extensions import added
from difformer.settings import NOT_NEGATIVE, option
from difformer.systems import families
from difformer.systems.system import Config, System

SYSTEMS: dict[str, System] = {system.name: system for system in families.SYSTEMS} | added("systems")


@dataclass(frozen=True, kw_only=True)
class NaiveConfig(Config):
    """A forecast without a network."""

    rule: str = option("last", "which forecast", ("last", "mean", "node", "pooled"))
    ridge: float = option(0.0, "penalty on the weights of an autoregression", NOT_NEGATIVE)


# Forecasts without a network: their features are the lags of a series, so they are not in SYSTEMS,
# but tables of forecasts show them.
FORECASTS: dict[str, System] = {
    name: System(
        name,
        title,
        "difformer.systems.naive.build",
        NaiveConfig,
        graph="none",
        tasks=("regression",),
        defaults={"rule": rule},
        space={"ridge": (0.0, 1.0, 10.0, 100.0)} if rule in ("node", "pooled") else {},
    )
    for name, title, rule in (
        ("last-value", "last value", "last"),
        ("mean-of-lags", "mean of the lags", "mean"),
        ("node-ar", "linear AR, one per node", "node"),
        ("pooled-ar", "linear AR, one for all", "pooled"),
    )
}


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

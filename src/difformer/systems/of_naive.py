"""Forecasts without a network."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.settings import NOT_NEGATIVE, Options, option
from difformer.systems.system import System, features


@dataclass(frozen=True, kw_only=True)
class NaiveConfig(Options):
    """A forecast without a network."""

    rule: str = option("last", "which forecast", ("last", "mean", "node", "pooled"))
    ridge: float = option(0.0, "penalty on the weights of an autoregression", NOT_NEGATIVE)


SYSTEMS = tuple(
    System(
        name=name,
        title=title,
        model="difformer.systems.naive.build",
        config=NaiveConfig,
        memory=features,
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
)

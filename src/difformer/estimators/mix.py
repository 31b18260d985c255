"""Several forecasts mixed into one: the share of each depends on its errors, newest ones most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from difformer.data.series import Series, fill
from difformer.data.snapshots import Edges
from difformer.data.times import season_of
from difformer.estimators.backtest import OURS
from difformer.estimators.network import Network
from difformer.estimators.simple import Forecast, neighbours_of, simple_forecasts

Array = NDArray[Any]

# Steps after which an error counts half: a forecast that was wrong lately is likely to be wrong
# next. With few nodes, as many steps as have `VALUES` values.
STEPS, VALUES = 5, 40

TINY = 1e-12  # added to the errors, relative to their mean, so that exact forecasts are no problem
SUM = 1e3  # weight of the constraint that shares sum to one


@dataclass(frozen=True, eq=False)
class Mix:
    """Shares w of 0 or more that sum to one, by the errors of each forecast on the steps so far.

        w = argmin  w' (C + diag C / o) w

    C (k, k) is the weighted mean product of two forecasts' errors over nodes, steps ahead and past
    steps. A step has half the weight of one `memory` steps later; o is the sum of the weights. The
    second term stands for one more step, at which the errors are of average size and independent:
    with few steps, shares depend less on how errors are correlated.

    Args:
        products: the weighted sum over steps of mean products; zero before the first step.
        steps: the sum of the weights.
    """

    names: tuple[str, ...]
    products: Array
    steps: float
    memory: float

    @classmethod
    def learn(cls, forecasts: Mapping[str, Array], truth: Array) -> Mix:
        """From forecasts (o, h, n) of o consecutive origins and the truth, nan where unknown.

        >>> truth = np.arange(6.0).reshape(6, 1, 1)
        >>> wrong = truth + 5 * (-1) ** truth
        >>> Mix.learn({"right": truth, "wrong": wrong}, truth).shares()["right"] > 0.8
        True
        """
        count = len(forecasts)
        memory = max(STEPS, VALUES / max(1, truth.shape[2]))
        start = cls(tuple(forecasts), np.zeros((count, count)), 0.0, memory)
        return start.after(np.stack([*forecasts.values()], axis=-1) - truth[..., None])[-1]

    def after(self, errors: Array) -> list[Mix]:
        """This mix, and the mix after each of o further steps, by errors (o, h, n, k).

        The origins are consecutive. After a step, the errors of all forecasts of it are known:
        those made one step ahead, two steps ahead, and so on to h.
        """
        fade = 0.5 ** (1 / self.memory)
        mixes: list[Mix] = [self]
        origins, ahead = errors.shape[:2]
        for step in range(origins):
            early = range(min(step + 1, ahead))
            found = np.concatenate([errors[step - j, j] for j in early])
            found = found[~np.isnan(found).any(-1)]
            last = mixes[-1]
            products, steps = last.products * fade, last.steps * fade
            if len(found):
                products, steps = products + found.T @ found / len(found), steps + 1
            mixes.append(Mix(self.names, products, steps, self.memory))
        return mixes

    def shares(self) -> dict[str, float]:
        """The share of each forecast; equal shares if no error is known."""
        count = len(self.names)
        usual = float(np.trace(self.products)) / count
        shares = np.ones(count)
        if usual > 0:
            own = np.diag(np.diag(self.products)) / self.steps + TINY * usual * np.eye(count)
            root = np.linalg.cholesky((self.products + own) / usual).T
            sides = np.vstack([root, np.full((1, count), SUM)]), np.append(np.zeros(count), SUM)
            shares = np.asarray(nnls(*sides)[0], float)
        return dict(zip(self.names, [float(s) for s in shares / shares.sum()], strict=True))


@dataclass(frozen=True, eq=False)
class MixedForecast:
    """The forecasts of a network, mixed with simple ones.

    Args:
        data: the series of fit.
        simple: the simple forecasts by name; none without a mix.
        mix: the shares after the steps of fit; None for the network alone.
    """

    data: Series
    network: Network
    simple: Mapping[str, Forecast] = field(default_factory=dict[str, Forecast])
    mix: Mix | None = None

    @classmethod
    def learn(
        cls, data: Series, edges: tuple[Edges, ...], network: Network, kept: int
    ) -> MixedForecast:
        """Learn the shares from the last `kept` steps, then the simple forecasts from all steps."""
        alone, lags = cls(data, network), network.windows.lags
        if len(data.values) - kept < lags + 2:
            return alone
        filled, before = alone.filled(data), slice(len(data.values) - kept)
        near = neighbours_of(edges[-1:], data.values.shape[1])
        options: dict[str, Any] = {"season": season_of(data.stamps), "neighbours": near}
        origins, ours, truth = network.validate(data, edges, kept)
        early = simple_forecasts(filled[before], data.values[before], lags, **options)
        each = {name: one(filled, origins, ours.shape[1]) for name, one in early.items()}
        mix = Mix.learn({OURS: ours, **each}, truth)
        late = simple_forecasts(filled, data.values, lags, **options)
        return cls(data, network, {name: late[name] for name in early}, mix)

    @property
    def shares(self) -> dict[str, float]:
        """The share of the network, and of each simple forecast, after the steps of fit."""
        return {OURS: 1.0} if self.mix is None else self.mix.shares()

    def filled(self, data: Series) -> Array:
        """Values (T, n): missing ones are the last known one, or the node's mean."""
        return fill(data.values, self.network.windows.nodes.level)

    def ahead(self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int) -> Array:
        """Forecasts from each origin (o, steps, n), each by the steps before its origin only."""
        found = self._each(data, edges, origins, steps)
        mixed = found[OURS]
        if self.mix is not None:
            shares = self._shares_at(self.mix, data, edges, origins)
            mixed = sum(shares[name][:, None, None] * one for name, one in found.items())
        last = fill(data.values, np.full(data.values.shape[1], np.nan))[origins - 1]
        return np.where(self.network.windows.nodes.naive, last[:, None], mixed)

    def _each(
        self, data: Series, edges: tuple[Edges, ...], origins: Array, steps: int
    ) -> dict[str, Array]:
        """The forecasts that are mixed, each (o, steps, n)."""
        filled = self.filled(data)
        simple = {name: one(filled, origins, steps) for name, one in self.simple.items()}
        return {OURS: self.network.ahead(data, edges, origins, steps), **simple}

    def _shares_at(
        self, mix: Mix, data: Series, edges: tuple[Edges, ...], origins: Array
    ) -> dict[str, Array]:
        """The share of each forecast at each origin (o,), by errors after the steps of fit too."""
        windows = self.network.windows
        first = max(self._seen(data), windows.lags)
        newer = np.arange(first, max(first, int(origins.max())))
        mixes = [mix]
        if len(newer):
            each = self._each(data, edges, newer, windows.horizon)
            truth = windows.nodes.targets(data.values, newer, windows.horizon)
            mixes = mix.after(np.stack([*each.values()], axis=-1) - truth[..., None])
        at = [mixes[max(0, origin - first)].shares() for origin in origins]
        return {name: np.array([shares[name] for shares in at]) for name in mix.names}

    def _seen(self, data: Series) -> int:
        """How many of the first steps of a series were in fit.

        By their times; without times, those of fit if the series begins with the same values.
        """
        known, both = self.data, min(len(data.values), len(self.data.values))
        if data.stamps and known.stamps:
            return sum(stamp <= known.stamps[-1] for stamp in data.stamps)
        same = np.array_equal(data.values[:both], known.values[:both], equal_nan=True)
        return both if same else 0

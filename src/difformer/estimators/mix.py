"""The share that each of several forecasts has, by errors of which the newest count most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

__all__ = ["Mix"]

Array = NDArray[Any]

# Steps after which an error counts half: winters differ, and a forecast that is off in this one is
# off in the next weeks, too. With few nodes as many steps as have `VALUES` values.
STEPS, VALUES = 5, 40

TINY = 1e-12  # of the usual error, so that a forecast without any can be shared too
SUM = 1e3  # how much more it matters that shares sum to one than how large an error is


@dataclass(frozen=True, eq=False)
class Mix:
    """Forecasts in shares w of 0 or more that sum to one, by their errors on the steps so far.

        w = argmin  w' (C + diag C / o) w

    C (k, k) is the weighted mean product of two forecasts' errors over nodes, steps ahead and past
    steps. A step has half the weight of one `memory` steps later; o is the sum of the weights. The
    second term stands for one more step, at which the errors are as large as usual and independent:
    where steps are few, shares depend less on how errors are correlated.

    Args:
        products: the sum over steps of mean products, faded; zero where nothing is known.
        steps: the sum of their weights.
    """

    names: tuple[str, ...]
    products: Array
    steps: float
    memory: float

    @classmethod
    def learn(cls, forecasts: Mapping[str, Array], truth: Array) -> Mix:
        """From forecasts (o, h, n) of o consecutive origins and what came, nan where unknown.

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
        """The mix before the first origin of errors (o, h, n, k), and after each of the o steps.

        The origins are consecutive. Once a step has come, the errors of all forecasts of it are
        known: those from one step ahead, from two, and so on to h.
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
        """The share of each forecast; all are equal where no error is known."""
        count = len(self.names)
        usual = float(np.trace(self.products)) / count
        shares = np.ones(count)
        if usual > 0:
            own = np.diag(np.diag(self.products)) / self.steps + TINY * usual * np.eye(count)
            root = np.linalg.cholesky((self.products + own) / usual).T
            sides = np.vstack([root, np.full((1, count), SUM)]), np.append(np.zeros(count), SUM)
            shares = np.asarray(nnls(*sides)[0], float)
        return dict(zip(self.names, [float(s) for s in shares / shares.sum()], strict=True))

"""Simple forecasts beside slow obvious ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from difformer.estimators.simple import Autoregression, averaging, simple_forecasts

DRAW = np.random.default_rng(0)
SERIES = np.cumsum(DRAW.normal(size=(60, 4)), axis=0)
NEAR = np.array([[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0, 0]])


@pytest.mark.parametrize("near", [None, NEAR, sparse.csr_matrix(NEAR)])
def test_weights_are_those_of_least_squares(near: Any) -> None:
    learned = Autoregression.learn(SERIES, SERIES, 3, averaging(near))
    means = NEAR if near is not None else (np.ones((4, 4)) - np.eye(4)) / 3
    for node in range(4):
        around = SERIES @ means[node]
        x = np.stack([[*SERIES[t - 3 : t, node], *around[t - 3 : t], 1] for t in range(3, 60)])
        best = np.linalg.lstsq(x, SERIES[3:, node], rcond=None)[0]
        fitted = learned.forecast(SERIES, np.arange(3, 60), 1)[:, 0, node]
        np.testing.assert_allclose(fitted, x @ best, atol=1e-3)


def test_later_steps_come_from_earlier_ones_and_never_run_away() -> None:
    learned = Autoregression.learn(SERIES, SERIES, 2)
    (first,) = learned.forecast(SERIES, np.array([60]), 1)
    (again,) = learned.forecast(np.vstack([SERIES, first]), np.array([61]), 1)
    (both,) = learned.forecast(SERIES, np.array([60]), 2)
    np.testing.assert_allclose(both, np.vstack([first, again]))
    doubling, end = 2.0 ** np.arange(20)[:, None], np.array([20])
    far = Autoregression.learn(doubling, doubling, 2).forecast(doubling, end, 50)
    assert far.max() == 2 * doubling.max() - 1
    falling = Autoregression.learn(doubling[::-1], doubling[::-1], 2)
    assert falling.forecast(doubling, end, 9).min() >= 0


@pytest.mark.parametrize("name", ["last value", "seasonal naive", "mean of lags", "AR"])
def test_a_forecast_from_many_origins_is_that_from_each(name: str) -> None:
    """By the steps before its origin alone, whatever comes after."""
    found = simple_forecasts(SERIES[:40], SERIES[:40], 3, season=7)[name]
    together = found(SERIES, np.array([40, 47, 60]), 9)
    assert together.shape == (3, 9, 4)
    for one, origin in zip(together, (40, 47, 60), strict=True):
        np.testing.assert_array_equal(one, found(SERIES[:origin], np.array([origin]), 9)[0])
    if name == "last value":
        np.testing.assert_array_equal(together[0], np.repeat(SERIES[39:40], 9, axis=0))
    if name == "mean of lags":
        np.testing.assert_allclose(together[0, 5], SERIES[37:40].mean(0))
    if name == "seasonal naive":
        np.testing.assert_array_equal(together[0], SERIES[[33, 34, 35, 36, 37, 38, 39, 33, 34]])
        early = found(SERIES, np.array([5]), 2)  # before a season has been
        np.testing.assert_array_equal(early[0], SERIES[[4, 4]])


def test_a_season_and_neighbours_are_used_where_there_are_any() -> None:
    names = set(simple_forecasts(SERIES, SERIES, 3, season=7))
    assert names == {"last value", "seasonal naive", "mean of lags", "AR", "AR with neighbours"}
    one = SERIES[:, :1]
    assert set(simple_forecasts(one, one, 3, season=60)) == {"last value", "mean of lags", "AR"}

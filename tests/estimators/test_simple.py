"""Linear autoregression beside numpy's least squares, and how much of it goes into a forecast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from difformer import DIFFormerForecaster
from difformer.estimators.autoregression import Autoregression, averaging, share_of

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
        fitted = learned.next(SERIES)[:, node]
        np.testing.assert_allclose(fitted, x @ best, atol=1e-3)


def test_later_steps_come_from_earlier_ones_and_never_run_away() -> None:
    learned = Autoregression.learn(SERIES, SERIES, 2)
    first = learned.forecast(SERIES, 1)
    again = learned.forecast(np.vstack([SERIES, first]), 1)
    np.testing.assert_allclose(learned.forecast(SERIES, 2), np.vstack([first, again]))
    doubling = 2.0 ** np.arange(20)[:, None]
    far = Autoregression.learn(doubling, doubling, 2).forecast(doubling, 50)
    assert far.max() == 2 * doubling.max() - 1
    assert Autoregression.learn(doubling[::-1], doubling[::-1], 2).forecast(doubling, 9).min() >= 0


def test_the_share_is_that_of_the_better_one_or_a_half() -> None:
    truth = DRAW.normal(size=(50, 3))
    good, bad = truth + DRAW.normal(size=(2, 50, 3)) * [[[0.1]], [[3.0]]]
    assert share_of(good, bad, truth) == 1.0
    assert share_of(bad, good, truth) == 0.0
    alike = truth + DRAW.normal(size=(2, 50, 3))
    assert share_of(alike[0], alike[1], truth) == 0.5
    truth[::2] = np.nan
    assert share_of(good, bad, truth) == 1.0
    assert share_of(good, bad, truth * np.nan) == 0.0


def test_a_forecast_is_mixed_with_a_linear_one_where_that_validates_better() -> None:
    """An AR(2) process: one epoch of a network knows nothing of it."""
    draw = np.random.default_rng(1)
    series = np.zeros((120, 3))
    for t in range(2, 120):
        series[t] = 1.6 * series[t - 1] - 0.9 * series[t - 2] + 0.1 * draw.normal(size=3)
    fast: dict[str, Any] = {"epochs": 1, "hidden_channels": 4, "random_state": 0}
    mixed = DIFFormerForecaster(**fast).fit(series[:100])
    assert mixed.linear_share_ == 1.0
    alone = DIFFormerForecaster(**fast, linear="none").fit(series[:100])
    assert alone.linear_share_ == 0.0
    error = [np.abs(one.predict_next(series)[-20:] - series[-20:]).mean() for one in (mixed, alone)]
    assert error[0] < 0.3 * error[1]  # the noise alone has 0.08
    next_one = mixed.predict_next(np.vstack([series, series[-1:]]))[-1]
    np.testing.assert_allclose(mixed.predict(1, series=series)[0], next_one, atol=1e-6)
    assert DIFFormerForecaster(**fast, validation_fraction=0.0).fit(series).linear_share_ == 0.0

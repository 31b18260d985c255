"""Simple forecasts beside slow obvious ones, and shares of several by their errors so far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from difformer import DIFFormerForecaster
from difformer.estimators import mix as module
from difformer.estimators.mix import (
    autoregression,
    averaging,
    pasts,
    shares_of,
    simple_forecasts,
)

DRAW = np.random.default_rng(0)
SERIES = np.cumsum(DRAW.normal(size=(60, 4)), axis=0)
NEAR = np.array([[0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0.5, 0, 0.5], [0, 0, 0, 0]])


@pytest.mark.parametrize("near", [None, NEAR, sparse.csr_matrix(NEAR)])
def test_weights_are_those_of_least_squares(near: Any) -> None:
    learned = autoregression(SERIES, SERIES, 3, averaging(near))
    means = NEAR if near is not None else (np.ones((4, 4)) - np.eye(4)) / 3
    for node in range(4):
        around = SERIES @ means[node]
        x = np.stack([[*SERIES[t - 3 : t, node], *around[t - 3 : t], 1] for t in range(3, 60)])
        best = np.linalg.lstsq(x, SERIES[3:, node], rcond=None)[0]
        fitted = learned(SERIES, np.arange(3, 60), 1)[:, 0, node]
        np.testing.assert_allclose(fitted, x @ best, atol=1e-3)


def test_later_steps_come_from_earlier_ones_and_never_run_away() -> None:
    learned = autoregression(SERIES, SERIES, 2)
    (first,) = learned(SERIES, np.array([60]), 1)
    (again,) = learned(np.vstack([SERIES, first]), np.array([61]), 1)
    (both,) = learned(SERIES, np.array([60]), 2)
    np.testing.assert_allclose(both, np.vstack([first, again]))
    doubling, end = 2.0 ** np.arange(20)[:, None], np.array([20])
    far = autoregression(doubling, doubling, 2)(doubling, end, 50)
    assert far.max() == 2 * doubling.max() - 1
    falling = autoregression(doubling[::-1], doubling[::-1], 2)
    assert falling(doubling, end, 9).min() >= 0


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


def slow_shares(cost: np.ndarray, steps: float) -> np.ndarray:
    """The best of all shares in steps of a twentieth, of three forecasts."""
    cost = cost + np.diag(np.diag(cost)) / steps
    grid = [np.array([a, b, 20 - a - b]) / 20 for a in range(21) for b in range(21 - a)]
    return min(grid, key=lambda w: float(w @ cost @ w))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("memory", [3.0, 1e9])
def test_shares_are_the_best_of_all_that_sum_to_one(
    seed: int, memory: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STEPS", memory)
    monkeypatch.setattr(module, "VALUES", 0)
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(50, 1, 1))
    common = draw.normal(size=(50, 1, 1))
    each = [truth + i * common + draw.normal(size=(50, 1, 1)) for i in range(3)]
    errors = np.stack([one - truth for one in each], axis=-1)
    past = pasts(errors)[-1]
    found = shares_of(past)
    assert found.sum() == pytest.approx(1)
    assert found.min() >= 0
    weight = 0.5 ** (np.arange(50)[::-1] / memory)
    flat = errors[:, 0, 0]
    cost = (weight[:, None] * flat).T @ flat / weight.sum()
    np.testing.assert_allclose(found, slow_shares(cost, weight.sum()), atol=0.05)
    assert past[1] == pytest.approx(weight.sum())
    # What is not known counts for nothing.
    hidden = errors.copy()
    hidden[::2] = np.nan
    assert not np.allclose(shares_of(pasts(hidden)[-1]), found)
    exact = np.concatenate([errors, 0 * errors[..., :1]], axis=-1)
    assert shares_of(pasts(exact)[-1])[-1] == pytest.approx(1)
    np.testing.assert_allclose(shares_of(pasts(np.nan * errors)[-1]), 1 / 3)


def test_a_step_counts_once_it_came_by_all_forecasts_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slow form: every origin, step ahead and node that is known, one by one."""
    monkeypatch.setattr(module, "STEPS", 4.0)
    monkeypatch.setattr(module, "VALUES", 0)
    draw = np.random.default_rng(0)
    errors = draw.normal(size=(7, 3, 2, 2))
    errors[2, 1, 0] = np.nan
    found = pasts(errors, (np.eye(2), 2.0))
    assert len(found) == 8
    for now, past in enumerate(found):
        products, steps = np.eye(2) * 0.5 ** (now / 4), 2.0 * 0.5 ** (now / 4)
        for came in range(now):
            told = [
                errors[came - j, j, node]
                for j in range(3)
                for node in range(2)
                if came >= j and not np.isnan(errors[came - j, j, node]).any()
            ]
            weight = 0.5 ** ((now - 1 - came) / 4)
            products = products + weight * np.mean([np.outer(e, e) for e in told], axis=0)
            steps += weight
        np.testing.assert_allclose(past[0], products)
        assert past[1] == pytest.approx(steps)


def test_forecasts_from_many_origins_are_those_of_each_alone() -> None:
    """And none sees what comes after: the later steps are not there at all."""
    draw = np.random.default_rng(2)
    series = np.sin(np.arange(90)[:, None] / 4 + np.arange(5)) + 0.2 * draw.normal(size=(90, 5))
    series[70:] += 3  # so that shares move after the fit
    fast: dict[str, Any] = {"epochs": 3, "hidden_channels": 4, "random_state": 0, "horizon": 2}
    model = DIFFormerForecaster(**fast).fit(series[:60])
    origins = [58, 60, 61, 75, 90]
    together = model.predict_from(series, origins, 3)
    alone = [model.predict(3, series=series[:at]) for at in origins]
    np.testing.assert_allclose(together, alone, atol=1e-5)
    tested = DIFFormerForecaster(**fast).backtest(series, horizon=2, origins=20)
    again = DIFFormerForecaster(**fast).fit(series[: tested.origins[0]])
    one_by_one = [again.predict(2, series=series[:at]) for at in tested.origins]
    np.testing.assert_allclose(tested.predicted, one_by_one, atol=1e-5)


def test_a_forecast_is_mixed_with_a_linear_one_where_that_validates_better() -> None:
    """An AR(2) process: one epoch of a network knows nothing of it."""
    draw = np.random.default_rng(1)
    series = np.zeros((120, 3))
    for t in range(2, 120):
        series[t] = 1.6 * series[t - 1] - 0.9 * series[t - 2] + 0.1 * draw.normal(size=3)
    fast: dict[str, Any] = {"epochs": 1, "hidden_channels": 4, "random_state": 0}
    mixed = DIFFormerForecaster(**fast).fit(series[:100])
    assert mixed.shares_["AR"] + mixed.shares_["AR with neighbours"] > 0.8
    alone = DIFFormerForecaster(**fast, linear="none").fit(series[:100])
    assert alone.shares_ == {"DIFFormer": 1.0}
    error = [np.abs(one.predict_next(series)[-20:] - series[-20:]).mean() for one in (mixed, alone)]
    assert error[0] < 0.4 * error[1]  # the noise alone has 0.08
    next_one = mixed.predict_next(np.vstack([series, series[-1:]]))[-1]
    np.testing.assert_allclose(mixed.predict(1, series=series)[0], next_one, atol=1e-6)
    without = DIFFormerForecaster(**fast, validation_fraction=0.0).fit(series)
    assert without.shares_ == {"DIFFormer": 1.0}

"""Backtests: no look-ahead, errors as defined, intervals that cover as much as they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks import intervals
from difformer import DIFFormerForecaster
from difformer.estimators.backtest import Backtest

FAST: dict[str, Any] = {"epochs": 5, "patience": None, "random_state": 0, "hidden_channels": 4}

pytestmark = pytest.mark.usefixtures("without_classical")


def waves(steps: int = 80, nodes: int = 5) -> np.ndarray:
    noise = np.random.default_rng(0).normal(0, 0.1, (steps, nodes))
    level = 100 * np.arange(1, nodes + 1)
    return level + 10 * np.sin(np.arange(steps)[:, None] / 3 + np.arange(nodes)) + noise


@pytest.mark.parametrize("refit", [False, True])
def test_a_backtest_sees_nothing_from_its_origin_on(refit: bool) -> None:
    series = waves()
    model = DIFFormerForecaster(**FAST)
    before = model.backtest(series, origins=[50, 60], horizon=3, refit=refit)
    changed = series.copy()
    changed[60:] += 1000
    after = model.backtest(changed, origins=[50, 60], horizon=3, refit=refit)
    np.testing.assert_array_equal(after.predicted, before.predicted)
    assert not hasattr(model, "model_")


def test_a_backtest_goes_over_consecutive_origins_and_every_step() -> None:
    series, ring = waves(120), np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])
    model = DIFFormerForecaster(**FAST)
    tested = model.backtest(series, ring, horizon=3)
    assert tested.origins.tolist() == list(range(90, 118))  # the last quarter
    assert tested.predicted.shape == tested.actual.shape == (28, 3, 5)
    for o, origin in enumerate(tested.origins):
        np.testing.assert_array_equal(tested.actual[o], series[origin : origin + 3])
    told = tested.summary()
    simple = ["last value", "mean of lags", "AR", "AR with neighbours"]
    assert list(told["methods"]) == ["DIFFormer", *simple]
    assert told["methods"]["AR"]["mse"] < told["methods"]["last value"]["mse"] / 10  # pure waves
    error = tested.predicted - tested.actual
    assert told["mse"] == pytest.approx(np.square(error).mean())
    assert told["methods"]["DIFFormer"]["mse_by_step"] == pytest.approx(
        np.square(error).mean((0, 2)).tolist()
    )
    usual = np.abs(np.diff(series[:90], axis=0)).mean(0)
    assert told["mase"] == pytest.approx((np.abs(error) / usual).mean())
    assert tested.sizes() == pytest.approx(np.abs(error).mean((0, 1)))
    assert tested.reason == "AutoETS and AutoARIMA are left out above 0 nodes"
    last = tested.forecasts["last value"]
    np.testing.assert_array_equal(last[0], np.repeat(series[89:90], 3, axis=0))


def test_classical_forecasts_stand_beside_ours_where_statsforecast_is_installed() -> None:
    pytest.importorskip("statsforecast", reason="needs the extra forecast")
    draw = np.random.default_rng(0)
    series = 10 + np.cumsum(draw.normal(size=(70, 2)), axis=0)
    series[:, 1] = 7.0  # constant: it keeps its last value
    series[30, 0] = np.nan
    tested = DIFFormerForecaster(**FAST).backtest(series, horizon=3, origins=5)
    assert tested.reason is None
    told = tested.summary()["methods"]
    assert {"AutoETS", "AutoARIMA"} <= set(told)
    for name in ("AutoETS", "AutoARIMA"):
        forecast = tested.classical[name]
        assert forecast.shape == tested.predicted.shape
        assert (forecast[:, :, 1] == 7).all()
        # Nothing from its origin on is seen.
        changed = series.copy()
        changed[tested.origins[2] :] = 99.0
        other = replace(tested, values=changed).classical[name]
        np.testing.assert_array_equal(other[:3], forecast[:3])
    assert told["AutoETS"]["mse"] < 2 * told["last value"]["mse"]


def test_intervals_hold_as_much_as_they_say_on_series_of_noise() -> None:
    """Coverage of 90 % intervals over ten series whose errors do not change with time."""
    shares: list[float] = []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        series = draw.gamma(2, 5, 6) + draw.normal(size=(160, 6)) * draw.gamma(2, 1, 6)
        model = DIFFormerForecaster(**{**FAST, "level": "mean"})
        tested = model.backtest(series, horizon=2, origins=80)
        told = tested.coverage(0.9)
        shares.append(told["coverage"])
        assert 0 < told["pinball"] < tested.mae()
        assert (tested.quantiles(0.5) < tested.quantiles(0.9)).all()
        # Each node in its own size.
        assert tested.units() == pytest.approx(0.8 * series.std(0), rel=0.3)
    assert 0.87 <= np.mean(shares) <= 0.93


def drifting(seed: int, growth: float) -> Backtest:
    """Forecasts of zero for noise that grows by that factor from the middle of the origins on."""
    draw = np.random.default_rng(seed)
    grown = np.where(np.arange(160) < 120, 1.0, growth)[:, None]
    values = draw.normal(size=(160, 6)) * draw.gamma(2, 1, 6) * grown
    origins = np.arange(80, 159)
    return Backtest(origins, np.zeros((len(origins), 2, 6)), values, lags=2)


@pytest.mark.parametrize(("growth", "most"), [(0.3, 0.96), (1.0, 0.93), (3.0, 0.93)])
def test_intervals_follow_errors_that_grow_or_shrink(growth: float, most: float) -> None:
    """They grow faster than they shrink: nothing outside says less than everything outside."""
    shares = [drifting(seed, growth).coverage(0.9)["coverage"] for seed in range(10)]
    assert 0.87 <= np.mean(shares) <= most, shares
    # What the next forecast gets is right for the size that errors have come to.
    late = [drifting(seed, growth) for seed in range(10)]
    widths = np.array([one.quantiles(0.9)[0] * one.units() for one in late])
    errors = np.array([np.abs(one.values[130:]) for one in late])  # (seeds, steps, nodes)
    assert 0.85 <= (errors <= widths[:, None]).mean() <= 0.95


@pytest.mark.parametrize(("horizon", "nodes"), [(4, 1), (24, 1), (24, 5), (52, 3)])
def test_intervals_of_a_perfect_forecaster_are_right_at_long_horizons(
    horizon: int, nodes: int
) -> None:
    """An error is known many steps after its interval was made: the width must not run away."""
    found = [intervals.measure(seed, horizon, nodes, origins=120) for seed in range(10)]
    assert 0.86 <= np.mean([each["coverage"] for each in found]) <= 0.94, found
    assert np.mean([each["width"] for each in found]) <= 1.3, found
    assert max(each["width"] for each in found) <= 2.5, found


def test_coverage_leaves_out_intervals_that_have_too_few_errors() -> None:
    """Of 60 origins the first 52 see no error 52 steps ahead: they say nothing of the others."""
    tested, _ = intervals.walk(0, 52, 1, origins=60)
    assert np.isinf(tested.half_widths(0.9)[:52]).all()
    told = tested.coverage(0.9)
    assert 0 < told["pinball"] < np.inf
    inside = np.abs(tested.actual - tested.predicted) <= tested.half_widths(0.9)
    assert told["coverage"] == pytest.approx(inside[52:].mean())
    few, _ = intervals.walk(0, 52, 1, origins=20)
    assert np.isnan(list(few.coverage(0.9).values())).all()


def test_an_interval_knows_no_error_of_its_own_step_or_a_later_one() -> None:
    before = drifting(0, 1.0)
    values = before.values.copy()
    values[130:] *= 100
    after = replace(before, values=values)
    early = before.origins <= 130  # these see the steps before 130 alone
    np.testing.assert_array_equal(before.half_widths(0.9)[early], after.half_widths(0.9)[early])
    assert (after.half_widths(0.9)[-1] > before.half_widths(0.9)[-1]).all()

"""Shares of several forecasts by their errors so far."""

from typing import Any

import numpy as np
import pytest

from difformer import DIFFormerForecaster
from difformer.estimators import mix as module
from difformer.estimators.mix import Mix


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
    each = {str(i): truth + i * common + draw.normal(size=(50, 1, 1)) for i in range(3)}
    found = Mix.learn(each, truth).shares()
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) >= 0
    weight = 0.5 ** (np.arange(50)[::-1] / memory)
    errors = np.hstack([one[:, 0] - truth[:, 0] for one in each.values()])
    cost = (weight[:, None] * errors).T @ errors / weight.sum()
    np.testing.assert_allclose([*found.values()], slow_shares(cost, weight.sum()), atol=0.05)
    # What is not known counts for nothing.
    hidden = truth.copy()
    hidden[::2] = np.nan
    assert Mix.learn(each, hidden).shares() != found
    assert Mix.learn({**each, "right": truth}, truth).shares()["right"] == pytest.approx(1)
    assert Mix.learn(each, truth * np.nan).shares() == dict.fromkeys("012", pytest.approx(1 / 3))


def test_a_step_counts_once_it_came_by_all_forecasts_of_it() -> None:
    """The slow form: every origin, step ahead and node that is known, one by one."""
    draw = np.random.default_rng(0)
    errors = draw.normal(size=(7, 3, 2, 2))
    errors[2, 1, 0] = np.nan
    start = Mix(("a", "b"), np.eye(2), 2.0, 4.0)
    mixes = start.after(errors)
    assert len(mixes) == 8
    assert mixes[0] is start
    for now, found in enumerate(mixes):
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
        np.testing.assert_allclose(found.products, products)
        assert found.steps == pytest.approx(steps)


def test_a_forecast_that_turns_bad_loses_its_share_within_a_few_steps() -> None:
    draw = np.random.default_rng(0)
    errors = draw.normal(size=(60, 1, 20, 2)) * np.array([1.0, 2.0])
    errors[30:] *= np.array([6.0, 1.0])
    shares = [mix.shares()["first"] for mix in Mix(("first", "second"), *_nothing()).after(errors)]
    assert shares[30] > 0.7
    assert shares[36] < 0.3


def _nothing() -> tuple[np.ndarray, float, float]:
    return np.zeros((2, 2)), 0.0, 5.0


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
    with pytest.raises(ValueError, match=r"origins must lie in 4 \(lags\) to 90, got \[3\]"):
        model.predict_from(series, [3])


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

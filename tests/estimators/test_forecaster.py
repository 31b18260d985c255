"""The forecaster: units, missing values, graphs, no look-ahead, and every kind of bad input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from difformer import DIFFormerForecaster, Graph
from difformer.data.series import Series, fill
from difformer.estimators.backtest import Backtest

FAST: dict[str, Any] = {"epochs": 15, "patience": None, "random_state": 0, "hidden_channels": 4}


@pytest.fixture(autouse=True)
def without_classical(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """statsforecast takes seconds: only the tests of it wait for it."""
    if "classical" not in request.node.name:
        monkeypatch.setattr("difformer.estimators.backtest.MOST_NODES", 0)


def waves(steps: int = 80, nodes: int = 5, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.1, (steps, nodes))
    level = 100 * np.arange(1, nodes + 1)
    return level + 10 * np.sin(np.arange(steps)[:, None] / 3 + np.arange(nodes)) + noise


RING = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])


def test_forecasts_are_in_the_units_of_the_series_and_beat_the_last_value() -> None:
    series = waves(120)
    model = DIFFormerForecaster(epochs=200, lr=0.02, random_state=0).fit(series[:100])
    forecast = model.predict(1)
    assert forecast.shape == (1, 5)
    np.testing.assert_allclose(forecast[0], series[100], atol=6)
    result = model.backtest(series, RING, origins=5, horizon=2)
    summary = result.summary()
    assert summary["mse"] < summary["last_value_mse"]
    assert result.predicted.shape == (5, 2, 5)
    assert result.mse_by_step().shape == (2,)
    assert model.score(series) > 0.8


def test_lags_of_fit_go_before_the_parameter() -> None:
    model = DIFFormerForecaster(lags=3, **FAST).fit(waves(), lags=6)
    assert (model.lags, model.lags_) == (3, 6)
    assert model.predict_next(waves()).shape == (74, 5)


def test_it_follows_the_conventions_of_scikit_learn() -> None:
    model = DIFFormerForecaster(**FAST)
    same = clone(model).set_params(lags=5)
    assert same.get_params()["lags"] == 5
    with pytest.raises(NotFittedError):
        model.predict()
    assert model.fit(waves()) is model
    assert model.n_features_in_ == 5
    again = clone(model).fit(waves())
    np.testing.assert_array_equal(model.predict(4), again.predict(4))


@pytest.mark.parametrize("per_step", [False, True])
def test_the_future_moves_no_earlier_forecast(per_step: bool) -> None:
    series = waves()
    graph: Any = [RING[:, : 1 + t % 5] for t in range(80)] if per_step else RING
    model = DIFFormerForecaster(**FAST).fit(series[:40], graph[:40] if per_step else graph)
    before = model.predict_next(series, graph)
    changed = series.copy()
    changed[60:] = 1e4 * np.random.default_rng(1).normal(size=(20, 5))
    other = [*graph[:60], *([RING[:, :0]] * 20)] if per_step else graph
    after = model.predict_next(changed, other)
    last = 60 - 4  # row t is for step t + lags, and step 60 itself is forecast from steps before
    np.testing.assert_array_equal(after[: last + 1], before[: last + 1])
    assert not np.allclose(after[last + 1 :], before[last + 1 :])


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


def test_missing_values_are_the_last_known_ones_and_never_targets() -> None:
    values = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan], [3.0, 4.0]])
    filled = fill(values, np.array([9.0, 8.0]))
    np.testing.assert_array_equal(filled, [[9, 1], [2, 1], [2, 1], [3, 4]])
    series = waves()
    series[np.random.default_rng(0).random(series.shape) < 0.2] = np.nan
    model = DIFFormerForecaster(**FAST).fit(series)
    assert np.isfinite(model.predict(3)).all()
    assert np.isfinite(model.score(series))
    assert np.isfinite(model.backtest(series, origins=3).mse())


def test_a_data_frame_gives_a_data_frame_that_goes_on() -> None:
    pd = pytest.importorskip("pandas")
    index = pd.date_range("2020-01-01", periods=80, freq="D")
    frame = pd.DataFrame(waves(), index=index, columns=list("abcde"))
    edges = pd.DataFrame({"source": list("abcd"), "target": list("bcde"), "weight": [1, 2, 3, 4]})
    model = DIFFormerForecaster(**FAST).fit(frame, edges)
    forecast = model.predict(2)
    assert list(forecast.columns) == list("abcde")
    assert forecast.index[0] == index[-1] + pd.Timedelta(days=1)
    with pytest.raises(ValueError, match="source 'z' is not an id"):
        model.fit(frame, edges.replace("a", "z"))
    with pytest.raises(ValueError, match="columns of fit"):
        model.predict(1, series=frame[list("edcba")])


@pytest.mark.parametrize(
    "graph",
    [
        RING,
        RING.T,
        torch.from_numpy(RING),
        (RING, np.ones(5)),
        sparse.coo_matrix((np.ones(5), tuple(RING)), shape=(5, 5)),
        Graph.from_edges(torch.from_numpy(RING), 5),
        [RING] * 80,
        RING.tolist(),
    ],
)
def test_a_graph_may_come_in_any_common_form(graph: Any) -> None:
    plain = DIFFormerForecaster(**FAST).fit(waves(), RING).predict(1)
    np.testing.assert_allclose(DIFFormerForecaster(**FAST).fit(waves(), graph).predict(1), plain)


def test_a_graph_matters() -> None:
    alone = DIFFormerForecaster(**FAST).fit(waves()).predict(1)
    joined = DIFFormerForecaster(**FAST).fit(waves(), RING).predict(1)
    assert not np.allclose(alone, joined)


def constant() -> np.ndarray:
    series = waves()
    series[:, 2] = 7
    return series


def unknown() -> np.ndarray:
    series = waves()
    series[:, 1] = np.nan
    return series


@pytest.mark.parametrize(
    ("series", "graph", "options", "message"),
    [
        ([[1, 2], [3]], None, {}, r"as many nodes at every step, got 2 \(step 0\) and 1"),
        ({"a": [1, 2, 3], "b": [1, 2]}, None, {}, r"equal length, got 3 \(a\) and 2 \(b\)"),
        (np.full((40, 3), 7.0), None, {}, "no node varies enough to be learned from"),
        (np.full((40, 3), np.nan), None, {}, "series must have known values, all are missing"),
        (waves(), None, {"transform": "cube"}, "transform must be one of auto, none, sqrt, log"),
        (waves() - 99, None, {"transform": "log"}, "transform must be none for values below 0"),
        (waves(6), None, {"lags": 6}, "lags must be at least two fewer than the 6 steps"),
        (waves(), None, {"lags": 0}, "lags must be a whole number of at least 1, got 0"),
        (waves()[:, 0], None, {}, r"series must be \(steps, nodes\), got shape \(80,\)"),
        (waves() * np.inf, None, {}, "node 0 is infinite at step 0"),
        ([["a", "b"], ["c", "d"]], None, {}, "series must hold numbers"),
        (waves(), [[0, 5], [1, 2]], {}, "nodes 0 to 4, got 5"),
        (waves(), [RING] * 7, {}, "one for each of 80 steps, got 7"),
        (
            waves(),
            sparse.eye(6).tocoo(),
            {},
            r"graph must be \(5, 5\), one row and one column per node",
        ),
        (waves(), (RING, np.ones(3)), {}, "a weight for each of 5 edges, got 3"),
        (waves(), (RING, -np.ones(5)), {}, "finite weights, 0 or more, got -1.0 for edge 0"),
        (waves(), RING / 2, {}, r"\(2, e\) row numbers, got float64"),
        (waves(), None, {"recipe": "x"}, "recipe must be one of"),
        (waves(), None, {"options": {"kernel": "simple"}}, "options must name model options"),
        (waves(), None, {"validation_fraction": 1.0}, r"must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_input_is_named(series: Any, graph: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DIFFormerForecaster(**{**FAST, **options}).fit(series, graph)


def test_time_stamps_must_go_up() -> None:
    values = waves(3)
    with pytest.raises(ValueError, match="sorted by time, step 2"):
        Series(values, stamps=(1, 3, 2))
    with pytest.raises(ValueError, match="one row per time, 2 comes twice"):
        Series(values, stamps=(1, 2, 2))
    with pytest.raises(ValueError, match="comparable times"):
        Series(values, stamps=(1, "a", 2))
    with pytest.raises(ValueError, match="each node once, 'a' comes twice"):
        Series(values, names=("a", "b", "a", "c", "d"))


def test_requests_for_forecasts_are_checked() -> None:
    model = DIFFormerForecaster(**FAST).fit(waves())
    for steps in (0, 1.5, True):
        with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
            model.predict(steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must have the 5 nodes of fit, got 4"):
        model.predict(1, series=waves(nodes=4))
    with pytest.raises(ValueError, match="at least 4 steps, got 3"):
        model.predict(1, series=waves(3))
    with pytest.raises(ValueError, match="origins must lie in 6 to 79"):
        model.backtest(waves(), origins=[5])
    with pytest.raises(ValueError, match="horizon must be"):
        model.backtest(waves(), horizon=0)
    with pytest.raises(ValueError, match=r"horizon must leave lags \+ 2 \(6\)"):
        model.backtest(waves(), horizon=1000)
    late = waves()
    late[:50, 0] = 0.0
    late[:50] = 0.0
    with pytest.raises(ValueError, match="the backtest sees 40 steps, and series: no node varies"):
        model.backtest(late, origins=[40])
    with pytest.raises(ValueError, match="series must map names to lists"):
        model.fit({"a": 3.0})


def counts(steps: int = 120, nodes: int = 6, seed: int = 0) -> np.ndarray:
    """Weekly counts that grow and fall together; the last two nodes are constant and sparse."""
    draw = np.random.default_rng(seed)
    wave = 2 + 1.5 * np.sin(np.arange(steps)[:, None] / 8 + np.arange(nodes) / 3)
    values = draw.poisson(np.exp(wave)).astype(float)
    values[:, -1] = 0
    values[:, -2] = 0
    values[steps // 3, -2] = 3
    return values


def test_nodes_that_cannot_be_learned_from_are_named_and_keep_their_last_value() -> None:
    series = {f"n{j}": column for j, column in enumerate(counts().T)}
    model = DIFFormerForecaster(**FAST).fit(series)
    assert model.naive_nodes_ == ("n4", "n5")
    ahead = model.predict(3)
    assert (ahead[:, 4:] == 0).all()
    assert np.isfinite(ahead).all()
    alone = DIFFormerForecaster(**FAST).fit({k: series[k] for k in ("n0", "n1", "n2", "n3")})
    assert alone.naive_nodes_ == ()
    newer = counts()
    newer[-1, 5] = 8.0
    assert (model.predict(2, series=dict(zip(series, newer.T, strict=True)))[:, 5] == 8).all()
    hardly = counts()
    hardly[:, 0] = np.nan
    hardly[3, 0] = 5.0
    found = DIFFormerForecaster(**FAST).fit(hardly)
    assert found.naive_nodes_ == ("0", "4", "5")
    assert (found.predict(2)[:, 0] == 5).all()
    one_step = found.predict_next(hardly)
    assert np.isnan(one_step[:0, 0]).all()
    assert (one_step[3:, 0] == 5).all()


def test_a_transform_is_undone_and_chosen_for_counts_by_validation() -> None:
    values = counts()
    for name in ("sqrt", "log"):
        model = DIFFormerForecaster(**FAST, transform=name).fit(values)
        assert (model.predict(4) >= 0).all()
        np.testing.assert_allclose(
            model._nodes.back(model._nodes.forward(values))[:, :4], values[:, :4], atol=1e-9
        )
    auto = DIFFormerForecaster(**FAST, transform="auto").fit(values)
    best = min(("none", "sqrt", "log"), key=auto.tried_.__getitem__)
    assert auto.transform_ == best
    level = {best: "mean", "last" if best == "none" else f"{best}-last": "last"}
    assert set(auto.tried_) == {"none", "sqrt", "log", *level}
    assert auto.level_ == level[min(level, key=auto.tried_.__getitem__)]
    same = DIFFormerForecaster(**FAST, transform=auto.transform_, level=auto.level_).fit(values)
    np.testing.assert_array_equal(auto.predict(3), same.predict(3))
    waved = DIFFormerForecaster(**FAST, transform="auto").fit(waves())
    assert waved.transform_ == "none"  # these are no counts


def test_a_backtest_goes_over_consecutive_origins_and_every_step() -> None:
    series = waves(120)
    model = DIFFormerForecaster(**FAST)
    tested = model.backtest(series, RING, horizon=3)
    assert tested.origins.tolist() == list(range(90, 118))  # the last quarter
    assert tested.predicted.shape == tested.actual.shape == (28, 3, 5)
    for o, origin in enumerate(tested.origins):
        np.testing.assert_array_equal(tested.actual[o], series[origin : origin + 3])
    told = tested.summary()
    assert list(told["methods"]) == [
        "DIFFormer",
        "last value",
        "mean of lags",
        "AR",
        "AR with neighbours",
    ]
    assert told["methods"]["AR"]["mse"] < told["methods"]["last value"]["mse"] / 10  # pure waves
    error = tested.predicted - tested.actual
    assert told["mse"] == pytest.approx(np.square(error).mean())
    assert told["methods"]["DIFFormer"]["mse_by_step"] == pytest.approx(
        np.square(error).mean((0, 2)).tolist()
    )
    usual = np.abs(np.diff(series[:90], axis=0)).mean(0)
    assert told["mase"] == pytest.approx((np.abs(error) / usual).mean())
    assert tested.mae_by_node() == pytest.approx(np.abs(error).mean((0, 1)))
    last = tested.forecasts["last value"]
    np.testing.assert_array_equal(last[0], np.repeat(series[89:90], 3, axis=0))


def test_the_seasonal_naive_forecast_repeats_the_last_season() -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2020-01-01", periods=70, freq="D")
    week = np.tile(np.arange(7.0), 10)[:, None] + np.random.default_rng(0).normal(0, 0.1, (70, 2))
    frame = pandas.DataFrame(week, index=days, columns=["a", "b"])
    tested = DIFFormerForecaster(**FAST).backtest(frame, horizon=9, origins=5)
    assert tested.season == 7
    found = tested.forecasts["seasonal naive"]
    origin = tested.origins[0]
    np.testing.assert_array_equal(found[0, :7], week[origin - 7 : origin])
    np.testing.assert_array_equal(found[0, 7:], week[origin - 7 : origin - 5])


def test_intervals_of_forecasts_hold_as_many_values_as_they_say() -> None:
    """Noise around waves, more of it node by node: later origins, by the errors of the earlier."""
    shares: list[float] = []
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(0, 10, (160, 5)) * (1 + np.arange(5))
        tested = DIFFormerForecaster(**FAST).backtest(waves(160) + noise, horizon=2, origins=60)
        told = tested.coverage(0.9)
        shares.append(told["coverage"])
        assert 0 < told["pinball"] < tested.mae()
        assert (tested.quantiles(0.5) < tested.quantiles(0.9)).all()
        # Each node in its own size: the noisiest has the widest interval.
        assert tested.sizes()[4] > 2 * tested.sizes()[0]
    assert 0.85 < np.mean(shares) < 0.95, shares


def daily(steps: int = 160, ahead: int = 5, nodes: int = 3) -> tuple[Any, Any, np.ndarray]:
    """A series with a week and holidays, what is known of it, and what came after it."""
    pandas = pytest.importorskip("pandas", reason="data frames need pandas")
    draw = np.random.default_rng(0)
    days = pandas.date_range("2021-03-01", periods=steps + ahead, freq="D")
    week = np.array([0, 1, 3, 2, 8, 9, -4])[np.arange(steps + ahead) % 7]
    holiday = (draw.random(steps + ahead) < 0.15).astype(float)
    noise = draw.normal(0, 0.5, (steps + ahead, nodes))
    values = 20 + week[:, None] + 15 * holiday[:, None] + noise
    frame = pandas.DataFrame(values[:steps], index=days[:steps], columns=list("abc"))
    return frame, pandas.DataFrame({"holiday": holiday}, index=days), values[steps:]


def test_the_calendar_and_what_is_known_ahead_are_features() -> None:
    frame, known, later = daily()
    settings = {**FAST, "epochs": 150, "hidden_channels": 16, "lr": 0.02}
    errors = {}
    for name, options, given in (
        ("plain", {"calendar": "none"}, None),
        ("known", {"calendar": "none"}, known),
        ("both", {"calendar": "auto"}, known),
    ):
        model = DIFFormerForecaster(**settings, **options).fit(frame, known=given)
        assert model.calendar_ == ("cycles" if name == "both" else "none")
        errors[name] = float(np.abs(model.predict(5).to_numpy() - later).mean())
        tested = model.backtest(frame, known=given, horizon=5, origins=10)
        errors[f"{name} tested"] = tested.mae()
    for one in ("", " tested"):
        assert errors[f"both{one}"] < 0.5 * errors[f"known{one}"] < 0.4 * errors[f"plain{one}"]
    # By the index of the frame, whatever its order; for newer values with their own.
    shuffled = known.sample(frac=1, random_state=0)
    again = DIFFormerForecaster(**settings).fit(frame, known=shuffled)
    np.testing.assert_array_equal(again.predict(5), model.predict(5))
    part, ahead = frame[:100], known[:103]
    assert again.predict(3, series=part, known=ahead).index[-1] == ahead.index[-1]
    for bad, reason in (
        (None, "known must have the 1 columns of fit"),
        (known[:101], "known must have rows for the 3 steps ahead, it has 1"),
        (known[5:], "known must have a row for every step"),
        (known.drop(known.index[101]), "known must go on with"),
    ):
        with pytest.raises(ValueError, match=reason):
            again.predict(3, series=part, known=bad)


@pytest.mark.parametrize(("horizon", "same"), [(1, 3), (2, 2), (3, 3)])
def test_what_is_known_of_later_steps_moves_only_what_is_learned_with_them(
    horizon: int, same: int
) -> None:
    frame, known, _ = daily()
    model = DIFFormerForecaster(**FAST, calendar="cycles", level="mean", horizon=horizon)
    before = model.fit(frame, known=known).predict(5)
    changed = known.copy()
    changed.iloc[-2:] = 99.0  # of the last two steps ahead
    after = model.predict(5, series=frame, known=changed)
    np.testing.assert_array_equal(after[:same], before[:same])
    assert not np.allclose(after[same:], before[same:])


def test_steps_learned_at_once_are_the_same_however_many_are_asked_for() -> None:
    model = DIFFormerForecaster(**FAST, horizon=3).fit(waves())
    far = model.predict(8)
    np.testing.assert_array_equal(model.predict(2), far[:2])
    np.testing.assert_allclose(model.predict_next(np.vstack([waves(), far[:1]]))[-1], far[0])
    # Later ones come from earlier ones, here without a mix.
    alone = DIFFormerForecaster(**FAST, horizon=3, linear="none").fit(waves())
    far = alone.predict(6)
    again = alone.predict(3, series=np.vstack([waves(), far[:3]]))
    np.testing.assert_allclose(again, far[3:], rtol=1e-5)


def test_what_validates_is_not_learned_from() -> None:
    """The targets of training snapshots end where validation begins."""
    model = DIFFormerForecaster(**FAST, horizon=3).fit(waves())
    data, windows = model.series_, model._network.windows
    y = windows.snapshots(data, (), train=60).y.reshape(76, 5, 3)
    assert not y[:58].isnan().any()
    assert y[58:60].isnan().any(1).tolist() == [[False, False, True], [False, True, True]]
    assert not y[60:73].isnan().any()  # validation has all that the series has
    whole = windows.snapshots(data, ()).y.reshape(76, 5, 3)
    assert torch.equal(whole.isnan().any(1).sum(1), torch.tensor([0] * 74 + [1, 2]))


@pytest.mark.parametrize("seed", range(3))
def test_series_that_drift_are_told_from_their_last_value(seed: int) -> None:
    draw = np.random.default_rng(seed)
    walks = np.cumsum(draw.normal(size=(150, 6)), axis=0)
    settings: dict[str, Any] = {**FAST, "epochs": 60}
    tested = DIFFormerForecaster(**settings).backtest(walks, horizon=4, origins=30)
    ours, last = tested.errors("DIFFormer")["mse"], tested.errors("last value")["mse"]
    assert ours < 1.1 * last
    assert DIFFormerForecaster(**settings).fit(walks).level_ == "last"
    noise = draw.normal(size=(150, 6))
    assert DIFFormerForecaster(**settings).fit(noise).level_ == "mean"


def test_a_calendar_needs_times_that_go_through_a_cycle_twice() -> None:
    with pytest.raises(ValueError, match="calendar must be none: the times go through no cycle"):
        DIFFormerForecaster(**FAST, calendar="cycles").fit(waves())
    with pytest.raises(ValueError, match="calendar must be one of auto, none, cycles, got 'week'"):
        DIFFormerForecaster(**FAST, calendar="week").fit(waves())
    frame, _, _ = daily(steps=20)
    assert DIFFormerForecaster(**FAST).fit(frame[:13]).calendar_ == "none"


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


def test_the_reason_says_why_there_are_no_classical_forecasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = DIFFormerForecaster(**FAST).backtest(waves(), horizon=2, origins=3)
    monkeypatch.setattr("difformer.estimators.backtest.MOST_NODES", 4)
    assert tested.reason == "AutoETS and AutoARIMA are left out above 4 nodes"
    monkeypatch.setattr("difformer.estimators.backtest.find_spec", lambda name: None)
    assert tested.reason == "AutoETS and AutoARIMA need: pip install 'difformer[forecast]'"
    assert "AutoETS" not in tested.summary()["methods"]


def test_intervals_hold_as_much_as_they_say_on_series_of_noise() -> None:
    """Coverage of 90 % intervals over ten series whose errors do not change with time."""
    shares = []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        series = draw.gamma(2, 5, 6) + draw.normal(size=(160, 6)) * draw.gamma(2, 1, 6)
        model = DIFFormerForecaster(**{**FAST, "epochs": 5})
        shares.append(model.backtest(series, horizon=2, origins=80).coverage(0.9)["coverage"])
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
    widths = np.array([one.quantiles(0.9)[0] * one.sizes() for one in late])
    errors = np.array([np.abs(one.values[130:]) for one in late])  # (seeds, steps, nodes)
    assert 0.85 <= (errors <= widths[:, None]).mean() <= 0.95


def test_an_interval_knows_no_error_of_its_own_step_or_a_later_one() -> None:
    before = drifting(0, 1.0)
    values = before.values.copy()
    values[130:] *= 100
    after = replace(before, values=values)
    early = before.origins <= 130  # these see the steps before 130 alone
    np.testing.assert_array_equal(before._rolled(0.9)[0][early], after._rolled(0.9)[0][early])
    assert (after._rolled(0.9)[0][-1] > before._rolled(0.9)[0][-1]).all()

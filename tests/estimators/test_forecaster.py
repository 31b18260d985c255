"""The forecaster: units, missing values, graphs, no look-ahead, and every kind of bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from difformer import DIFFormerForecaster
from difformer.data.series import Series, fill

FAST: dict[str, Any] = {"epochs": 5, "patience": None, "random_state": 0, "hidden_channels": 4}

pytestmark = pytest.mark.usefixtures("without_classical")


def waves(steps: int = 80, nodes: int = 5, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 0.1, (steps, nodes))
    level = 100 * np.arange(1, nodes + 1)
    return level + 10 * np.sin(np.arange(steps)[:, None] / 3 + np.arange(nodes)) + noise


RING = np.array([[0, 1, 2, 3, 4], [1, 2, 3, 4, 0]])


def test_forecasts_are_in_the_units_of_the_series_and_beat_the_last_value() -> None:
    series = waves(120)
    model = DIFFormerForecaster(epochs=60, lr=0.03, random_state=0).fit(series[:100])
    forecast = model.predict(1)
    assert forecast.shape == (1, 5)
    np.testing.assert_allclose(forecast[0], series[100], atol=6)
    result = model.backtest(series, RING, origins=5, horizon=2)
    summary = result.summary()
    assert summary["mse"] < summary["last_value_mse"]
    assert result.predicted.shape == (5, 2, 5)
    assert result.mse_by_step().shape == (2,)
    assert model.score(series) > 0.8
    with pytest.raises(NotFittedError):
        clone(model).predict()
    longer = clone(model).set_params(epochs=1).fit(series, lags=6)  # goes before the parameter
    assert (longer.lags, longer.lags_, longer.n_features_in_) == (4, 6, 5)
    assert longer.predict_next(series).shape == (114, 5)


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
    model = DIFFormerForecaster(**FAST, calendar="none").fit(frame, edges)
    forecast = model.predict(2)
    assert list(forecast.columns) == list("abcde")
    assert forecast.index[0] == index[-1] + pd.Timedelta(days=1)
    with pytest.raises(ValueError, match="source 'z' is not an id"):
        model.fit(frame, edges.replace("a", "z"))
    with pytest.raises(ValueError, match="columns of fit"):
        model.predict(1, series=frame[list("edcba")])
    newer = model.predict(2, series=waves())  # an array gives an array, also after a data frame
    np.testing.assert_array_equal(newer, forecast.to_numpy())
    assert isinstance(newer, np.ndarray)
    again = model.fit(waves())  # an array has no names, also after a data frame
    assert not hasattr(again, "feature_names_in_")
    assert again.predict(1, series=frame[list("edcba")]).shape == (1, 5)


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
        (waves()[:, 0], None, {}, r"series must be \(steps, nodes\), got shape \(80,\)"),
        (waves() * np.inf, None, {}, "node 0 is infinite at step 0"),
        ([["a", "b"], ["c", "d"]], None, {}, "series must hold numbers"),
        (waves(), [[0, 5], [1, 2]], {}, "nodes 0 to 4, got 5"),
        (waves(), [RING] * 7, {}, "one for each of 80 steps, got 7"),
        (waves(), None, {"recipe": "x"}, "recipe must be one of"),
        (
            waves(),
            None,
            {"calendar": "cycles"},
            "calendar must be none: the times contain no cycle",
        ),
        (waves(), None, {"calendar": "week"}, "calendar must be one of auto, none, cycles, got"),
        (waves(), None, {"options": {"kernel": "simple"}}, "options must name model options"),
        (waves(), None, {"validation_fraction": 1.0}, r"must lie in \[0, 1\), got 1.0"),
    ],
)
def test_bad_input_is_named(series: Any, graph: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DIFFormerForecaster(**{**FAST, **options}).fit(series, graph)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stamps": (1, 3, 2)}, "sorted by time, step 2"),
        ({"stamps": (1, 2, 2)}, "one row per time, 2 comes twice"),
        ({"stamps": (1, "a", 2)}, "comparable times"),
        ({"names": tuple("abacd")}, "each node once, 'a' comes twice"),
    ],
)
def test_bad_names_and_times_are_named(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Series(waves(3), **given)


def test_a_graph_matters_and_may_be_one_for_all_steps_or_each() -> None:
    joined, each, nested, alone = (
        DIFFormerForecaster(**FAST).fit(waves(), graph).predict(1)
        for graph in (RING, [RING] * 80, RING.tolist(), None)
    )
    np.testing.assert_allclose(each, joined)
    np.testing.assert_allclose(nested, joined)
    assert not np.allclose(alone, joined)


def test_requests_for_forecasts_are_checked() -> None:
    model = DIFFormerForecaster(**FAST).fit(waves())
    late = waves()
    late[:50] = 0.0
    requests: list[tuple[Any, str]] = [
        (lambda: model.predict(1.5), "steps must be a whole number of at least 1"),
        (lambda: model.predict(True), "steps must be a whole number of at least 1"),
        (lambda: model.predict(1, series=waves(nodes=4)), "must have the 5 nodes of fit, got 4"),
        (lambda: model.predict(1, series=waves(3)), "at least 4 steps, got 3"),
        (lambda: model.predict_from(waves(), [3]), r"must lie in 4 \(lags\) to 80, got \[3\]"),
        (lambda: model.backtest(waves(), origins=[5]), "origins must lie in 6 to 79"),
        (lambda: model.backtest(waves(), origins=0), "origins must be at least 1, got 0"),
        (lambda: model.backtest(waves(), horizon=0), "horizon must be"),
        (lambda: model.backtest(waves(), horizon=1000), r"horizon must leave lags \+ 2 \(6\)"),
        (lambda: model.backtest(late, origins=[40]), "sees 40 steps, and series: no node varies"),
        (lambda: model.fit({"a": 3.0}), "series must map names to lists"),
    ]
    for ask, message in requests:
        with pytest.raises(ValueError, match=message):
            ask()


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
    newer = counts()
    newer[-1, 5] = 8.0
    assert (model.predict(2, series=dict(zip(series, newer.T, strict=True)))[:, 5] == 8).all()
    hardly = counts()
    hardly[:, 0] = np.nan
    hardly[3, 0] = 5.0
    found = DIFFormerForecaster(**FAST).fit(hardly)
    assert found.naive_nodes_ == ("0", "4", "5")
    assert (found.predict(2)[:, 0] == 5).all()
    assert (found.predict_next(hardly)[3:, 0] == 5).all()


def test_a_transform_is_undone_and_chosen_for_counts_by_validation() -> None:
    values = counts()
    for name in ("sqrt", "log"):
        model = DIFFormerForecaster(**FAST, transform=name).fit(values)
        assert (model.predict(4) >= 0).all()
        nodes = model._network.windows
        back = nodes.back(nodes.forward(values))
        np.testing.assert_allclose(back[:, :4], values[:, :4], atol=1e-9)
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
    assert tested.season == 7
    assert DIFFormerForecaster(**FAST).fit(frame[:13]).calendar_ == "none"  # no week twice
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
    options: dict[str, Any] = {"calendar": "cycles", "level": "mean", "linear": "none"}
    model = DIFFormerForecaster(**FAST, **options, horizon=horizon)
    before = model.fit(frame, known=known).predict(5)
    changed = known.copy()
    changed.iloc[-2:] = 99.0  # of the last two steps ahead
    after = model.predict(5, series=frame, known=changed)
    np.testing.assert_array_equal(after[:same], before[:same])
    assert not np.allclose(after[same:], before[same:])


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


def test_series_that_drift_are_predicted_relative_to_their_last_value() -> None:
    draw = np.random.default_rng(0)
    walks = np.cumsum(draw.normal(size=(150, 6)), axis=0)
    settings: dict[str, Any] = {**FAST, "epochs": 40}
    tested = DIFFormerForecaster(**settings).backtest(walks, horizon=4, origins=30)
    ours, last = tested.errors("DIFFormer")["mse"], tested.errors("last value")["mse"]
    assert ours < 1.1 * last
    assert DIFFormerForecaster(**settings).fit(walks).level_ == "last"
    noise = draw.normal(size=(150, 6))
    assert DIFFormerForecaster(**settings).fit(noise).level_ == "mean"

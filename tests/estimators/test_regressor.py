"""The regressor: one target or several, some unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from difformer import DIFFormerRegressor

QUICK: dict[str, Any] = {"epochs": 80, "hidden_channels": 16, "random_state": 0}
Array = NDArray[Any]


@pytest.fixture(scope="module")
def plane() -> tuple[Array, Array]:
    X = np.random.default_rng(0).normal(size=(200, 3))
    return X, 1000 + 50 * (X[:, 0] - X[:, 1])


@pytest.mark.parametrize("graph", [None, "knn"])
def test_unknown_values_are_predicted_in_their_own_units(
    plane: tuple[Array, Array], graph: str | None
) -> None:
    X, y = plane
    few = np.where(np.arange(200) < 100, y, np.nan)
    model = DIFFormerRegressor(graph=graph, **QUICK).fit(X, few)
    assert np.corrcoef(model.transduction_[100:], y[100:])[0, 1] > 0.8
    assert abs(model.transduction_.mean() - 1000) < 30
    assert model.score(X[100:], y[100:]) > 0.4


def test_several_targets_with_their_own_gaps(plane: tuple[Array, Array], tmp_path: Path) -> None:
    X, y = plane
    both = np.stack([y, -y], axis=1)
    both[50:, 0] = np.nan
    both[:100, 1] = np.nan
    model = DIFFormerRegressor(**QUICK).fit(X, both)
    assert model.predict(X).shape == (200, 2)
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerRegressor.load(tmp_path / "m.safetensors")
    assert np.array_equal(again.predict(X + 1), model.predict(X + 1))


def test_minus_one_for_most_rows_is_told_of(plane: tuple[Array, Array]) -> None:
    X, y = plane
    marked = np.where(np.arange(200) < 20, y, -1)
    quick = DIFFormerRegressor(**{**QUICK, "epochs": 2})
    told = r"^y has -1 in 90 % of the rows; for a regressor -1 is a value, use NaN for unlabelled"
    with pytest.warns(UserWarning, match=told):
        quick.fit(X, marked)
    quick.fit(X, np.where(marked == -1, np.nan, y))  # no warning, which would be an error
    quick.fit(X, np.where(np.arange(200) < 60, 1.0, -1.0))  # two values


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.full(200, np.nan), "at least one labelled row"),
        (np.full(200, np.inf), "infinity in row 0"),
        (np.array(["a"] * 200, object), "must hold numbers"),
        (np.stack([np.ones(200), np.full(200, np.nan)], 1), "column 1 of y"),
    ],
)
def test_bad_targets_are_named(plane: tuple[Array, Array], y: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DIFFormerRegressor(**QUICK).fit(plane[0], y)

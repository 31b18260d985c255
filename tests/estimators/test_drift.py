"""The estimators warn of new rows unlike all rows of fit, and align frames by column name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.errors import DriftWarning

pandas = pytest.importorskip("pandas", reason="data frames need pandas")

QUICK: dict[str, Any] = {"epochs": 3, "hidden_channels": 8, "recipe": "stable", "random_state": 0}


def people(n: int, seed: int) -> Any:
    draw = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "age": draw.integers(17, 91, n),
            "city": draw.choice(["Rome", "Oslo", "Bonn"], n),
            "height": draw.normal(170, 10, n),
        }
    )


@pytest.fixture(scope="module")
def model() -> DIFFormerClassifier:
    frame = people(200, 0)
    return DIFFormerClassifier(**QUICK).fit(frame, (frame["age"] > 50).to_numpy().astype(int))


@pytest.mark.parametrize("loaded", [False, True])
def test_predict_warns_of_cells_unlike_all_of_fit(
    model: DIFFormerClassifier, loaded: bool, tmp_path: Path
) -> None:
    if loaded:
        model.save(tmp_path / "m.safetensors")
        model = DIFFormerClassifier.load(tmp_path / "m.safetensors")
    new = people(20, 1)
    model.predict(new)  # rows like those of fit: no warning, which would be an error here
    new.loc[3, "age"] = 500
    new.loc[5, "city"] = "Paris"
    told = (
        "2 of 20 rows.*row 5, column 'city': 'Paris'.*row 3, column 'age': 500, in training 17 to"
    )
    with pytest.warns(DriftWarning, match=told):
        model.predict(new)
    with pytest.warns(DriftWarning, match="row 'p5', column 'city'"):
        model.transform(new.set_axis([f"p{i}" for i in range(20)]))


def test_a_column_of_a_frame_that_is_mostly_missing_is_named(model: DIFFormerClassifier) -> None:
    new = people(60, 2)
    new.loc[:40, "height"] = np.nan
    with pytest.warns(
        DriftWarning, match="column 'height' is empty in 68 % of the rows, 0 % in training"
    ):
        model.predict(new)


def test_arrays_are_judged_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 3))
    model = DIFFormerRegressor(**QUICK).fit(X, X[:, 0])
    new = draw.normal(size=(50, 3))
    model.predict(new)
    new[7, 1] = 1000
    new[:30, 2] = np.nan
    with pytest.warns(DriftWarning, match="row 7, column '1': 1000.*column '2' is empty in 60 %"):
        model.predict(new)
    with pytest.raises(ValueError, match="X has 2 features, but .* is expecting 3"):
        model.predict(new[:, :2])


def test_the_columns_of_a_frame_are_taken_by_name_in_any_order(model: DIFFormerClassifier) -> None:
    new = people(20, 3)
    wanted = model.predict_proba(new)
    assert np.array_equal(model.predict_proba(new[["height", "city", "age"]]), wanted)
    with pytest.raises(ValueError, match="now missing:\n- age"):
        model.predict(new[["height", "city"]])
    with pytest.raises(ValueError, match="unseen at fit time:\n- more"):
        model.predict(new.assign(more=1))


def test_a_frame_of_plain_numbers_in_another_order_is_aligned_too() -> None:
    draw = np.random.default_rng(0)
    X = pandas.DataFrame(draw.normal(size=(60, 3)), columns=[*"abc"])
    model = DIFFormerRegressor(**QUICK).fit(X, X["a"])
    assert np.array_equal(model.predict(X[:9][[*"cab"]]), model.predict(X[:9]))

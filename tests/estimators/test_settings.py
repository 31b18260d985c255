"""Parameters: one that the chosen recipe does not use is refused, not ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.estimators.settings import FitSettings

Array = NDArray[Any]
Iris = tuple[Array, Array]
QUICK: dict[str, Any] = {"epochs": 4, "hidden_channels": 8, "random_state": 0}
OF_ONE_FORM: dict[str, Any] = {
    "lr": 1e-9,
    "weight_decay": 10,
    "consistency": 1,
    "early_stopping": True,
    "patience": 3,
    "pick_by": "accuracy",
    "validation_fraction": 0.4,
}


@pytest.mark.parametrize("name", OF_ONE_FORM)
def test_the_default_recipe_refuses_what_is_set_for_each_form(
    name: str, iris: Iris, few: Array
) -> None:
    model = DIFFormerClassifier(**{name: OF_ONE_FORM[name]}, **QUICK)
    with pytest.raises(ValueError, match=f'^{name} must be left at .*"auto".* stable, alone'):
        model.fit(iris[0], few)


@pytest.mark.parametrize("form", [{"recipe": "alone"}, {"kernel": "simple"}])
def test_one_form_refuses_what_only_the_search_or_held_out_rows_use(
    form: dict[str, Any], iris: Iris, few: Array
) -> None:
    for name, value, used_by in (
        ("time_budget", 9.0, 'recipe "auto"'),
        ("patience", 3, "early_stopping=True"),
        ("pick_by", "accuracy", "early_stopping=True"),
        ("validation_fraction", 0.4, "early_stopping=True"),
    ):
        model = DIFFormerClassifier(**{name: value}, **form, **QUICK)
        with pytest.raises(ValueError, match=f"^{name} must be left at .*{used_by}"):
            model.fit(iris[0], few)


@pytest.mark.parametrize("name", ["lr", "weight_decay", "consistency", "early_stopping"])
def test_what_one_form_takes_changes_its_predictions(name: str, iris: Iris, few: Array) -> None:
    one: dict[str, Any] = {"recipe": "alone", **QUICK}
    plain = DIFFormerClassifier(**one).fit(iris[0], few)
    changed = DIFFormerClassifier(**one, **{name: OF_ONE_FORM[name]}).fit(iris[0], few)
    assert not np.array_equal(plain.label_distributions_, changed.label_distributions_)


def test_held_out_rows_use_what_is_said_about_them(iris: Iris, few: Array) -> None:
    more: dict[str, Any] = {"pick_by": "accuracy", "validation_fraction": 0.4}
    model = DIFFormerClassifier(recipe="alone", early_stopping=True, patience=3, **more, **QUICK)
    assert len(model.fit(iris[0], few).split_.val) == 12
    given = DIFFormerClassifier(recipe="alone", pick_by="accuracy", **QUICK)
    assert given.fit(iris[0], few, validation=[0, 1, 2]).best_epoch_ > 0


def test_numbers_have_no_consistency(iris: Iris) -> None:
    model = DIFFormerRegressor(recipe="alone", consistency=1, **QUICK)
    with pytest.raises(ValueError, match=r"consistency must be left at 0.0.* one class per row"):
        model.fit(iris[0][:, :2], iris[0][:, 2])


def test_the_parameters_that_a_recipe_does_not_use_are_known_without_a_fit() -> None:
    assert set(FitSettings().unused) == set(OF_ONE_FORM)
    assert set(FitSettings(recipe="stable").unused) == {"time_budget", "patience"}

"""Intervals and sets: exact by the definition, and right as often as they say on rows held back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_friedman1

from difformer.estimators.classifier import DIFFormerClassifier
from difformer.estimators.outcome import conformal_quantile
from difformer.estimators.regressor import DIFFormerRegressor

FEW: dict[str, Any] = {"epochs": 60, "hidden_channels": 16, "random_state": 0}


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("m", [9, 19, 20, 99])
def test_the_quantile_covers_a_further_score_at_least_as_often_as_asked(
    m: int, level: float
) -> None:
    """Of m + 1 exchangeable scores each is as likely to be the further one: count them all."""
    scores = np.random.default_rng(m).permutation(np.arange(m + 1.0))
    covered = [s <= conformal_quantile(np.delete(scores, i), level) for i, s in enumerate(scores)]
    assert level <= np.mean(covered) + 1e-12
    if not math.isinf(conformal_quantile(scores[1:], level)):
        assert np.mean(covered) < level + 1 / (m + 1) + 1e-12


def test_the_quantile_of_too_few_scores_is_infinite_and_levels_are_checked() -> None:
    assert conformal_quantile(np.arange(8.0), 0.9) == math.inf
    assert conformal_quantile(np.arange(9.0), 0.9) == 8.0
    for level in (0, 1, -0.1, 90, True, "0.9", float("nan")):
        with pytest.raises(ValueError, match="level must lie between 0 and 1"):
            conformal_quantile(np.arange(9.0), level)  # type: ignore[arg-type]


def test_nine_of_ten_intervals_hold_the_truth_of_rows_held_back(tmp_path: Path) -> None:
    covered: list[float] = []
    for seed in range(2):
        X, y = make_friedman1(900, noise=1.0, random_state=seed)
        y = 1000 + 50 * y  # in units of its own
        few = y.copy()
        few[400:] = np.nan
        model = DIFFormerRegressor(**{**FEW, "random_state": seed}).fit(X, few)
        found = model.predict_interval(X[400:], level=0.9)
        assert found.shape == (500, 2)
        np.testing.assert_allclose(found.mean(1), model.predict(X[400:]))
        covered.append(float(((found[:, 0] <= y[400:]) & (y[400:] <= found[:, 1])).mean()))
        narrow = model.predict_interval(X[400:], level=0.5)
        assert (narrow[:, 1] - narrow[:, 0] < found[:, 1] - found[:, 0]).all()
    assert 0.85 <= np.mean(covered) <= 0.96, covered
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerRegressor.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_interval(X[400:], level=0.5), narrow)


def test_intervals_of_several_targets_are_each_in_its_own_units(tmp_path: Path) -> None:
    X, y = make_friedman1(300, noise=0.5, random_state=0)
    many = np.stack([y, 1000 * y], axis=1)
    many[200:] = np.nan
    many[0, 1] = np.nan  # one target of a row may be unknown
    model = DIFFormerRegressor(**FEW).fit(X, many)
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerRegressor.load(tmp_path / "m.safetensors")
    assert np.array_equal(again.predict(X[200:]), model.predict(X[200:]))
    found = model.predict_interval(X[200:])
    assert found.shape == (100, 2, 2)
    width = (found[..., 1] - found[..., 0])[0]
    assert 200 < width[1] / width[0] < 5000


def test_nine_of_ten_sets_hold_the_true_class_of_rows_held_back(tmp_path: Path) -> None:
    covered: list[float] = []
    # Held out are validation rows of one recipe, or the labels in turn where forms are chosen.
    for seed, recipe in enumerate(("alone", "alone", "auto")):
        X, y = make_classification(
            900, 8, n_informative=4, n_classes=3, class_sep=0.7, random_state=seed
        )
        few = y.copy()
        few[400:] = -1
        one: dict[str, Any] = {"recipe": recipe, "early_stopping": recipe == "alone"}
        model = DIFFormerClassifier(**{**FEW, **one, "random_state": seed}).fit(X, few)
        found = model.predict_set(X[400:], level=0.9)
        assert found.shape == (500, 3)
        assert found.dtype == bool
        assert found.any(1).all()
        assert (found.sum(1) > 1).any()  # the classes overlap: one is not always enough
        covered.append(float(found[np.arange(500), y[400:]].mean()))
    # 80 held-out scores a fit: each fit's coverage is Beta with deviation 0.033, their mean 0.019.
    assert 0.85 <= np.mean(covered) <= 0.96, covered
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerClassifier.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict_set(X[400:]), found)


def test_a_set_holds_what_is_within_the_quantile_and_never_nothing() -> None:
    X, y = make_classification(60, 5, random_state=0)
    model = DIFFormerClassifier(**{**FEW, "epochs": 2}).fit(X, y)
    assert model.held_out_scores_ is not None
    model.held_out_scores_ = np.r_[np.full(50, 0.65), np.full(10, 0.8)][:, None]
    chances = np.array([[0.7, 0.3], [0.4, 0.6], [1.0, 0.0]])
    assert model.sets_around(chances, 0.7).tolist() == [[True, False], [True, True], [True, False]]
    assert model.sets_around(chances, 0.95).all(1).tolist() == [True, True, False]
    model.held_out_scores_[:] = 0.0
    assert model.sets_around(chances, 0.7).sum(1).tolist() == [1, 1, 1]
    assert model.sets_around(chances, 0.99).all()
    # A second fit forgets the rows that the first held out.
    model.set_params(recipe="alone", early_stopping=True).fit(X, y)
    assert not hasattr(model, "held_out_rows_")
    assert len(model.held_out_scores_) == model.split_.val.numel() < 60


def test_what_cannot_be_told_is_one_clear_line() -> None:
    X, y = make_classification(60, 5, random_state=0)
    plain = DIFFormerClassifier(epochs=2, hidden_channels=8, recipe="alone", kernel="simple")
    with pytest.raises(ValueError, match="no labelled rows were held out in fit"):
        plain.fit(X, y).predict_set(X)
    many = DIFFormerClassifier(**{**FEW, "epochs": 2}).fit(X, np.stack([y, 1 - y], axis=1))
    with pytest.raises(ValueError, match="need one class per row, y was multilabel"):
        many.predict_set(X)

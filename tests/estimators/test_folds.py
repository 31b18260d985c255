"""Scores and folds of partly labelled rows: unlabelled rows are learned from, never judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

from difformer import DIFFormerClassifier, DIFFormerRegressor, LabelledKFold

Array = NDArray[Any]
QUICK: dict[str, Any] = {"recipe": "alone", "epochs": 30, "hidden_channels": 16, "random_state": 0}
Iris = tuple[Array, Array]


@pytest.mark.parametrize("mark", [-1, None, "-1", float("nan")])
def test_score_is_that_of_the_labelled_rows(iris: Iris, mark: Any) -> None:
    X, y = iris
    model = DIFFormerClassifier(**QUICK).fit(X, y.astype(str) if mark == "-1" else y)
    partly = model.transduction_.astype(object)
    partly[::3] = mark
    assert model.score(X, partly) == 1
    with pytest.raises(ValueError, match="at least one labelled row"):
        model.score(X, np.full(150, mark, object))


def test_a_row_of_many_labels_counts_by_those_that_are_known(iris: Iris) -> None:
    X, y = iris
    both = np.stack([y > 0, y > 1], 1).astype(int)
    model = DIFFormerClassifier(**QUICK).fit(X, both)
    partly = model.transduction_.copy()
    partly[:50, 0] = partly[:, 1] = -1
    assert model.score(X, partly) == 1
    partly[50:75, 0] = 1 - partly[50:75, 0]
    assert model.score(X, partly) == 0.75
    weight = np.where(np.arange(150) < 75, 3.0, 1.0)  # 25 rows are wrong, and 75 are right
    assert model.score(X, partly, weight) == 0.5


def test_score_of_numbers_leaves_out_what_is_unknown(iris: Iris) -> None:
    X, targets = iris[0][:, :2], iris[0][:, 2:]
    model = DIFFormerRegressor(**QUICK).fit(X, targets)
    partly = targets.copy()
    partly[:50, 0] = partly[70:, 1] = np.nan
    found = model.predict(X)
    each = [
        r2_score(targets[50:, 0], found[50:, 0]),
        r2_score(targets[:70, 1], found[:70, 1]),
    ]
    assert model.score(X, partly) == pytest.approx(np.mean(each))
    assert model.score(X, targets) == pytest.approx(r2_score(targets, found))
    with pytest.raises(ValueError, match="at least one labelled row"):
        model.score(X, targets * np.nan)


def test_folds_judge_each_labelled_row_once_and_train_on_all_unlabelled_ones(few: Array) -> None:
    folds = LabelledKFold(3, shuffle=True, random_state=0)
    parts = list(folds.split(few, few))
    assert folds.get_n_splits(few, few) == len(parts) == 3
    judged = np.concatenate([test for _, test in parts])
    assert sorted(judged) == list(np.flatnonzero(few >= 0))
    for train, test in parts:
        assert np.array_equal(np.sort([*train, *test]), np.arange(150))
        share, whole = (np.bincount(y[y >= 0]) / (y >= 0).sum() for y in (few[test], few))
        assert abs(share - whole).max() < 0.1
    assert all(
        np.array_equal(a[1], b[1]) for a, b in zip(parts, folds.split(few, few), strict=True)
    )


def test_folds_of_numbers_and_of_many_columns() -> None:
    y = np.array([-1.0, 2.5, np.nan, 4.0, np.nan, 6.0])
    judged = [test.tolist() for _, test in LabelledKFold(2, numbers=True).split(y, y)]
    assert judged == [[0, 1], [3, 5]]
    table = np.array([[1, -1], [-1, -1], [0, 1], [-1, 0]])
    assert [t.tolist() for _, t in LabelledKFold(3).split(table, table)] == [[0], [2], [3]]
    with pytest.raises(ValueError, match="at least 7 labelled rows"):
        next(LabelledKFold(7, numbers=True).split(y, y))


def test_scikit_learn_takes_the_folds(iris: Iris, few: Array) -> None:
    X, folds = iris[0], LabelledKFold(3)
    scores = cross_val_score(DIFFormerClassifier(**QUICK), X, few, cv=folds)
    assert scores.mean() > 0.75
    assert cross_val_score(DIFFormerClassifier(**QUICK), X, few, cv=3).mean() > 0.75
    grid = {"options": [{"num_layers": 1}, {"num_layers": 2}]}
    found = GridSearchCV(DIFFormerClassifier(**QUICK), grid, cv=folds).fit(X, few)
    assert found.best_score_ > 0.75
    assert len(found.best_estimator_.transduction_) == 150

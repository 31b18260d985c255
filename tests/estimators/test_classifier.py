"""Both estimators: labels of any type, weights, validation rows, new rows, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.estimators.labels import read_classes
from difformer.nn.config import RECIPES

pandas = pytest.importorskip("pandas", reason="data frames need pandas")

Array = NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 30, "hidden_channels": 16, "random_state": 0}
NUMBERS: dict[str, Any] = {**QUICK, "epochs": 80}
Iris = tuple[Array, Array]


@pytest.mark.parametrize("which", ["alone", "joined"])
def test_a_row_has_the_same_bits_alone_in_any_batch_and_in_any_order(
    which: str, iris: Iris, request: pytest.FixtureRequest
) -> None:
    model: DIFFormerClassifier = request.getfixturevalue(which)
    new = iris[0][:70] + 0.013
    together = model.predict_proba(new)
    apart = np.concatenate([model.predict_proba(new[i : i + 1]) for i in range(70)])
    order = np.random.default_rng(0).permutation(70)
    assert together.dtype == np.float64
    assert np.array_equal(together, apart)
    assert np.array_equal(together[order], model.predict_proba(new[order]))


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_predicts_new_rows(recipe: str, iris: Iris, few: Array) -> None:
    model = DIFFormerClassifier(recipe=recipe, **{**QUICK, "epochs": 2}).fit(iris[0], few)
    assert np.isfinite(model.predict_proba(iris[0][:5] + 0.1)).all()


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        (np.array(["setosa", "versicolor", "virginica"], object), None),
        (np.array([2.0, 3.0, 7.0]), np.nan),
        (np.array([10, 20, 30]), pandas.NA),
    ],
    ids=["text", "float", "int"],
)
def test_labels_of_any_kind_come_back_as_they_were(iris: Iris, labels: Array, missing: Any) -> None:
    X, y = iris
    given = pandas.Series(labels[y].astype(object))
    given[30:] = missing
    model = DIFFormerClassifier(**QUICK).fit(X, given)
    assert set(model.transduction_.tolist()) == set(labels.tolist())
    assert (model.transduction_ == labels[y]).mean() > 0.85


@pytest.mark.parametrize("mark", ["", "-1", "-1.0", " nan ", -1, np.nan])
def test_texts_that_numpy_makes_of_missing_labels_are_unlabelled(mark: Any) -> None:
    given = np.array(["ant", mark, "cat", mark, "ant"])  # texts, also of a number
    assert given.dtype.kind == "U"
    for y in (given, given.astype(object), np.array(["ant", mark, "cat", mark, "ant"], object)):
        classes, codes = read_classes(y)
        assert classes.public.tolist() == ["ant", "cat"]
        assert codes[:, 0].tolist() == [0, -1, 1, -1, 0]
    classes, codes = read_classes(np.array(["1", "-1", "1", ""]), unlabelled=None)
    assert classes.public.tolist() == ["-1", "1"]
    assert codes[:, 0].tolist() == [1, 0, 1, -1]


def test_many_labels_and_many_outputs(iris: Iris) -> None:
    X, y = iris
    both = np.stack([y == 0, y == 2], axis=1).astype(int)
    model = DIFFormerClassifier(**QUICK).fit(X, np.where(np.arange(150)[:, None] < 60, both, -1))
    assert model.predict(X).shape == (150, 2)
    assert model.predict_proba(X).shape == (150, 2)
    assert (model.transduction_ == both).mean() > 0.85
    first, second = np.array(["a", "b", "c"], object), np.array(["x", "y", "y"], object)
    names = np.stack([first[y], second[y]], 1)
    names[60:] = None
    outputs = DIFFormerClassifier(**QUICK).fit(X, names)
    chances = outputs.predict_proba(X)
    assert [c.shape for c in chances] == [(150, 3), (150, 2)]
    assert (outputs.transduction_[:, 1] == second[y]).mean() > 0.85


def test_class_and_sample_weights_move_the_answer(iris: Iris, few: Array) -> None:
    X, _ = iris
    plain = DIFFormerClassifier(**QUICK).fit(X, few)
    heavy = DIFFormerClassifier(class_weight={0: 1, 1: 50, 2: 1}, **QUICK).fit(X, few)
    rows = DIFFormerClassifier(**QUICK).fit(X, few, sample_weight=np.where(few == 1, 50.0, 1.0))
    assert (heavy.transduction_ == 1).sum() > (plain.transduction_ == 1).sum()
    assert np.array_equal(heavy.transduction_, rows.transduction_)
    DIFFormerClassifier(class_weight="balanced", **QUICK).fit(X, few)


def test_validation_rows_pick_the_epoch_and_do_not_train(iris: Iris, few: Array) -> None:
    X, _ = iris
    model = DIFFormerClassifier(recipe="alone", early_stopping=True, patience=5, **QUICK).fit(
        X, few
    )
    assert {"accuracy", "loss"} <= set(model.validation_)
    assert model.split_.val.numel() == 6
    given = DIFFormerClassifier(**QUICK).fit(X, few, validation=[0, 1, 2])
    assert given.split_.val.tolist() == [0, 1, 2]
    assert not set(given.split_.train.tolist()) & {0, 1, 2}
    with pytest.raises(ValueError, match="row 99 has no label"):
        DIFFormerClassifier(**QUICK).fit(X, few, validation=[99])


def test_it_works_with_the_tools_of_scikit_learn(iris: Iris) -> None:
    X, y = iris
    model = DIFFormerClassifier(recipe="alone", **QUICK)
    line = make_pipeline(StandardScaler(), clone(model)).set_output(transform="pandas")
    assert line.fit(X, y).score(X, y) > 0.8
    assert next(iter(line.transform(X).columns)) == "difformerclassifier0"
    assert cross_val_score(model, X, y, cv=2).mean() > 0.8
    search = GridSearchCV(model, {"hidden_channels": [8, 16]}, cv=2).fit(X, y)
    assert search.best_params_["hidden_channels"] in (8, 16)


def test_sparse_rows_give_what_dense_ones_give(iris: Iris, few: Array) -> None:
    quick = {**QUICK, "scale": False, "options": {"input_dropout": 0.0}}
    dense = DIFFormerClassifier(**quick).fit(iris[0], few)
    compressed = DIFFormerClassifier(**quick).fit(sparse.csr_matrix(iris[0]), few)
    np.testing.assert_allclose(compressed.embedding_, dense.embedding_, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda X, y: (np.where(X[3, 1] == X, np.inf, X), y), {}, "infinity: .* row .*, column"),
        (lambda X, y: (sparse.csr_matrix(X * np.nan), y), {}, "contains NaN"),
        (lambda X, y: (X, np.full(150, -1)), {}, "all are unlabelled"),
        (lambda X, y: (X, np.zeros(150, int)), {}, "got one class: 0"),
        (lambda X, y: (X, y[:-1]), {}, "each of the 150 rows"),
        (lambda X, y: (X, np.array(["a", 1, *[None] * 148], object)), {}, "got int and str"),
        (None, {"options": {"tua": 1}}, "options must name model options"),
        (None, {"n_neighbors": 0, "graph": "knn"}, "n_neighbors must be"),
        (None, {"validation_fraction": 2, "early_stopping": True}, "validation_fraction must lie"),
        (None, {"kernel": "simpel"}, "kernel must be one of"),
        (None, {"graph": "near"}, 'graph must be None, "knn", "auto" or edges'),
    ],
)
def test_what_is_wrong_is_named(
    iris: Iris, few: Array, change: Any, options: dict[str, Any], message: str
) -> None:
    X, y = change(iris[0], few) if change else (iris[0], few)
    with pytest.raises(ValueError, match=message):
        DIFFormerClassifier(**{**QUICK, **options}).fit(X, y)


def test_a_bad_cell_of_a_frame_is_named_by_row_and_column(iris: Iris, few: Array) -> None:
    frame = pandas.DataFrame(iris[0], columns=list("abcd")).astype({"c": object})
    frame.loc[7, "c"] = "long"
    with pytest.warns(UserWarning, match="column 'c' of X: .* 1 not numbers, .*row 7: 'long'"):
        model = DIFFormerClassifier(**QUICK).fit(frame, few)
    assert (model.transduction_ == iris[1]).mean() > 0.8
    with pytest.raises(ValueError, match="row 1, column 'c': 'short' is not a finite number"):
        model.predict(pandas.DataFrame({"a": [1, 1], "b": [1, 1], "c": [1, "short"], "d": [1, 1]}))


# --- the regressor --------------------------------------------------------------------------------


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
    model = DIFFormerRegressor(graph=graph, **NUMBERS).fit(X, few)
    assert np.corrcoef(model.transduction_[100:], y[100:])[0, 1] > 0.8
    assert abs(model.transduction_.mean() - 1000) < 30
    assert model.score(X[100:], y[100:]) > 0.4


def test_minus_one_for_most_rows_is_told_of(plane: tuple[Array, Array]) -> None:
    X, y = plane
    marked = np.where(np.arange(200) < 20, y, -1)
    quick = DIFFormerRegressor(**{**NUMBERS, "epochs": 2})
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
        DIFFormerRegressor(**NUMBERS).fit(plane[0], y)

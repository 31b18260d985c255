"""Columns as they come: mixed types, missing and huge values; rows unlike those of fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.datasets import load_wine

import difformer
from difformer import DIFFormerClassifier, DIFFormerRegressor
from difformer.data.neighbours import nearest_neighbours
from difformer.errors import DriftWarning

pandas = pytest.importorskip("pandas", reason="data frames need pandas")

Array = NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 30, "hidden_channels": 16, "random_state": 0}
STABLE: dict[str, Any] = {"epochs": 3, "hidden_channels": 8, "recipe": "stable", "random_state": 0}


def test_units_do_not_matter() -> None:
    X, y = load_wine(return_X_y=True)
    quick = {**QUICK, "epochs": 2, "graph": "knn", "recipe": "stable"}
    units = 10.0 ** np.arange(-6, 7)
    plain = DIFFormerClassifier(**quick).fit(X, y)
    scaled = DIFFormerClassifier(**quick).fit(X * units, y)
    assert plain.graph_ is not None
    assert scaled.graph_ is not None
    assert plain.graph_.edge_index.tolist() == scaled.graph_.edge_index.tolist()
    np.testing.assert_allclose(plain.embedding_, scaled.embedding_, atol=1e-4)
    new = DIFFormerClassifier(**quick).fit(X[:150] * units, y[:150])
    old = DIFFormerClassifier(**quick).fit(X[:150], y[:150])
    a, b = new.predict_proba(X[150:] * units), old.predict_proba(X[150:])
    np.testing.assert_allclose(a, b, atol=1e-4)


def mixed(n: int = 120) -> tuple[Any, Array]:
    draw = np.random.default_rng(0)
    y = np.arange(n) % 2
    frame = pandas.DataFrame(
        {
            "size": np.where(draw.random(n) < 0.1, np.nan, y * 2 + draw.normal(size=n)),
            "rank": pandas.array(draw.integers(0, 30, n), dtype="Int64"),
            "seen": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(y * 90 + 3, unit="D"),
            "kept": draw.random(n) < 0.5,
            "grade": pandas.Categorical(draw.integers(1, 4, n)),
            "colour": np.where(draw.random(n) < 0.8, np.array(["red", "blue"])[y], "green"),
            "note": [
                f"{('swims in the deep sea', 'climbs in tall trees')[k]} at {i // 2} feet"
                for i, k in enumerate(y)
            ],
            "same": 7,
        },
        index=[f"r{i}" for i in range(n)],
    )
    frame.loc["r4", "rank"] = pandas.NA
    frame.loc["r5", "seen"] = pandas.NaT
    frame.loc["r6", "colour"] = None
    return frame, y


@pytest.mark.parametrize("graph", [None, "knn"])
def test_a_frame_of_mixed_columns_goes_in_as_it_is(graph: str | None, tmp_path: Path) -> None:
    frame, y = mixed()
    few = np.where(np.arange(120) < 40, y, -1)
    model = DIFFormerClassifier(graph=graph, **QUICK).fit(frame[:100], few[:100])
    assert {name: kind for name, kind, _ in model.encoder_.describe()} == {
        "size": "number",
        "rank": "number",
        "seen": "date",
        "kept": "category",
        "grade": "category",
        "colour": "category",
        "note": "text",
        "same": "skip",
    }
    assert (model.predict(frame[100:]) == y[100:]).all()
    assert (model.transduction_ == y[:100]).all()
    model.save(tmp_path / "m.safetensors")
    again = DIFFormerClassifier.load(tmp_path / "m.safetensors")
    assert np.array_equal(again.predict_proba(frame[100:]), model.predict_proba(frame[100:]))


def test_a_frame_and_a_file_are_encoded_by_the_same_object(tmp_path: Path) -> None:
    frame, y = mixed()
    frame = frame.drop(columns=["grade", "seen"])
    frame["label"] = y
    frame.to_csv(tmp_path / "t.csv", index_label="name")
    data = difformer.read_table(tmp_path / "t.csv", "label", id="name")
    model = DIFFormerClassifier(**QUICK).fit(frame.drop(columns="label"), y)
    assert data.encoder is not None
    encoders = (model.encoder_, data.encoder)
    parts = [[(c.name, c.kind, c.learned) for c in e.columns] for e in encoders]
    assert parts[0] == parts[1]
    same = DIFFormerClassifier(**QUICK).fit(data)
    np.testing.assert_allclose(same.label_distributions_, model.label_distributions_)
    assert same.classes_.tolist() == ["0", "1"]
    assert same.ids_ == model.ids_ == tuple(frame.index)


def test_frames_of_polars_lazy_ones_too_are_read_as_those_of_pandas() -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    frame, y = mixed()
    frame = frame.drop(columns="grade").reset_index(drop=True)
    cells = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in frame}
    other = polars.DataFrame({name: column.tolist() for name, column in cells.items()})
    edges = polars.DataFrame({"source": [0, 1, 2], "target": [3, 4, 5]})
    model = DIFFormerClassifier(**STABLE).fit(frame, y, edges)
    same = DIFFormerClassifier(**STABLE).fit(other.lazy(), y, edges.lazy())
    kinds = [[(c.name, c.kind) for c in m.encoder_.columns] for m in (model, same)]
    assert kinds[0] == kinds[1]
    for new in (other, other.lazy()):
        assert np.array_equal(same.predict_proba(new), model.predict_proba(frame))
    table = other.with_columns(label=y)
    data, read = (difformer.read_table(one, "label") for one in (table, table.lazy()))
    assert np.array_equal(data.x.to_dense().numpy(), read.x.to_dense().numpy())


def test_a_dataset_brings_its_labels_graph_and_ids() -> None:
    X, y = load_wine(return_X_y=True)
    ring = np.stack([np.arange(178), (np.arange(178) + 1) % 178])
    import torch

    data = difformer.Dataset(
        "wine",
        torch.from_numpy(X).float(),
        torch.from_numpy(np.where(y < 2, y, -1)),
        edge_index=torch.from_numpy(ring),
        class_names=("red", "white"),
        ids=tuple(f"w{i}" for i in range(178)),
    )
    model = DIFFormerClassifier(**QUICK).fit(data)
    apart = DIFFormerClassifier(**QUICK).fit(X.astype("f4"), np.where(y < 2, y, -1), ring)
    assert np.array_equal(model.label_distributions_, apart.label_distributions_)
    assert set(model.transduction_) == {"red", "white"}
    assert np.array_equal(
        model.predict_proba(X[:9].astype("f4"), ids=[f"w{i}" for i in range(9)]),
        model.label_distributions_[:9],
    )
    with pytest.raises(ValueError, match="wine has classes: use the classifier"):
        DIFFormerRegressor(**QUICK).fit(data)


def test_missing_values_are_the_mean_and_a_flag() -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 3))
    y = (draw.random(200) < 0.5).astype(int)
    X[y == 1, 2] = np.nan  # that it is missing says everything
    model = DIFFormerClassifier(**QUICK).fit(X[:150], y[:150])
    assert (model.predict(X[150:]) == y[150:]).all()
    # A gap where fit had none is the mean.
    gap, mean = X[:1].copy(), X[:1].copy()
    gap[0, 0], mean[0, 0] = np.nan, X[:150, 0].mean()
    np.testing.assert_allclose(model.predict_proba(gap), model.predict_proba(mean), atol=1e-6)


def test_huge_values_are_scaled_like_others() -> None:
    draw = np.random.default_rng(0)
    y = np.arange(100) % 2
    X = np.stack([np.where(y == 1, 1e200, -1e200), draw.normal(size=100)], axis=1)
    X[:, 0] *= draw.uniform(0.5, 1, 100)
    model = DIFFormerClassifier(graph="knn", **QUICK).fit(X, y)
    assert (model.transduction_ == y).all()
    with pytest.warns(DriftWarning, match="1 of 2 rows"):
        found = model.predict_proba(np.array([[1e160, 0.0], [1e308, -1e300]]))
    assert np.isfinite(found).all()
    # A column that was constant in fit says nothing, whatever it is later.
    flat = np.hstack([X[:, 1:], np.full((100, 1), 1e6)])
    model = DIFFormerClassifier(graph="knn", **STABLE).fit(flat, y)
    new = flat[:5] + 1e-9
    assert np.array_equal(model.predict_proba(new - [0, 1e9]), model.predict_proba(new))
    numbers = DIFFormerRegressor(**{**QUICK, "epochs": 80}).fit(X, y * 1e200)
    assert np.isfinite(numbers.transduction_).all()
    assert np.corrcoef(numbers.transduction_ / 1e200, y)[0, 1] > 0.8


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_values_too_large_to_be_used_unscaled_are_named(kind: str) -> None:
    X = np.ones((20, 3))
    X[4, 2] = 1e30
    given = sparse.csr_matrix(X) if kind == "sparse" else X
    with pytest.raises(ValueError, match=r"beyond ±1e\+15, .*; row 4, column 2"):
        DIFFormerClassifier(scale=False, **QUICK).fit(given, np.arange(20) % 2)


def test_sparse_rows_are_compared_by_their_angle() -> None:
    draw = np.random.default_rng(0)
    words = sparse.random(60, 30, density=0.3, random_state=0, format="csr")
    words = sparse.diags(draw.uniform(1, 100, 60)) @ words
    model = DIFFormerClassifier(graph="knn", n_neighbors=3, **QUICK)
    model.fit(words.tocsr(), np.arange(60) % 2)
    import torch

    x = torch.from_numpy(words.toarray()).float()
    near = set(map(tuple, nearest_neighbours(x, 3, metric="cosine").T.tolist()))
    assert model.graph_ is not None
    kept = set(map(tuple, model.graph_.edge_index.T.tolist()))
    assert near <= kept
    assert model.encoder_ is None
    assert model.predict(words[:4]).shape == (4,)


def test_masked_cells_are_missing_and_masked_labels_unknown(iris: tuple[Array, Array]) -> None:
    X, y = iris
    hidden = np.random.default_rng(0).random(X.shape) < 0.2
    masked = np.ma.masked_array(np.where(hidden, 1e6, X), hidden)
    given = np.ma.masked_array(y, np.arange(150) >= 60)
    quick = {**QUICK, "recipe": "alone"}
    model = DIFFormerClassifier(**quick).fit(masked, given)
    holes = np.where(hidden, np.nan, X)
    same = DIFFormerClassifier(**quick).fit(holes, np.where(np.arange(150) < 60, y, -1))
    assert np.array_equal(model.label_distributions_, same.label_distributions_)
    new = np.arange(9)
    assert np.array_equal(model.predict_proba(masked[new]), same.predict_proba(holes[new]))
    numbers = DIFFormerRegressor(**quick).fit(X[:, :2], np.ma.masked_array(X[:, 2], hidden[:, 2]))
    assert np.array_equal(np.sort(numbers.split_.train), np.flatnonzero(~hidden[:, 2]))


# --- rows unlike all rows of fit ------------------------------------------------------------------


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
    return DIFFormerClassifier(**STABLE).fit(frame, (frame["age"] > 50).to_numpy().astype(int))


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


def test_arrays_are_judged_too(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 3))
    model = DIFFormerRegressor(**STABLE).fit(X, X[:, 0])
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
    numbers = pandas.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=[*"abc"])
    plain = DIFFormerRegressor(**STABLE).fit(numbers, numbers["a"])
    assert np.array_equal(plain.predict(numbers[:9][[*"cab"]]), plain.predict(numbers[:9]))

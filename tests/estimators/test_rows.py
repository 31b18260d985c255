"""Rows of fit are answered by position or id; graphs of any type; saved estimators."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import sparse

from difformer import DIFFormerClassifier, DIFFormerRegressor, Graph
from difformer.data.graphs import read_graph
from difformer.errors import ModelFileError
from difformer.estimators import base
from difformer.tensorfiles import read_tensors, write_tensors

pandas = pytest.importorskip("pandas", reason="data frames need pandas")

Array = NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 20, "hidden_channels": 16, "random_state": 0}
Iris = tuple[Array, Array]
N = 140


@pytest.fixture(scope="module")
def field() -> tuple[Array, Array, Array]:
    """Rows of 7 distinct values on a graph of two separate rings; the ring is the class."""
    drawn = np.random.default_rng(0).integers(4, size=N) + np.arange(N) // 70 * 3
    X = np.eye(7)[drawn]  # the two rings share one of the values
    y = np.arange(N) // 70
    ring = np.arange(N) // 70 * 70 + (np.arange(N) + 1) % 70
    y[::3] = -1
    return X, y, np.stack([np.arange(N), ring])


@pytest.fixture(scope="module")
def model(field: tuple[Array, Array, Array]) -> DIFFormerClassifier:
    X, y, edges = field
    return DIFFormerClassifier(recipe="stable", **QUICK).fit(X, y, edges)


def test_equal_rows_keep_their_own_answers_on_a_graph(
    model: DIFFormerClassifier, field: tuple[Array, Array, Array]
) -> None:
    X = field[0]
    assert len(np.unique(model.label_distributions_.round(9), axis=0)) > 7
    assert np.array_equal(model.predict_proba(X), model.label_distributions_)
    assert np.array_equal(model.predict(X.copy()), model.transduction_)
    assert np.array_equal(model.transform(X.tolist()), model.embedding_)
    numbers = DIFFormerRegressor(**QUICK).fit(X, np.where(field[1] < 0, np.nan, 0.5), field[2])
    assert np.array_equal(numbers.predict(X), numbers.transduction_)


def test_a_part_of_the_rows_without_ids_are_new_rows(
    model: DIFFormerClassifier, field: tuple[Array, Array, Array]
) -> None:
    some = model.predict_proba(field[0][:70])
    assert len(np.unique(some.round(9), axis=0)) == 4
    alone = np.concatenate([model.predict_proba(row[None]) for row in field[0][:7]])
    assert np.array_equal(some[:7], alone)


@pytest.mark.parametrize("loaded", [False, True])
def test_ids_find_rows_of_fit_in_any_order(
    field: tuple[Array, Array, Array], loaded: bool, tmp_path: Path
) -> None:
    X, y, edges = field
    ids = [f"r{i}" for i in range(N)]
    model = DIFFormerClassifier(**QUICK).fit(X, y, edges, ids=ids)
    if loaded:
        model.save(tmp_path / "m.safetensors")
        model = DIFFormerClassifier.load(tmp_path / "m.safetensors")
    order = np.random.default_rng(0).permutation(N)[:50]
    some = model.predict_proba(X[order], ids=[ids[i] for i in order])
    assert np.array_equal(some, model.label_distributions_[order])
    # A known id with other values, and an unknown id, are new rows.
    other = int(np.flatnonzero(X.argmax(1) != X[1].argmax())[0])
    changed = model.predict_proba(X[[1, 1, 1]], ids=[f"r{other}", "new", "r1"])
    assert np.array_equal(changed[0], changed[1])
    assert np.array_equal(changed[2], model.label_distributions_[1])


def test_a_frame_s_own_index_names_its_rows(field: tuple[Array, Array, Array]) -> None:
    X, y, edges = field
    frame = pandas.DataFrame(X, columns=list("abcdefg"), index=[f"r{i}" for i in range(N)])
    model = DIFFormerClassifier(**QUICK).fit(frame, y, edges)
    part = frame.iloc[[100, 3, 50]]
    assert np.array_equal(model.predict_proba(part), model.label_distributions_[[100, 3, 50]])
    assert np.array_equal(
        model.predict_proba(part.reset_index(drop=True)),
        model.predict_proba(part.set_axis([*"xyz"])),
    )
    frame.index = ["same"] * N
    with pytest.raises(ValueError, match="must be different, got 'same' twice"):
        DIFFormerClassifier(**QUICK).fit(frame, y, edges)


def test_a_row_that_brings_edges_is_a_new_row(
    model: DIFFormerClassifier, field: tuple[Array, Array, Array]
) -> None:
    X = field[0]
    into = np.array([(j, 0) for j in range(70, 140)])  # row 0 is joined to the other class
    found = model.predict_proba(X, into)
    assert not np.array_equal(found[0], model.label_distributions_[0])
    assert np.array_equal(found[1:], model.label_distributions_[1:])
    # An edge that is given twice counts once.
    assert np.array_equal(model.predict_proba(X, np.repeat(into, 2, 0)), found)


def test_new_rows_may_be_joined_to_one_another(
    field: tuple[Array, Array, Array],
) -> None:
    X, y, edges = field
    ids = [f"r{i}" for i in range(N)]
    model = DIFFormerClassifier(recipe="stable", **QUICK).fit(X, y, edges, ids=ids)
    plain = model.predict_proba(np.eye(7)[[3] * 4])
    # A chain: the second row meets the class of the second ring through the first one alone.
    into = np.array([*((j, 0) for j in range(70, 140)), (N, 1), (N + 1, 2)])
    found = model.predict_proba(np.eye(7)[[3] * 4], into)
    with pytest.raises(ValueError, match="new rows 0 to 3, got 4"):
        model.predict(np.eye(7)[[3] * 4], [[0, 4]])
    assert np.array_equal(found[3], plain[3])
    assert (found[:2, 1] > plain[:2, 1]).all()
    # The same in every form, whichever way an edge is given, and in any order of rows.
    names = ["a", "b", "c", "d"]
    ends = [f"r{j}" for j in range(N)] + names
    pairs = [(ends[s], names[t]) for s, t in into.tolist()]
    frames = [
        pandas.DataFrame(pairs, columns=["source", "target"]),
        pandas.DataFrame([(b, a) for a, b in pairs] + pairs[:5], columns=["source", "target"]),
    ]
    matrix = sparse.csr_array((np.ones(72), (into[:, 1], into[:, 0])), shape=(4, N + 4))
    for graph in (matrix, *frames, networkx.from_pandas_edgelist(frames[0])):
        again = model.predict_proba(np.eye(7)[[3] * 4], graph, ids=names)
        np.testing.assert_allclose(again, found, atol=1e-12)
    turned = model.predict_proba(np.eye(7)[[3] * 4], frames[0], ids=["d", "c", "b", "a"])
    np.testing.assert_allclose(turned[::-1], found, atol=1e-12)
    weights, rows = model.influence(np.eye(7)[[3] * 4], into, top_k=2)
    assert (weights > 0).all()
    assert (rows[0] >= 70).all()


def test_weights_of_edges_reach_the_model_in_its_own_precision(
    field: tuple[Array, Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y, edges = field
    weight = torch.from_numpy(np.random.default_rng(0).random(N) + 0.1)
    monkeypatch.setattr(base, "read_graph", lambda *_, **__: (torch.from_numpy(edges), weight))
    model = DIFFormerClassifier(recipe="stable", directed=True, **QUICK).fit(X, y, edges)
    degree = torch.ones(N).double().index_add(0, torch.from_numpy(edges[0]), weight)
    torch.testing.assert_close(model.frozen_.pack()[0]["degree"], degree, rtol=1e-15, atol=0)


def test_influence_of_a_row_of_fit_names_its_neighbours(
    model: DIFFormerClassifier, field: tuple[Array, Array, Array]
) -> None:
    weights, rows = model.influence(field[0], top_k=2)
    ring = np.arange(N) // 70 * 70
    for i in range(N):
        true = {ring[i] + (i + 1) % 70, ring[i] + (i - 1) % 70}
        assert set(rows[i].tolist()) == true
    assert (weights > 0).all()
    again = model.influence_in_fit([5, 2], top_k=2)
    assert np.array_equal(again[1], rows[[5, 2]])


def test_influence_in_fit_is_what_the_last_layer_does(
    model: DIFFormerClassifier, field: tuple[Array, Array, Array]
) -> None:
    assert model.graph_ is not None
    weights, rows = model.influence_in_fit(np.arange(4), top_k=N)
    net, w = model.frozen_.model, model.frozen_.model.config.graph_weight
    mean, scale = model.scaling_
    x = torch.from_numpy((field[0] - mean) / scale)
    pairs = net.diffusivity(x, model.graph_.to(x), layer=-1)
    assert isinstance(pairs, torch.Tensor)
    near = model.graph_.propagate(torch.eye(N)).double()
    whole = ((1 - w) * pairs + w * near).fill_diagonal_(0).numpy()
    found = np.zeros((4, N))
    np.put_along_axis(found, rows, weights, axis=1)
    np.testing.assert_allclose(found, whole[:4], atol=1e-5)


# --- graphs of any type ---------------------------------------------------------------------------

RING = np.stack([np.arange(N), (np.arange(N) + 1) % N])
NAMES = [f"flower {i}" for i in range(N)]
BY_NAME = pandas.DataFrame(np.array(NAMES)[RING.T], columns=["from", "to"])
NUMBERED = networkx.from_edgelist(RING.T.tolist(), networkx.DiGraph)
WEIGHTS = np.arange(1.0, N + 1)
WEIGHED = pandas.DataFrame({"target": RING[1], "weight": WEIGHTS, "source": RING[0]})


@pytest.mark.parametrize(
    ("graph", "weight"),
    [
        (RING, None),
        (RING.T, None),
        (torch.from_numpy(RING), None),
        (RING.T.tolist(), None),
        ((RING, WEIGHTS), WEIGHTS),
        (sparse.coo_array((WEIGHTS, tuple(RING)), shape=(N, N)), WEIGHTS),
        (WEIGHED, WEIGHTS),
        (Graph.from_edges(torch.from_numpy(RING), N), None),
        (NUMBERED, None),
        (BY_NAME, None),
        (networkx.from_pandas_edgelist(BY_NAME, "from", "to", create_using=networkx.DiGraph), None),
    ],
)
def test_a_graph_may_come_in_any_common_form(graph: Any, weight: Any) -> None:
    edges, found = read_graph(graph, N, ids=NAMES if graph is not NUMBERED else None)
    order = np.argsort(edges[0].numpy())
    np.testing.assert_array_equal(edges.numpy()[:, order], RING)
    assert (found is None) is (weight is None)
    if found is not None:
        np.testing.assert_array_equal(found.numpy()[order], weight)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([[0, N], [1, 2]], f"join rows 0 to {N - 1}, got {N}"),
        (sparse.eye(6).tocoo(), rf"graph must be \({N}, {N}\), one row and one column"),
        ((RING, np.ones(3)), f"a weight for each of {N} edges, got 3"),
        ((RING, -WEIGHTS), "finite weights, 0 or more, got -1.0 for edge 0"),
        (RING / 2, r"\(2, e\) row numbers, got float64"),
        (BY_NAME.replace("flower 5", "weed"), "rows by their ids, from 'weed' is not an id"),
        (networkx.from_edgelist([("weed", "flower 1")]), "as its nodes, got node 'weed'"),
        (Graph.from_edges(torch.from_numpy(RING), N + 1), f"{N} nodes, got {N + 1}"),
    ],
)
def test_a_graph_that_does_not_fit_is_named(graph: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_graph(graph, N, ids=NAMES)


# --- saved estimators -----------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["alone", "joined"])
def test_a_saved_or_pickled_model_gives_the_same_bits(
    which: str, iris: Iris, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: DIFFormerClassifier = request.getfixturevalue(which)
    model.save(tmp_path / "m.safetensors")
    new = iris[0] + 0.1
    for other in (
        DIFFormerClassifier.load(tmp_path / "m.safetensors"),
        pickle.loads(pickle.dumps(model)),  # noqa: S301
    ):
        assert np.array_equal(other.predict_proba(new), model.predict_proba(new))
        assert np.array_equal(other.transduction_, model.transduction_)
        assert other.get_params() == model.get_params()
        for part in ("train", "val"):
            assert torch.equal(getattr(other.split_, part), getattr(model.split_, part))
        assert np.array_equal(other.influence_in_fit([7])[1], model.influence_in_fit([7])[1])
        if model.graph_ is not None:
            assert torch.equal(other.graph_.edge_index, model.graph_.edge_index)


def test_a_file_from_elsewhere_or_tampered_with_is_refused(
    alone: DIFFormerClassifier, tmp_path: Path
) -> None:
    path = tmp_path / "m.safetensors"
    alone.save(path)
    with pytest.raises(ModelFileError, match="holds a DIFFormerClassifier"):
        DIFFormerRegressor.load(path)
    content = path.read_bytes()
    for damage in (content[:-10], content[: len(content) // 2], b"x" * 100, b"\x80\x04]."):
        path.write_bytes(damage)
        with pytest.raises(ModelFileError, match=str(path)):
            DIFFormerClassifier.load(path)
    nan = np.array([np.nan]).tobytes()
    path.write_bytes(content[:-8] + nan)
    with pytest.raises(ModelFileError, match="changed after it was written"):
        DIFFormerClassifier.load(path)
    path.write_bytes(content)
    tensors, description = read_tensors(path, "estimator")
    tensors["embedding"][0, 0] = float("nan")
    write_tensors(path, "estimator", tensors, description)
    with pytest.raises(ModelFileError, match="NaN or infinity"):
        DIFFormerClassifier.load(path)

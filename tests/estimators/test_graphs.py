"""Graphs of any type between rows of fit, and edges of new rows."""

from __future__ import annotations

from typing import Any

import networkx
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from difformer import DIFFormerClassifier

pandas = pytest.importorskip("pandas", reason="data frames need pandas")

Array = NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 30, "hidden_channels": 16, "random_state": 0}
Iris = tuple[Array, Array]


def graph_forms(n: int) -> dict[str, Any]:
    ring = np.stack([np.arange(n), (np.arange(n) + 1) % n])
    values = np.ones(n)
    graph = networkx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(ring.T.tolist())
    return {
        "array (2, e)": ring,
        "array (e, 2)": ring.T,
        "pairs": ring.T.tolist(),
        "scipy": sparse.coo_array((values, (ring[0], ring[1])), shape=(n, n)),
        "networkx": graph,
        "frame": pandas.DataFrame({"source": ring[0], "target": ring[1], "weight": values}),
    }


def test_a_graph_is_the_same_in_every_form(iris: Iris, few: Array) -> None:
    found = {
        name: DIFFormerClassifier(**{**QUICK, "epochs": 3}).fit(iris[0], few, graph)
        for name, graph in graph_forms(150).items()
    }
    first = found.pop("array (2, e)").label_distributions_
    for name, model in found.items():
        np.testing.assert_allclose(model.label_distributions_, first, atol=1e-6, err_msg=name)


def test_a_networkx_graph_may_name_a_frame_s_rows(iris: Iris, few: Array) -> None:
    names = [f"flower {i}" for i in range(150)]
    frame = pandas.DataFrame(iris[0], index=names, columns=list("abcd"))
    graph = networkx.relabel_nodes(graph_forms(150)["networkx"], dict(enumerate(names)))
    quick = {**QUICK, "epochs": 3}
    by_name = DIFFormerClassifier(**quick).fit(frame, few, graph)
    by_number = DIFFormerClassifier(**quick).fit(iris[0], few, graph_forms(150)["pairs"])
    np.testing.assert_allclose(by_name.embedding_, by_number.embedding_, atol=1e-6)
    graph.add_node("weed")
    with pytest.raises(ValueError, match="got node 'weed'"):
        DIFFormerClassifier(**quick).fit(frame, few, graph)


def test_new_rows_may_bring_edges_from_known_ones(iris: Iris, few: Array) -> None:
    X, y = iris
    same = np.array([(i, j) for i in range(150) for j in range(i) if y[i] == y[j]])
    model = DIFFormerClassifier(recipe="stable", **QUICK).fit(X, few, same)
    unclear = np.repeat(X.mean(0, keepdims=True), 3, 0)
    edges = np.array([(j, label) for label in range(3) for j in np.flatnonzero(y == label)[:20]])
    assert model.predict(unclear, edges).tolist() == [0, 1, 2]
    matrix = sparse.coo_array((np.ones(60), (edges[:, 1], edges[:, 0])), shape=(3, 150))
    assert np.array_equal(model.predict_proba(unclear, matrix), model.predict_proba(unclear, edges))
    with pytest.raises(ValueError, match="new rows 0 to 2, got 3"):
        model.predict(unclear, [[0, 3]])


def test_influence_names_the_rows_that_weigh_most(iris: Iris, few: Array) -> None:
    joined = DIFFormerClassifier(graph="knn", recipe="stable", **QUICK).fit(iris[0], few)
    weights, rows = joined.influence(iris[0][:20] + 0.01, top_k=4)
    assert weights.shape == rows.shape == (20, 4)
    assert (np.diff(weights, axis=1) <= 0).all()
    assert (iris[1][rows] == iris[1][:20, None]).mean() > 0.85
    whole, _ = joined.influence(iris[0][:5] + 0.01, top_k=150)
    assert (whole.sum(1) <= 1 + 1e-9).all()

"""Neighbour graphs: exact against the definition, the index against the exact search."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from difformer.data import neighbours
from difformer.data.neighbours import nearest_neighbours, neighbour_graph


def by_definition(x: Tensor, k: int, metric: str) -> set[tuple[int, int]]:
    if metric == "cosine":
        x = torch.nn.functional.normalize(x, dim=1)
    distance = torch.cdist(x, x).fill_diagonal_(float("inf"))
    near = distance.topk(k, largest=False).indices
    return {(int(j), i) for i, row in enumerate(near) for j in row}


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("sparse", [False, True])
def test_exact_search_finds_the_nearest_by_definition(metric: str, sparse: bool) -> None:
    x = torch.rand(63, 5, generator=torch.Generator().manual_seed(0))
    edges = nearest_neighbours(x.to_sparse_csr() if sparse else x, 4, metric=metric)
    assert edges.shape == (2, 63 * 4)
    assert set(map(tuple, edges.T.tolist())) == by_definition(x, 4, metric)
    equal = nearest_neighbours(torch.ones(5, 3), 2, metric=metric)
    assert bool((equal[0] != equal[1]).all())  # no row is its own neighbour


@pytest.fixture
def indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(neighbours, "EXACT_UP_TO", 0)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_index_finds_nearly_all_of_them(indexed: None, metric: str) -> None:
    x = torch.randn(1500, 16, generator=torch.Generator().manual_seed(0))
    found = set(map(tuple, nearest_neighbours(x, 8, metric=metric).T.tolist()))
    true = by_definition(x, 8, metric)
    assert len(found & true) / len(true) > 0.98
    assert all(a != b for a, b in found)
    found = set(map(tuple, nearest_neighbours(x.to_sparse_csr(), 8, metric=metric).T.tolist()))
    assert len(found & true) / len(true) > 0.7  # one dimension is lost


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_a_neighbours_graph_joins_either_or_both_ways(metric: str) -> None:
    x = torch.rand(40, 5, generator=torch.Generator().manual_seed(0))
    near = by_definition(x, 4, metric)
    either, _ = neighbour_graph(x, 4, metric=metric)
    assert set(map(tuple, either.T.tolist())) == near | {(b, a) for a, b in near}
    both, _ = neighbour_graph(x, 4, metric=metric, mutual=True)
    assert set(map(tuple, both.T.tolist())) == {(a, b) for a, b in near if (b, a) in near}
    assert 0 < both.shape[1] < either.shape[1]


@pytest.mark.parametrize("sparse", [False, True])
def test_weights_are_the_similarity_of_the_two_ends(sparse: bool) -> None:
    x = torch.rand(30, 5, generator=torch.Generator().manual_seed(0)) - 0.2
    given = x.to_sparse_csr() if sparse else x
    (a, b), cosine = neighbour_graph(given, 3, weights="similarity")
    expected = torch.nn.functional.cosine_similarity(x[a], x[b]).clamp_min(1e-6)
    torch.testing.assert_close(cosine, expected, atol=1e-5, rtol=1e-5)
    (a, b), kernel = neighbour_graph(given, 3, metric="euclidean", weights="similarity")
    square = (x[a] - x[b]).square().sum(1)
    torch.testing.assert_close(kernel, (-square / (2 * square.mean())).exp(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k must lie in 1 to 9"),
        ({"k": 10}, "k must lie in 1 to 9, the other rows, got 10"),
        ({"k": 2, "metric": "manhattan"}, "metric must be one of cosine, euclidean"),
        ({"k": 2, "weights": "x"}, "weights must be one of uniform, similarity, got 'x'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        neighbour_graph(torch.rand(10, 2), **options)  # type: ignore[arg-type]

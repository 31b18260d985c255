"""Graph: cleaning rules, normalisation, and a product whose gradient is the transpose's."""

import pytest
import torch

from difformer.core.graph import Graph, TracedGraph
from difformer.core.sparse import SparseMatrix
from difformer.nn.model import DIFFormer


def dense_reference(edge_index, n, weight=None, norm="symmetric"):
    a = torch.zeros(n, n, dtype=torch.float64)
    weight = torch.ones(edge_index.shape[1]) if weight is None else weight
    for (source, target), w in zip(edge_index.T.tolist(), weight.tolist(), strict=True):
        a[target, source] += w
    into, out_of = (s.clamp_min(1e-300).rsqrt() for s in (a.sum(1), a.sum(0)))
    return a * into[:, None] * (into[:, None] if norm == "row" else out_of)


@pytest.mark.parametrize("graph_norm", ["symmetric", "row"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_model_of_doubles_normalises_in_doubles(weighted, graph_norm):
    n = 40
    edges = random_edges(n, 3 * n)
    weight = torch.rand(edges.shape[1]) if weighted else None
    model = DIFFormer(3, 8, 2, num_layers=1, graph_norm=graph_norm).double()
    z = torch.zeros(n, 1, dtype=torch.float64)
    plain = torch.zeros(n, n, dtype=torch.float64)
    plain[edges[1], edges[0]] = 1.0 if weight is None else weight.double()
    plain = torch.maximum(plain, plain.T).fill_diagonal_(float(graph_norm == "symmetric"))
    expected = dense_reference(plain.nonzero().T.flip(0), n, plain[plain > 0], graph_norm)
    ready = Graph.undirected_with_loops(edges, n, weight)
    for graph in (model.prepare_graph(edges, weight, z), model.prepare_graph(ready, None, z)):
        torch.testing.assert_close(graph.dense(), expected, rtol=0, atol=1e-15)
    traced = TracedGraph(edges, weight, n, graph_norm, torch.float64)
    whole = traced.propagate(torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-15)


def random_edges(n, e, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randint(n * n, (e,), generator=generator).unique()
    return torch.stack([pairs // n, pairs % n])


@pytest.mark.parametrize("n", [1, 2, 63, 257])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("norm", ["symmetric", "row"])
def test_propagate_equals_dense_product_and_gradient_in_doubles(n, weighted, undirected, norm):
    edges = random_edges(n, 3 * n)
    if undirected:
        edges = torch.cat([edges, edges.flip(0)], dim=1).unique(dim=1)
    weight = torch.rand(edges.shape[1]) if weighted else None
    if undirected and weighted:
        weight = (edges.sum(0) + 1).double()
    x = torch.randn(n, 5, dtype=torch.float64, requires_grad=True)
    graph = Graph.from_edges(edges, n, weight, norm=norm).to(x)
    dense = dense_reference(edges, n, weight, norm)
    torch.testing.assert_close(graph.dense(), dense, rtol=0, atol=1e-15)
    torch.testing.assert_close(graph.propagate(x), dense @ x)
    probe = torch.randn(n, 5, dtype=torch.float64)
    (fast,) = torch.autograd.grad((graph.propagate(x) * probe).sum(), x)
    torch.testing.assert_close(fast, dense.T @ probe)


def test_a_symmetric_graph_keeps_one_matrix_and_a_directed_one_two():
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    both = Graph.from_edges(edges, 3, undirected=True).adjacency
    assert both.transpose is both.csr
    one = Graph.from_edges(edges, 3).adjacency
    torch.testing.assert_close(one.transpose.to_dense(), one.csr.to_dense().T)
    rows = torch.tensor([2, 0, 1, 2])
    torch.testing.assert_close(one[rows].to_dense(), one.to_dense()[rows])


def test_repeated_edges_count_once_or_add_and_the_larger_direction_counts_for_both():
    edges = torch.tensor([[0, 0, 1], [1, 1, 0]])
    assert Graph.from_edges(edges, 2).num_edges == 2
    graph = Graph.from_edges(edges, 2, torch.tensor([1.0, 2.0, 5.0]))
    assert graph.edge_weight.tolist() == [5.0, 3.0]
    once = Graph.from_edges(graph.edge_index, 2, graph.edge_weight, undirected=True)
    assert once.edge_weight.tolist() == [5.0, 5.0]


def test_self_loops_are_added_removed_or_left():
    edges = torch.tensor([[0, 1, 1], [0, 0, 2]])
    count = {s: Graph.from_edges(edges, 3, self_loops=s).num_edges for s in (None, True, False)}
    assert count == {None: 3, True: 5, False: 2}


def test_a_graph_without_edges_gives_zero_and_can_be_frozen_on():
    x = torch.randn(3, 2, requires_grad=True)
    graph = Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 3)
    out = graph.propagate(x)
    assert torch.equal(out, torch.zeros(3, 2))
    out.sum().backward()
    assert torch.equal(x.grad, torch.zeros(3, 2))
    assert graph.edge_index.shape == (2, 0)
    assert graph.neighbours_mean.num_edges == 0
    assert graph.around(torch.tensor([1]), 2)[0].tolist() == [1]
    model, x = DIFFormer(2, 4, 1).eval(), torch.randn(3, 2)
    torch.testing.assert_close(model.freeze(x, graph)(x), model(x, graph))


@pytest.mark.parametrize(
    ("edges", "weight", "message"),
    [
        (torch.zeros(3, 2, dtype=torch.int64), None, r"edge_index must have shape \(2, e\)"),
        (torch.zeros(2, 2), None, "edge_index must hold integers"),
        (torch.tensor([[0], [4]]), None, "edge_index must name rows 0 to 3, got 4"),
        (torch.tensor([[-1], [0]]), None, "edge_index must name rows 0 to 3, got -1"),
        (torch.tensor([[0], [1]]), torch.ones(2), r"edge_weight must have shape \(1,\)"),
        (torch.tensor([[0], [1]]), torch.tensor([-1.0]), "finite and not negative"),
        (torch.tensor([[0], [1]]), torch.tensor([float("nan")]), "finite and not negative"),
        (
            torch.tensor([[0], [1]]),
            torch.ones(1, requires_grad=True),
            "must not require a gradient",
        ),
    ],
)
def test_bad_edges_are_named(edges, weight, message):
    with pytest.raises(ValueError, match=message):
        Graph.from_edges(edges, 4, weight)


def test_bad_sizes_and_norms_are_named():
    with pytest.raises(ValueError, match="norm must be one of symmetric, row, got 'column'"):
        Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 3, norm="column")
    with pytest.raises(ValueError, match="num_nodes must be at least 1, got 0"):
        Graph.from_edges(torch.zeros(2, 0, dtype=torch.int64), 0)
    graph = Graph.from_edges(torch.tensor([[0], [1]]), 2)
    with pytest.raises(ValueError, match="value must have the graph's 2 rows, got 3"):
        graph.propagate(torch.ones(3, 1))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_over_neighbours_is_the_rows_of_the_adjacency_without_loops(weighted):
    edges = random_edges(9, 40)
    weight = torch.rand(edges.shape[1], dtype=torch.float64) if weighted else None
    graph = Graph.from_edges(edges, 9, weight, self_loops=True)
    other = edges[0] != edges[1]
    kept = None if weight is None else weight[other]
    expected = dense_reference(edges[:, other], 9, kept, "row")
    assert graph.neighbours_mean.norm == "row"
    assert graph.neighbours_mean is graph.neighbours_mean
    row = Graph.from_edges(edges, 9, weight, self_loops=False, norm="row")
    for mean in (graph.neighbours_mean, row):
        torch.testing.assert_close(mean.dense().double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_rows_around_some_give_them_what_the_whole_graph_does(weighted, undirected, steps):
    n, rows = 101, torch.tensor([90, 3, 44])
    edges = random_edges(n, 150)
    weight = torch.rand(edges.shape[1], dtype=torch.float64) + 0.1 if weighted else None
    whole = Graph.from_edges(edges, n, weight, undirected=undirected, self_loops=True)
    x = torch.randn(n, 3, dtype=torch.float64)
    near, part = whole.around(rows, steps)
    assert near.numel() < n
    assert torch.isin(rows, near).all()
    own = torch.searchsorted(near, rows)
    for one, other in ((whole, part), (whole.neighbours_mean, part.neighbours_mean)):
        found, expected = x[near], x
        for _ in range(steps):
            found, expected = other.to(x).propagate(found), one.to(x).propagate(expected)
        torch.testing.assert_close(found[own], expected[rows], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["fresh", "moved", "moved late", "dropped", "moved and dropped"])
def test_dropout_keeps_the_transpose_whatever_was_done_before(way):
    torch.manual_seed(0)
    dense = torch.rand(9, 5) * (torch.rand(9, 5) < 0.6)
    matrix = SparseMatrix.from_csr(dense.to_sparse_csr())
    if way == "moved late":
        assert matrix.transpose is not None
    if "moved" in way:
        matrix = matrix.to(torch.empty(0, dtype=torch.float64))
    if way != "fresh" and "dropped" in way:
        matrix = matrix.dropout(0.5)
    if way == "moved and dropped":
        matrix = matrix.dropout(0.2).to(torch.empty(0))
    dropped = matrix.dropout(0.5)
    torch.testing.assert_close(dropped.transpose.to_dense(), dropped.csr.to_dense().T)
    zero = dense == 0
    assert (dropped.csr.to_dense()[zero] == 0).all()

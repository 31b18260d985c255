"""MLP, GCN, GraphSAGE, GAT and SGC against the library's own layers, and what these are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, SGConv
from torch_geometric.nn.inits import glorot

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Dataset
from difformer.systems import layers
from difformer.systems.gnn import EdgeGATConv
from difformer.systems.layers import EdgeProduct, FeatureLinear, edge_softmax
from difformer.systems.registry import get_system
from difformer.train.seeding import seeded
from difformer_paper.rivals.attention import all_pairs_attention


def test_mlp_is_two_linear_layers_with_a_relu_between(small: Dataset, build: Any) -> None:
    model = build("mlp", small)
    first, last = model.first.linear, model.rest[0]
    expected = last(F.relu(first(small.x)))
    torch.testing.assert_close(model(small.x), expected)


def test_glorot_draws_the_numbers_of_the_library() -> None:
    layer = FeatureLinear(41, 7, bias=False, init="glorot")
    with seeded(0):
        layer.reset_parameters()
    with seeded(0):
        theirs = torch.nn.Linear(41, 7, bias=False).weight  # draws once, as a reset does
        glorot(theirs)
    assert torch.equal(layer.linear.weight, theirs)


@pytest.mark.parametrize(
    ("name", "theirs", "act", "names"),
    [
        ("gcn", [GCNConv(6, 8), GCNConv(8, 2)], F.relu, ["bias"]),
        (
            "gat",
            [GATConv(6, 4, heads=2), GATConv(8, 2, heads=1, concat=False)],
            F.elu,
            ["att_src", "att_dst", "bias"],
        ),
    ],
)
def test_gcn_and_gat_are_the_librarys_layers_on_the_raw_edges(
    small: Dataset, name: str, theirs: Any, act: Any, names: list[str], build: Any, own_graph: Any
) -> None:
    options = {"num_heads": 2, "hidden_channels": 4} if name == "gat" else {"hidden_channels": 8}
    model = build(name, small, **options)
    with torch.no_grad():
        for layer, ours in zip(theirs, model.convs, strict=True):
            layer.lin.weight.copy_(next(p for n, p in ours.named_parameters() if "weight" in n))
            for kept in names:
                getattr(layer, kept).copy_(getattr(ours, kept))
    expected = theirs[1](act(theirs[0](small.x, small.edge_index)), small.edge_index)
    for edges in (own_graph(small), small.edge_index):
        torch.testing.assert_close(model(small.x, edges), expected, atol=1e-5, rtol=1e-5)


def test_a_residual_gcn_adds_a_linear_map_of_each_layers_input(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("gcn", small, num_layers=1, residual=True, hidden_channels=2)
    graph = own_graph(small)
    conv, skip = model.convs[0], model.skips[0].linear
    expected = graph.propagate(conv.lin(small.x)) + conv.bias + skip(small.x)
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 61])
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (3, False)])
def test_attention_by_products_and_its_gradients_are_the_librarys(
    n: int, heads: int, concat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "EDGE_CHUNK", 17)
    graph = Graph.from_edges(torch.randint(n, (2, 4 * n)), n)
    theirs = GATConv(4, 5, heads=heads, concat=concat, add_self_loops=False).double()
    ours = EdgeGATConv(4, 5, heads=heads, concat=concat, add_self_loops=False).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(n, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for layer, edges in ((ours, EdgeProduct(graph)), (theirs, graph.edge_index)):
        out = layer(x, edges)
        grads = torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])
        results.append([out, *grads])
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 61])
@pytest.mark.parametrize("heads", [1, 3])
def test_dense_gat_is_graph_attention_along_every_pair(n: int, heads: int) -> None:
    config = get_system("densegat").configure(
        hidden_channels=5, num_heads=heads, out_heads=heads, dropout=0.0, input_dropout=0.0
    )
    model = get_system("densegat").build(config, 4, 3).double()
    x = (3 * torch.randn(n, 4, dtype=torch.float64)).requires_grad_()
    row = torch.arange(n)
    pairs = torch.stack([row.repeat(n), row.repeat_interleave(n)])
    cotangent = torch.randn(n, 3, dtype=torch.float64)
    results = []
    for edges in (None, Graph.from_edges(pairs, n)):
        out = model(x, edges)
        results.append([out, *torch.autograd.grad(out, [x, *model.parameters()], cotangent)])
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("bias", [0.0, 2.5, -1.0])
def test_edges_in_dense_attention_raise_the_score_of_the_pairs_they_join(bias: float) -> None:
    torch.manual_seed(0)
    n, heads = 13, 2
    edges = torch.randint(0, n, (2, 30))
    graph = Graph.undirected_with_loops(edges, n)
    target, source = torch.randn(2, n, heads, dtype=torch.float64)
    value = torch.randn(n, heads, 3, dtype=torch.float64)
    joined = torch.zeros(n, n, 1, dtype=torch.float64)
    joined[graph.edge_index[1], graph.edge_index[0]] = 1.0
    inputs = [target, source, value, torch.full((heads,), bias, dtype=torch.float64)]
    results: list[list[Tensor]] = []
    for fast in (True, False):
        s, t, v, b = (x.clone().requires_grad_() for x in inputs)
        if fast:
            out = all_pairs_attention(s, t, v, 0.2, (EdgeProduct(graph), b))
        else:
            score = F.leaky_relu(s[:, None] + t[None], 0.2) + joined * b
            out = torch.einsum("ijh,jhd->ihd", score.softmax(1), v)
        out.square().sum().backward()
        results.append([out, *(x.grad for x in (s, t, v, b) if x.grad is not None)])
    assert len(results[0]) == 5
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_all_pairs_attention_neither_overflows_nor_loses_a_row_with_ties() -> None:
    score = torch.tensor([[400.0], [-400.0], [0.0], [0.0], [400.0]])
    value = torch.arange(5.0).view(5, 1, 1)
    dense = F.leaky_relu(score + score.T, 0.2).softmax(1) @ value[:, 0]
    fast = all_pairs_attention(score, score, value, 0.2)[:, 0]
    torch.testing.assert_close(fast, dense)


def test_dense_gat_refuses_dropout_on_weights_it_does_not_form() -> None:
    system = get_system("densegat")
    with pytest.raises(ValueError, match="attention_dropout must be 0 with Dense GAT"):
        system.build(system.configure(attention_dropout=0.5), 4, 3)


def test_graphsage_is_the_librarys_layers_on_the_raw_edges(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("graphsage", small)
    h = small.x
    for k, (conv, skip) in enumerate(zip(model.convs, model.skips, strict=True)):
        theirs = SAGEConv(h.shape[1], conv.out_channels)
        own = conv.lin.linear.weight if k == 0 else conv.lin.weight
        state = {"lin_l.weight": own, "lin_l.bias": conv.bias + skip.linear.bias}
        theirs.load_state_dict(state | {"lin_r.weight": skip.linear.weight})
        h = theirs(F.relu(h) if k else h, small.edge_index)
    torch.testing.assert_close(model(small.x, own_graph(small)), h, atol=1e-5, rtol=1e-5)


def test_graphsage_takes_the_weighted_mean_and_nothing_where_there_is_no_neighbour() -> None:
    edges, weight = torch.tensor([[1, 2, 0], [0, 0, 1]]), torch.tensor([1.0, 3.0, 2.0])
    graph = Graph.from_edges(edges, 4, weight, self_loops=True)
    dense = graph.neighbours_mean.dense()
    expected = torch.tensor([[0, 0.25, 0.75, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    torch.testing.assert_close(dense, expected)


def test_sgc_is_the_librarys_layer_and_the_closed_form(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("sgc", small, steps=3)
    layer = SGConv(6, 2, K=3)
    layer.lin = model.linear
    graph = own_graph(small)
    torch.testing.assert_close(model(small.x, graph), layer(small.x, small.edge_index))
    power = torch.linalg.matrix_power(graph.dense(), 3)
    expected = model.linear(power @ small.x)
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


def test_edge_product_and_its_gradients_are_those_of_the_dense_matrix(ring: Graph) -> None:
    plan = EdgeProduct(ring)
    weight = torch.rand(ring.num_edges, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, v: plan(w, v), (weight, x))
    dense = torch.zeros(6, 6, dtype=torch.float64)
    dense[ring.edge_index[1], ring.edge_index[0]] = weight.detach()
    torch.testing.assert_close(plan(weight, x), dense @ x)


@pytest.mark.parametrize("name", ["gcn-tuned", "gat-tuned", "nodeformer", "sgformer"])
def test_scaled_features_make_their_unit_irrelevant(
    name: str, small: Dataset, build: Any, own_graph: Any
) -> None:
    outputs: list[Tensor] = []
    for unit in (1.0, 0.01):
        data = replace(small, x=small.x * unit)
        model = build(name, data, scale_features=True)
        model.observe(Batch(data.x, data.y, None, torch.arange(3)))
        outputs.append(model(data.x, own_graph(data)))
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)


def test_edge_softmax_sums_to_one_at_every_target(ring: Graph) -> None:
    weight = edge_softmax(torch.randn(ring.num_edges, 2), ring.edge_index[1], 6)
    total = torch.zeros(6, 2).index_add(0, ring.edge_index[1], weight)
    torch.testing.assert_close(total, torch.ones(6, 2))

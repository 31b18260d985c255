"""Perceptrons, convolutions, labels and diffusions: the library's layers and closed forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch_geometric.nn as library
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.inits import glorot

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Dataset, Prediction
from difformer.systems import layers
from difformer.systems.gnn import EdgeGATConv
from difformer.systems.layers import EdgeProduct, FeatureLinear, edge_softmax
from difformer.systems.registry import get_system
from difformer.train.seeding import seeded
from difformer_paper.rivals import diffusions
from difformer_paper.rivals.attention import all_pairs_attention
from difformer_paper.rivals.diffusions import GRAND, ManiReg, diffuse, heat_kernel
from tests.systems.small import GRAPH, RING, SMALL, N, X, along, build, close, with_labels

EYE = torch.eye(N)
power = torch.linalg.matrix_power


def test_mlp_is_two_linear_layers_with_a_relu_between() -> None:
    model = build("mlp")
    close(model(X), model.rest[0](F.relu(model.first.linear(X))))


def test_glorot_draws_the_numbers_of_the_library() -> None:
    layer = FeatureLinear(41, 7, bias=False, init="glorot")
    with seeded(0):
        layer.reset_parameters()
    with seeded(0):
        theirs = torch.nn.Linear(41, 7, bias=False).weight  # draws once, as a reset does
        glorot(theirs)
    assert torch.equal(layer.linear.weight, theirs)


def test_gcn_and_gat_are_the_librarys_layers_on_the_raw_edges() -> None:
    gcn = [library.GCNConv(6, 8), library.GCNConv(8, 2)]
    gat = [library.GATConv(6, 4, heads=2), library.GATConv(8, 2, heads=1, concat=False)]
    for name, theirs, act, options in (
        ("gcn", gcn, F.relu, {"hidden_channels": 8}),
        ("gat", gat, F.elu, {"num_heads": 2, "hidden_channels": 4}),
    ):
        model = build(name, **options)
        with torch.no_grad():
            for layer, ours in zip(theirs, model.convs, strict=True):
                state = {k.replace("linear.", ""): v for k, v in ours.state_dict().items()}
                layer.load_state_dict({k: v for k, v in state.items() if k != "lin.scale"})
        expected = theirs[1](act(theirs[0](X, SMALL.edge_index)), SMALL.edge_index)
        for edges in (GRAPH, SMALL.edge_index):
            close(model(X, edges), expected)


def test_a_residual_gcn_adds_a_linear_map_of_each_layers_input() -> None:
    model = build("gcn", num_layers=1, residual=True, hidden_channels=2)
    conv, skip = model.convs[0], model.skips[0].linear
    close(model(X, GRAPH), GRAPH.propagate(conv.lin(X)) + conv.bias + skip(X))


def compare(results: list[Any]) -> None:
    """Outputs and gradients of a fast form and a slow one."""
    for fast, slow in zip(*results, strict=True):
        torch.testing.assert_close(fast, slow, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 61])
@pytest.mark.parametrize(("heads", "concat"), [(1, True), (3, True), (3, False)])
def test_attention_by_products_and_its_gradients_are_the_librarys(
    n: int, heads: int, concat: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "EDGE_CHUNK", 17)
    graph = Graph.from_edges(torch.randint(n, (2, 4 * n)), n)
    how: Any = {"heads": heads, "concat": concat, "add_self_loops": False}
    theirs, ours = (kind(4, 5, **how).double() for kind in (library.GATConv, EdgeGATConv))
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(n, 4, dtype=torch.float64, requires_grad=True)
    results = []
    for layer, edges in ((ours, EdgeProduct(graph)), (theirs, graph.edge_index)):
        out = layer(x, edges)
        results.append([out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])])
    compare(results)


@pytest.mark.parametrize("n", [1, 2, 7, 61])
@pytest.mark.parametrize("heads", [1, 3])
def test_dense_gat_is_graph_attention_along_every_pair(n: int, heads: int) -> None:
    system = get_system("densegat")
    options = {"hidden_channels": 5, "num_heads": heads, "out_heads": heads}
    model = system.build(system.configure(dropout=0.0, input_dropout=0.0, **options), 4, 3).double()
    x = (3 * torch.randn(n, 4, dtype=torch.float64)).requires_grad_()
    row = torch.arange(n)
    pairs = torch.stack([row.repeat(n), row.repeat_interleave(n)])
    cotangent = torch.randn(n, 3, dtype=torch.float64)
    results = []
    for edges in (None, Graph.from_edges(pairs, n)):
        out = model(x, edges)
        results.append([out, *torch.autograd.grad(out, [x, *model.parameters()], cotangent)])
    compare(results)
    with pytest.raises(ValueError, match="attention_dropout must be 0 with Dense GAT"):
        system.build(system.configure(attention_dropout=0.5), 4, 3)


@pytest.mark.parametrize("bias", [0.0, 2.5, -1.0])
def test_edges_in_dense_attention_raise_the_score_of_the_pairs_they_join(bias: float) -> None:
    torch.manual_seed(0)
    n, heads = 13, 2
    graph = Graph.undirected_with_loops(torch.randint(0, n, (2, 30)), n)
    target, source = torch.randn(2, n, heads, dtype=torch.float64)
    value = torch.randn(n, heads, 3, dtype=torch.float64)
    joined = along(graph).double().unsqueeze(-1)
    inputs = [target, source, value, torch.full((heads,), bias, dtype=torch.float64)]
    results: list[list[Tensor]] = []
    for fast in (True, False):
        s, t, v, b = (x.clone().requires_grad_() for x in inputs)
        if fast:
            out = all_pairs_attention(s, t, v, 0.2, (EdgeProduct(graph), b))
        else:
            score = F.leaky_relu(s[:, None] + t[None], 0.2) + joined * b
            out = torch.einsum("ijh,jhd->ihd", score.softmax(1), v)
        results.append([out, *torch.autograd.grad(out.square().sum(), (s, t, v, b))])
    compare(results)


def test_all_pairs_attention_neither_overflows_nor_loses_a_row_with_ties() -> None:
    score = torch.tensor([[400.0], [-400.0], [0.0], [0.0], [400.0]])
    value = torch.arange(5.0).view(5, 1, 1)
    dense = F.leaky_relu(score + score.T, 0.2).softmax(1) @ value[:, 0]
    close(all_pairs_attention(score, score, value, 0.2)[:, 0], dense)


def test_graphsage_is_the_librarys_layers_and_takes_weighted_means() -> None:
    model, h = build("graphsage"), X
    for k, (conv, skip) in enumerate(zip(model.convs, model.skips, strict=True)):
        theirs = library.SAGEConv(h.shape[1], conv.out_channels)
        own = conv.lin.linear.weight if k == 0 else conv.lin.weight
        state = {"lin_l.weight": own, "lin_l.bias": conv.bias + skip.linear.bias}
        theirs.load_state_dict(state | {"lin_r.weight": skip.linear.weight})
        h = theirs(F.relu(h) if k else h, SMALL.edge_index)
    close(model(X, GRAPH), h)
    edges, weight = torch.tensor([[1, 2, 0], [0, 0, 1]]), torch.tensor([1.0, 3.0, 2.0])
    graph = Graph.from_edges(edges, 4, weight, self_loops=True)
    expected = torch.tensor([[0, 0.25, 0.75, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    close(graph.neighbours_mean.dense(), expected)  # nothing where there is no neighbour


def test_edge_product_and_softmax_are_those_of_the_dense_matrix() -> None:
    plan = EdgeProduct(RING)
    weight = torch.rand(RING.num_edges, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, v: plan(w, v), (weight, x))
    close(plan(weight.float(), x.float()), along(RING, weight.float()) @ x.float())
    share = edge_softmax(torch.randn(RING.num_edges, 2), RING.edge_index[1], 6)
    close(torch.zeros(6, 2).index_add(0, RING.edge_index[1], share), torch.ones(6, 2))


@pytest.mark.parametrize("name", ["gcn-tuned", "gat-tuned", "nodeformer", "sgformer"])
def test_scaled_features_make_their_unit_irrelevant(name: str) -> None:
    outputs: list[Tensor] = []
    for unit in (1.0, 0.01):
        data = replace(SMALL, x=X * unit)
        model = build(name, data, scale_features=True)
        model.observe(Batch(data.x, data.y, None, torch.arange(3)))
        outputs.append(model(data.x, GRAPH))
    close(*outputs)


def test_label_propagation_tends_to_its_closed_form() -> None:
    batch, model = with_labels(torch.arange(10)), build("lp", steps=400, alpha=0.8)
    model.observe(batch)
    bare = Graph.from_edges(GRAPH.edge_index, N, self_loops=False).dense()
    labels = torch.zeros(N, 2)
    labels[torch.arange(10), SMALL.y[:10]] = 1.0
    limit = 0.2 * torch.linalg.solve(EYE - 0.8 * bare, labels)
    share, reached = limit / limit.sum(1, keepdim=True), limit.sum(1) > 0  # one row has no edge
    close(model(X, GRAPH).softmax(1)[reached], share[reached], 1e-4)


def test_label_propagation_leaves_a_row_no_label_reaches_undecided() -> None:
    alone = Dataset("alone", torch.zeros(3, 1), torch.tensor([0, 1, 1]), class_names=("a", "b"))
    graph = Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), 3, self_loops=True)
    model = build("lp", alone)
    model.observe(Batch(alone.x, torch.tensor([0, -1, -1]), graph, torch.tensor([0])))
    share = model(alone.x, graph).softmax(1)
    assert share[1, 0] > 0.9
    close(share[2], torch.tensor([0.5, 0.5]))


def test_manireg_penalty_is_the_laplacian_form_of_its_probabilities() -> None:
    prediction = build("manireg", dropout=0.0, penalty=3.0).train()(X, GRAPH)
    assert isinstance(prediction, Prediction)
    adjacency = along(GRAPH)
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    share = prediction.output.softmax(1)
    form = 2 * torch.trace(share.T @ laplacian @ share) / adjacency.sum()
    torch.testing.assert_close(prediction.penalty, 3.0 * form)
    assert ManiReg.roughness(torch.ones(N, 2), GRAPH) == 0


def test_appnp_is_the_librarys_propagation_of_the_perceptron() -> None:
    model = build("appnp", steps=7, alpha=0.3)
    close(model(X, GRAPH), library.APPNP(7, 0.3)(model.mlp(X), SMALL.edge_index))


def test_correct_and_smooth_is_the_librarys_on_the_raw_edges() -> None:
    rows = torch.arange(12)
    model = build("correct-smooth", steps=20, correct_alpha=0.7, smooth_alpha=0.6)
    model.observe(with_labels(rows))
    known = (SMALL.y[rows], rows, *gcn_norm(SMALL.edge_index, None, N))
    theirs = library.CorrectAndSmooth(20, 0.7, 20, 0.6, autoscale=True)
    with torch.no_grad():
        expected = theirs.smooth(theirs.correct(model.mlp(X).softmax(1), *known), *known)
        close(model(X, GRAPH).exp(), expected / expected.sum(1, keepdim=True))


def test_correct_and_smooth_keeps_answers_that_have_no_error() -> None:
    model = build("correct-smooth")
    model.observe(with_labels(torch.arange(12)))
    certain = F.one_hot(SMALL.y, 2).float()
    assert model.smooth(certain, GRAPH).isfinite().all()


def test_sgc_is_the_librarys_layer_and_the_closed_form() -> None:
    model, layer = build("sgc", steps=3), library.SGConv(6, 2, K=3)
    layer.lin = model.linear
    close(model(X, GRAPH), layer(X, SMALL.edge_index))
    close(model(X, GRAPH), model.linear(power(GRAPH.dense(), 3) @ X))


def test_dgc_is_the_power_of_its_euler_step_and_tends_to_the_heat_kernel() -> None:
    model, step = build("dgc", steps=7, time=2.1), 0.7 * EYE + 0.3 * GRAPH.dense()
    close(model(X, GRAPH), model.linear(power(step, 7) @ X))
    fine, kernel = build("dgc", steps=3000, time=2.1), torch.matrix_exp(2.1 * (GRAPH.dense() - EYE))
    close(fine(X, GRAPH), fine.linear(kernel @ X), 2e-3)


def test_graphheat_applies_the_matrix_exponential() -> None:
    value, dense = torch.randn(N, 3, dtype=torch.float64), GRAPH.dense().double()
    kernel = torch.matrix_exp(3.5 * (dense - EYE.double()))
    close(heat_kernel(GRAPH, value, 3.5), kernel @ value, 1e-6)
    model, kernel = build("graphheat", hidden_channels=5), kernel.float()
    close(model(X, GRAPH), kernel @ model.rest[0](F.relu(kernel @ model.first(X))))


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_gdc_keeps_the_largest_of_the_closed_form(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SMALL.edge_index is not None
    weight = torch.rand(SMALL.edge_index.shape[1])  # no two entries are equal, so no ties
    graph = Graph.from_edges(SMALL.edge_index, N, weight, undirected=True, self_loops=True)
    options: Any = {"diffusion": kind, "alpha": 0.2, "time": 3.0, "top_k": 5}
    diffused = diffuse(graph, get_system("gdc").configure(**options))
    dense = graph.dense()
    full = torch.linalg.inv(EYE - 0.8 * dense) if kind == "ppr" else dense - EYE
    full = 0.2 * full if kind == "ppr" else torch.matrix_exp(3.0 * full)
    top = full >= full.topk(5, dim=0).values[-1] - 1e-7
    # PyG's [row, column] is [source, target]: what enters a row sums to one.
    expected = torch.where(top, full, 0.0)
    expected = (expected / expected.sum(0)).T
    torch.testing.assert_close(diffused.dense(), expected, atol=1e-5, rtol=1e-4)
    model = build("gdc", **options)
    close(model(X, graph), model.gcn(X, diffused))
    monkeypatch.setattr(diffusions, "BLOCK", 3 * N)  # in blocks, as at once
    close(diffuse(graph, get_system("gdc").configure(**options)).dense(), diffused.dense())


def attention(model: GRAND, z: Tensor) -> Tensor:
    return along(GRAPH, model.attention(z, GRAPH))


def test_linear_grand_solves_its_linear_equation() -> None:
    model = build("grand-l", method="dopri5", tolerance=1e-6, time=2.0, learned_scale=False)
    z = torch.randn(N, 64)
    dense = attention(model, z)
    close(dense.sum(1), torch.ones(N))
    close(model.diffuse(z, GRAPH), torch.matrix_exp(2.0 * (dense - EYE)) @ z, 1e-4)


def test_nonlinear_grand_takes_the_attention_of_the_moving_state() -> None:
    model = build("grand", method="euler", step=0.5, time=1.0, learned_scale=False)
    z = first = torch.randn(N, 64)
    for _ in range(2):
        z = z + 0.5 * (attention(model, z) @ z - z)
    close(model.diffuse(first, GRAPH), z)


@pytest.mark.parametrize("name", ["grand-l", "grandpp"])
def test_grand_learns_how_fast_it_moves_and_how_strong_its_source_is(name: str) -> None:
    model = build(name, method="dopri5", tolerance=1e-6, time=2.0)
    assert torch.sigmoid(model.speed).item() == 0.5
    assert model.strength.item() == 0
    model.observe(with_labels(torch.tensor([0, 3, 4])))
    with torch.no_grad():
        model.speed.fill_(0.3)
        model.strength.fill_(0.7)
        if model.trust is not None:
            model.trust.fill_(0.4)
    z = torch.randn(N, 64)
    operator = torch.sigmoid(torch.tensor(0.3)) * (attention(model, z) - EYE)
    source = 0.7 * z + (0.4 * model.source(z) if name == "grandpp" else 0)
    # ∂X/∂t = M X + S is linear: [X; I] obeys one matrix exponential, of [[M, S], [0, 0]].
    block = torch.zeros(N + 64, N + 64)
    block[:N, :N], block[:N, N:] = operator, source
    exact = (torch.matrix_exp(2.0 * block) @ torch.cat([z, torch.eye(64)]))[:N]
    close(model.diffuse(z, GRAPH), exact, 1e-4)


def test_grand_plus_plus_feeds_labelled_rows_only() -> None:
    model, rows = build("grandpp", source_dropout=0.5), torch.tensor([0, 3, 4])
    with pytest.raises(ValueError, match="observe"):
        model(X, GRAPH)
    model.observe(with_labels(rows))
    z = torch.randn(N, 64)
    source = model.source(z)
    close(source[rows], z[rows] - z[rows].mean(0))
    assert float(source.abs().sum(1)[[1, 2, 5]].sum()) == 0
    close(source.sum(0), torch.zeros(64))
    model.train()  # sources come and go, a row's as a whole
    share = torch.stack([model.source(z)[rows] / source[rows] for _ in range(200)])
    assert set(share.round(decimals=4).unique().tolist()) == {0.0, 1.0}
    close(share, share[..., :1].expand_as(share))


def test_a_row_that_is_a_source_of_grand_plus_plus_teaches_nothing_in_that_step() -> None:
    model, rows = build("grandpp", source_dropout=0.5).train(), torch.arange(6)
    model.observe(with_labels(rows))

    def teaching() -> float:
        """One for every row that passes its gradient on."""
        (slope,) = torch.autograd.grad(model(X, GRAPH)[rows].sum(), [model.decode.bias])
        return float(slope[0])

    judged = [teaching() for _ in range(20)]
    assert len(set(judged)) > 2  # another draw in each step
    assert 1.5 < sum(judged) / 20 < 4.5
    model.eval()
    assert teaching() == 6

"""Each method against a closed form, the library's own layer, or a step computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import transforms
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SGConv
from torch_geometric.nn.models import SGFormer as LibrarySGFormer

from difformer.baselines import get_system, graph_for
from difformer.baselines.gdc import diffuse
from difformer.baselines.glcn import GLCN
from difformer.baselines.grand import GRAND
from difformer.baselines.heat import heat_kernel
from difformer.baselines.layers import EdgeProduct, edge_softmax
from difformer.baselines.lds import LDS, adjacency_of, draw_edges, straight_through
from difformer.baselines.manireg import ManiReg
from difformer.baselines.nodeformer import NodeFormerLayer, edge_score, positive_features
from difformer.core.graph import Graph
from difformer.data import Dataset
from difformer.data.batch import Batch, Prediction
from difformer.train import objective_for, seeded


def build(name: str, dataset: Dataset, **options: object) -> nn.Module:
    system = get_system(name)
    with seeded(3):
        return system.build(system.configure(**options), dataset.num_features, 2).eval()


def own_graph(dataset: Dataset) -> Graph:
    system = get_system("gcn")
    graph = graph_for(system, system.configure(), dataset)
    assert graph is not None
    return graph


def with_labels(dataset: Dataset, rows: torch.Tensor) -> Batch:
    y = torch.full_like(dataset.y, -1)
    y[rows] = dataset.y[rows]
    return Batch(dataset.x, y, own_graph(dataset), rows)


def test_mlp_is_two_linear_layers_with_a_relu_between(small: Dataset) -> None:
    model = build("mlp", small)
    first, last = model.first.linear, model.rest[0]
    expected = last(F.relu(first(small.x)))
    torch.testing.assert_close(model(small.x), expected)


def test_label_propagation_tends_to_its_closed_form(small: Dataset) -> None:
    batch = with_labels(small, torch.arange(10))
    model = build("lp", small, steps=400, alpha=0.8)
    model.observe(batch)  # type: ignore[operator]
    bare = Graph.from_edges(batch.graph.edge_index, small.num_rows, self_loops=False).dense()
    labels = torch.zeros(small.num_rows, 2)
    labels[torch.arange(10), small.y[:10]] = 1.0
    limit = 0.2 * torch.linalg.solve(torch.eye(small.num_rows) - 0.8 * bare, labels)
    share = limit / limit.sum(1, keepdim=True)
    output = model(small.x, batch.graph)
    reached = limit.sum(1) > 0  # one row has no edge
    torch.testing.assert_close(output.softmax(1)[reached], share[reached], atol=1e-4, rtol=1e-4)


def test_label_propagation_leaves_a_row_no_label_reaches_undecided() -> None:
    alone = Dataset("alone", torch.zeros(3, 1), torch.tensor([0, 1, 1]), class_names=("a", "b"))
    graph = Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), 3, self_loops=True)
    model = build("lp", alone)
    model.observe(Batch(alone.x, torch.tensor([0, -1, -1]), graph, torch.tensor([0])))  # type: ignore[operator]
    share = model(alone.x, graph).softmax(1)
    assert share[1, 0] > 0.9
    torch.testing.assert_close(share[2], torch.tensor([0.5, 0.5]))


def test_manireg_penalty_is_the_laplacian_form_of_its_probabilities(small: Dataset) -> None:
    model = build("manireg", small, dropout=0.0, penalty=3.0)
    graph = own_graph(small)
    prediction = model.train()(small.x, graph)
    assert isinstance(prediction, Prediction)
    adjacency = torch.zeros(small.num_rows, small.num_rows)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1.0
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    share = prediction.output.softmax(1)
    form = 2 * torch.trace(share.T @ laplacian @ share) / adjacency.sum()
    torch.testing.assert_close(prediction.penalty, 3.0 * form)
    assert ManiReg.roughness(torch.ones(small.num_rows, 2), graph) == 0


@pytest.mark.parametrize("prepared", [True, False])
def test_gcn_is_the_librarys_layers_on_the_raw_edges(small: Dataset, prepared: bool) -> None:
    model = build("gcn", small)
    layers = [GCNConv(6, 64), GCNConv(64, 2)]
    with torch.no_grad():
        for layer, ours in zip(layers, model.convs, strict=True):
            layer.lin.weight.copy_(next(p for n, p in ours.named_parameters() if "weight" in n))
            layer.bias.copy_(ours.bias)
    expected = layers[1](F.relu(layers[0](small.x, small.edge_index)), small.edge_index)
    edges = own_graph(small) if prepared else small.edge_index
    torch.testing.assert_close(model(small.x, edges), expected, atol=1e-5, rtol=1e-5)


def test_gat_is_the_librarys_layers_on_the_raw_edges(small: Dataset) -> None:
    model = build("gat", small, num_heads=2, hidden_channels=4)
    layers = [GATConv(6, 4, heads=2), GATConv(8, 2, heads=1, concat=False)]
    with torch.no_grad():
        for layer, ours in zip(layers, model.convs, strict=True):
            layer.lin.weight.copy_(next(p for n, p in ours.named_parameters() if "weight" in n))
            for name in ("att_src", "att_dst", "bias"):
                getattr(layer, name).copy_(getattr(ours, name))
    expected = layers[1](F.elu(layers[0](small.x, small.edge_index)), small.edge_index)
    torch.testing.assert_close(model(small.x, own_graph(small)), expected, atol=1e-5, rtol=1e-5)


def test_a_residual_gcn_adds_a_linear_map_of_each_layers_input(small: Dataset) -> None:
    model = build("gcn", small, num_layers=1, residual=True, hidden_channels=2)
    graph = own_graph(small)
    conv, skip = model.convs[0], model.skips[0].linear
    expected = graph.propagate(conv.lin(small.x)) + conv.bias + skip(small.x)
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


def test_dense_gat_sees_every_pair(small: Dataset) -> None:
    system = get_system("densegat")
    graph = graph_for(system, system.configure(), small)
    assert graph is not None
    assert graph.num_edges == small.num_rows**2


def test_sgc_is_the_librarys_layer_and_the_closed_form(small: Dataset) -> None:
    model = build("sgc", small, steps=3)
    layer = SGConv(6, 2, K=3)
    layer.lin = model.linear
    graph = own_graph(small)
    torch.testing.assert_close(model(small.x, graph), layer(small.x, small.edge_index))
    power = torch.linalg.matrix_power(graph.dense(), 3)
    expected = model.linear(power @ small.x)
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


def test_dgc_is_the_power_of_its_euler_step_and_tends_to_the_heat_kernel(small: Dataset) -> None:
    graph, n = own_graph(small), small.num_rows
    model = build("dgc", small, steps=7, time=2.1)
    step = 0.7 * torch.eye(n) + 0.3 * graph.dense()
    expected = model.linear(torch.linalg.matrix_power(step, 7) @ small.x)
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)
    fine = build("dgc", small, steps=3000, time=2.1)
    kernel = torch.matrix_exp(2.1 * (graph.dense() - torch.eye(n)))
    torch.testing.assert_close(
        fine(small.x, graph), fine.linear(kernel @ small.x), atol=2e-3, rtol=2e-3
    )


def test_graphheat_applies_the_matrix_exponential(small: Dataset) -> None:
    graph, n = own_graph(small), small.num_rows
    value = torch.randn(n, 3, dtype=torch.float64)
    kernel = torch.matrix_exp(3.5 * (graph.dense().double() - torch.eye(n, dtype=torch.float64)))
    torch.testing.assert_close(heat_kernel(graph, value, 3.5), kernel @ value, atol=1e-6, rtol=1e-6)
    model = build("graphheat", small, hidden_channels=5)
    kernel = kernel.float()
    hidden = F.relu(kernel @ model.first(small.x))
    expected = kernel @ model.rest[0](hidden)
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["ppr", "heat"])
def test_gdc_keeps_the_largest_of_the_closed_form(small: Dataset, kind: str) -> None:
    assert small.edge_index is not None
    n = small.num_rows
    weight = torch.rand(small.edge_index.shape[1])  # no two entries are equal, so no ties
    graph = Graph.from_edges(small.edge_index, n, weight, undirected=True, self_loops=True)
    config = get_system("gdc").configure(diffusion=kind, alpha=0.2, time=3.0, top_k=5)
    diffused = diffuse(graph, config)
    dense, eye = graph.dense(), torch.eye(n)
    full = (
        0.2 * torch.linalg.inv(eye - 0.8 * dense)
        if kind == "ppr"
        else torch.matrix_exp(3.0 * (dense - eye))
    )
    top = full >= full.topk(5, dim=0).values[-1] - 1e-7
    # PyG's [row, column] is [source, target]: what enters a row sums to one.
    expected = torch.where(top, full, 0.0)
    expected = (expected / expected.sum(0)).T
    torch.testing.assert_close(diffused.dense(), expected, atol=1e-5, rtol=1e-4)


def test_gdc_is_the_librarys_transform_then_its_layers(small: Dataset) -> None:
    model = build("gdc", small, alpha=0.1, top_k=6)
    transform = transforms.GDC(
        diffusion_kwargs={"method": "ppr", "alpha": 0.1},
        sparsification_kwargs={"method": "topk", "k": 6, "dim": 0},
    )
    data = transform(Data(edge_index=small.edge_index, num_nodes=small.num_rows))
    layers = [GCNConv(6, 64, normalize=False), GCNConv(64, 2, normalize=False)]
    with torch.no_grad():
        for layer, ours in zip(layers, model.gcn.convs, strict=True):
            layer.lin.weight.copy_(next(p for n, p in ours.named_parameters() if "weight" in n))
    hidden = F.relu(layers[0](small.x, data.edge_index, data.edge_attr))
    expected = layers[1](hidden, data.edge_index, data.edge_attr)
    torch.testing.assert_close(model(small.x, own_graph(small)), expected, atol=1e-5, rtol=1e-4)


def test_edge_product_and_its_gradients_are_those_of_the_dense_matrix(ring: Graph) -> None:
    plan = EdgeProduct(ring)
    weight = torch.rand(ring.num_edges, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w, v: plan(w, v), (weight, x))
    dense = torch.zeros(6, 6, dtype=torch.float64)
    dense[ring.edge_index[1], ring.edge_index[0]] = weight.detach()
    torch.testing.assert_close(plan(weight, x), dense @ x)


def test_glcn_weights_are_its_equation_on_one_row(small: Dataset) -> None:
    model = build("glcn", small, gamma=0.5, beta=0.25)
    assert isinstance(model, GLCN)
    graph = own_graph(small)
    weight, loss = model.learn(small.x, graph)
    source, target = graph.edge_index
    p = small.x @ model.project.linear.weight.T
    mine = target == 7
    score = F.relu((p[source[mine]] - p[7]).abs() @ model.score).squeeze(1)
    torch.testing.assert_close(weight[mine], score.softmax(0))
    gap = (p[source] - p[target]).square().sum(1)
    total = (weight * gap).sum() + 0.5 * weight.square().sum() + 0.25 * (weight - 1).square().sum()
    torch.testing.assert_close(loss, total / small.num_rows)


def test_glcn_convolves_on_the_symmetrised_normalised_weights(small: Dataset) -> None:
    model, graph = build("glcn", small), own_graph(small)
    weight, _ = model.learn(small.x, graph)  # type: ignore[operator]
    dense = torch.zeros(small.num_rows, small.num_rows)
    dense[graph.edge_index[1], graph.edge_index[0]] = weight.detach()
    dense = (dense + dense.T) / 2
    scale = dense.sum(1).rsqrt()
    dense = dense * scale.unsqueeze(1) * scale
    expected = dense @ model.rest[0](F.relu(dense @ model.first(small.x)))
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


def test_linear_grand_solves_its_linear_equation(small: Dataset) -> None:
    model = build("grand-l", small, method="dopri5", tolerance=1e-6, time=2.0)
    assert isinstance(model, GRAND)
    graph, n = own_graph(small), small.num_rows
    z = torch.randn(n, 64)
    dense = torch.zeros(n, n)
    dense[graph.edge_index[1], graph.edge_index[0]] = model.attention(z, graph).detach()
    torch.testing.assert_close(dense.sum(1), torch.ones(n))
    exact = torch.matrix_exp(2.0 * (dense - torch.eye(n))) @ z
    torch.testing.assert_close(model.diffuse(z, graph), exact, atol=1e-4, rtol=1e-4)


def test_nonlinear_grand_takes_the_attention_of_the_moving_state(small: Dataset) -> None:
    model = build("grand", small, method="euler", step=0.5, time=1.0)
    assert isinstance(model, GRAND)
    graph, n = own_graph(small), small.num_rows
    z = first = torch.randn(n, 64)
    for _ in range(2):
        dense = torch.zeros(n, n)
        dense[graph.edge_index[1], graph.edge_index[0]] = model.attention(z, graph).detach()
        z = z + 0.5 * (dense @ z - z)
    torch.testing.assert_close(model.diffuse(first, graph), z, atol=1e-5, rtol=1e-5)


def test_grand_plus_plus_feeds_labelled_rows_only(small: Dataset) -> None:
    model = build("grandpp", small)
    assert isinstance(model, GRAND)
    with pytest.raises(ValueError, match="observe"):
        model(small.x, own_graph(small))
    rows = torch.tensor([0, 3, 4])
    model.observe(with_labels(small, rows))
    z = torch.randn(small.num_rows, 64)
    source = model.source(z)
    torch.testing.assert_close(source[rows], z[rows] - z[rows].mean(0))
    assert float(source.abs().sum(1)[[1, 2, 5]].sum()) == 0
    torch.testing.assert_close(source.sum(0), torch.zeros(64), atol=1e-5, rtol=0)


def test_lds_hypergradient_is_that_of_a_finite_difference() -> None:
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, -1])
    row = torch.arange(5)
    graph = Graph.from_edges(torch.stack([row, (row + 1) % 5]), 5, undirected=True, self_loops=True)
    config = get_system("lds").configure(dropout=0.0, unroll=1, inner_lr=0.3, outer_share=0.5)
    with seeded(0):
        model = LDS(3, 2, config).double()
    batch = Batch(x, y, graph, torch.arange(4))
    model.observe(batch)
    model.theta = model.theta.double()  # zeros and ones: every sample is the graph itself
    objective = objective_for("multiclass")
    slope = model.hypergradient(x, batch, objective)
    inner, outer = model._inner, model._outer

    def outer_loss(theta: torch.Tensor) -> torch.Tensor:
        edges = theta + torch.eye(5, dtype=torch.float64)
        scale = edges.sum(1).rsqrt()
        adjacency = edges * scale.unsqueeze(1) * scale
        w = {n: p.detach().clone().requires_grad_() for n, p in model.gcn.named_parameters()}
        call = torch.func.functional_call
        loss = F.cross_entropy(call(model.gcn, w, (x, adjacency))[inner], y[inner])
        steps = torch.autograd.grad(loss, list(w.values()))
        moved = {n: p - 0.3 * g for (n, p), g in zip(w.items(), steps, strict=True)}
        return F.cross_entropy(call(model.gcn, moved, (x, adjacency))[outer], y[outer]).detach()

    for i, j in ((0, 1), (0, 2), (3, 1)):
        bump = torch.zeros(5, 5, dtype=torch.float64)
        bump[i, j] = 1e-6
        change = (outer_loss(model.theta + bump) - outer_loss(model.theta - bump)) / 2e-6
        assert float(change) == pytest.approx(float(slope[i, j]), abs=1e-6)


def test_lds_samples_edges_at_their_probability() -> None:
    theta = torch.full((60, 60), 0.3).fill_diagonal_(0.0)
    draw = torch.Generator().manual_seed(0)
    edges = draw_edges(theta, draw)
    assert edges.shape[1] / (60 * 59) == pytest.approx(0.3, abs=0.03)
    assert set(map(tuple, edges.T.tolist())) == {(b, a) for a, b in edges.T.tolist()}


def test_lds_certain_edges_give_the_graph_itself(ring: Graph) -> None:
    sample = straight_through(adjacency_of(ring).requires_grad_())
    torch.testing.assert_close(sample.detach(), ring.dense())


def test_nodeformer_features_estimate_the_softmax_kernel() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (0.7 * torch.randn(12, 1, 4, generator=generator) for _ in range(2))
    projection = torch.randn(60_000, 4, generator=generator)
    fq = positive_features(q, projection, query=True).squeeze(1)
    fk = positive_features(k, projection, query=False).squeeze(1)
    estimate = fq @ fk.T
    estimate = estimate / estimate.sum(1, keepdim=True)
    exact = (q.squeeze(1) @ k.squeeze(1).T / math.sqrt(4)).softmax(1)
    torch.testing.assert_close(estimate, exact, atol=0.01, rtol=0.1)


def test_nodeformer_attends_as_its_dense_form_and_gumbel_noise_picks_keys() -> None:
    config = get_system("nodeformer").configure(num_heads=2, features=8, gumbels=3, bias_order=0)
    with seeded(0):
        layer = NodeFormerLayer(4, config)
    fq, fk, v = (torch.rand(9, 2, 8), torch.rand(9, 2, 8), torch.randn(9, 2, 4))
    share = torch.einsum("nhm,jhm->nhj", fq, fk)
    share = share / share.sum(-1, keepdim=True)
    expected = torch.einsum("nhj,jhd->nhd", share, v)
    torch.testing.assert_close(layer.eval().attend(fq, fk, v), expected)
    same = torch.ones_like(v)  # an average of equal values, whatever the noise
    torch.testing.assert_close(layer.train().attend(fq, fk, same), same, atol=1e-4, rtol=1e-4)


def test_nodeformer_edge_score_is_its_equation(ring: Graph) -> None:
    fq, fk = torch.rand(6, 1, 5), torch.rand(6, 1, 5)
    share = (fq[:, 0] @ fk[:, 0].T) / (fq[:, 0] @ fk[:, 0].sum(0)).unsqueeze(1)
    source, target = ring.edge_index
    expected = (share[target, source].log() / 3).mean()  # every row has three edges
    torch.testing.assert_close(edge_score(fq, fk, ring), expected)


def test_sgformer_is_the_librarys_model(small: Dataset) -> None:
    options = {"hidden_channels": 8, "graph_weight": 0.7, "graph_layers": 3}
    model = build("sgformer", small, backbone="residual", **options)
    library = LibrarySGFormer(
        6, 8, 2, trans_num_layers=1, gnn_num_layers=3, graph_weight=0.7
    ).eval()
    state = model.model.state_dict()
    state |= {
        f"{part}.fcs.0.{kind}": getattr(layer.linear, kind)
        for part, layer in (
            ("trans_conv", model.attention_input),
            ("graph_conv", model.graph_input),
        )
        for kind in ("weight", "bias")
    }
    library.load_state_dict(state)
    zeros = torch.zeros(small.num_rows, dtype=torch.int64)
    expected = library(small.x, small.edge_index, zeros)
    torch.testing.assert_close(model(small.x, own_graph(small)), expected, atol=1e-5, rtol=1e-5)


def test_sgformer_with_a_plain_backbone_is_attention_beside_a_gcn(small: Dataset) -> None:
    model = build("sgformer", small, hidden_channels=8, graph_weight=1.0)
    gcn = model.model.graph_conv
    expected = torch.log_softmax(model.model.fc(gcn(small.x, own_graph(small))), 1)
    torch.testing.assert_close(model(small.x, own_graph(small)), expected)


@pytest.mark.parametrize("name", ["gcn-tuned", "gat-tuned", "nodeformer", "sgformer"])
def test_scaled_features_make_their_unit_irrelevant(name: str, small: Dataset) -> None:
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

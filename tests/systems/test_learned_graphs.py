"""NodeFormer, SGFormer, GLCN and LDS: dense forms, the library's model, finite differences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn.models import SGFormer as LibrarySGFormer

from difformer.core.graph import Graph
from difformer.data.dataset import Batch
from difformer.data.split import Split
from difformer.systems.registry import get_system
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer_paper.rivals import learned, nodeformer
from difformer_paper.rivals.learned import LDS, DrawnGraph
from difformer_paper.rivals.nodeformer import (
    NodeFormerLayer,
    edge_score,
    noisy_average,
    positive_features,
    wider,
)
from tests.systems.small import GRAPH, RING, SMALL, N, X, along, build, close, run

CLASSES = objective_for("multiclass")


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


def nodeformer_layer(**options: int) -> NodeFormerLayer:
    with seeded(0):
        return NodeFormerLayer(4, get_system("nodeformer").configure(num_heads=2, **options))


def test_nodeformer_attends_as_its_dense_form_and_gumbel_noise_picks_keys() -> None:
    layer = nodeformer_layer(features=8, gumbels=3, bias_order=0)
    fq, fk, v = (torch.rand(9, 2, 8), torch.rand(9, 2, 8), torch.randn(9, 2, 4))
    share = torch.einsum("nhm,jhm->nhj", fq, fk)
    expected = torch.einsum("nhj,jhd->nhd", share / share.sum(-1, keepdim=True), v)
    close(layer.eval().attend(fq, fk, v), expected)
    same = torch.ones_like(v)  # an average of equal values, whatever the noise
    close(layer.train().attend(fq, fk, same), same, 1e-4)


def test_nodeformer_averages_samples_in_parts_as_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, h, m, d, g = 13, 2, 4, 3, 5
    monkeypatch.setattr(nodeformer, "NUMBERS_AT_ONCE", 6 * h * g * d)  # six rows at a time
    draw = torch.Generator().manual_seed(0)
    sizes = (m, m, d, g)
    fq, fk, v, e = (torch.rand(n, h, k, dtype=torch.float64, generator=draw) for k in sizes)
    inputs = [t.requires_grad_() for t in (fq, fk, v)]
    share = torch.einsum("ihm,jhm,jhg->hgij", fq, fk, e)
    share = share / (share.sum(-1, keepdim=True) + nodeformer.EPS**2)
    expected = torch.einsum("hgij,jhd->ihd", share, v) / g
    found = noisy_average(fq, fk, v, e)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(found.shape, dtype=torch.float64, generator=draw)
    slow, fast = (torch.autograd.grad((z * weight).sum(), inputs) for z in (expected, found))
    torch.testing.assert_close(fast, slow)


@pytest.mark.parametrize("directed", [False, True])
def test_nodeformer_widens_a_graph_to_rows_two_and_four_edges_apart(directed: bool) -> None:
    edges = torch.randint(17, (2, 20), generator=torch.Generator().manual_seed(0))
    graph = Graph.from_edges(edges, 17, undirected=not directed, self_loops=True)
    first, *others = wider(graph, 3)
    assert first is graph
    for found, steps in zip(others, (2, 4), strict=True):
        joined = (torch.linalg.matrix_power(along(graph), steps) > 0).float()
        expected = joined.sum(1, keepdim=True).rsqrt() * joined * joined.sum(0).rsqrt()
        close(found.adjacency.to_dense(), expected)
        assert found.symmetric is not directed


def test_nodeformer_moves_its_values_along_the_graph_and_scores_its_edges() -> None:
    layer, z = nodeformer_layer(), torch.randn(6, 4)
    close(layer.moved(z, RING), RING.propagate(layer.value(z)).view(6, 2, 4))
    fq, fk = torch.rand(6, 1, 5), torch.rand(6, 1, 5)
    share = (fq[:, 0] @ fk[:, 0].T) / (fq[:, 0] @ fk[:, 0].sum(0)).unsqueeze(1)
    source, target = RING.edge_index
    expected = (share[target, source].log() / 3).mean()  # every row has three edges
    close(edge_score(fq, fk, RING), expected)


def test_sgformer_is_the_librarys_model() -> None:
    options: Any = {"hidden_channels": 8, "graph_weight": 0.7, "graph_layers": 3}
    model = build("sgformer", backbone="residual", **options)
    theirs = LibrarySGFormer(6, 8, 2, trans_num_layers=1, gnn_num_layers=3, graph_weight=0.7)
    state = model.model.state_dict()
    for part, layer in (
        ("trans_conv", model.attention_input),
        ("graph_conv", model.graph_input),
    ):
        state |= {f"{part}.fcs.0.{k}": getattr(layer.linear, k) for k in ("weight", "bias")}
    theirs.load_state_dict(state)
    zeros = torch.zeros(N, dtype=torch.int64)
    close(model(X, GRAPH), theirs.eval()(X, SMALL.edge_index, zeros))


def test_sgformer_with_a_plain_backbone_is_attention_beside_a_gcn() -> None:
    model = build("sgformer", hidden_channels=8, graph_weight=1.0)
    gcn = model.model.graph_conv
    close(model(X, GRAPH), torch.log_softmax(model.model.fc(gcn(X, GRAPH)), 1))


def test_glcn_weights_are_its_equation_on_one_row() -> None:
    model = build("glcn", gamma=0.5, beta=0.25)
    weight, loss = model.learn(X, GRAPH)
    source, target = GRAPH.edge_index
    p, mine = X @ model.project.linear.weight.T, target == 7
    score = F.relu((p[source[mine]] - p[7]).abs() @ model.score).squeeze(1)
    close(weight[mine], score.softmax(0))
    gap = (p[source] - p[target]).square().sum(1)
    total = (weight * gap).sum() + 0.5 * weight.square().sum() + 0.25 * (weight - 1).square().sum()
    close(loss, total / N)


def test_glcn_makes_gaps_in_chunks_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learned, "EDGE_CHUNK", 5)
    p = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, dtype=torch.float64, requires_grad=True)
    source, target = torch.randint(7, (2, 13))
    gap = p[source] - p[target]
    score, square = learned.edge_gaps(p, a, source, target)
    torch.testing.assert_close(score, gap.abs() @ a)
    torch.testing.assert_close(square, gap.square().sum(1))
    assert torch.autograd.gradcheck(lambda p, a: learned.edge_gaps(p, a, source, target), (p, a))


def test_glcn_convolves_on_the_symmetrised_normalised_weights() -> None:
    model = build("glcn")
    dense = along(GRAPH, model.learn(X, GRAPH)[0])
    dense = (dense + dense.T) / 2
    dense = dense * dense.sum(1, keepdim=True).rsqrt() * dense.sum(1).rsqrt()
    close(model(X, GRAPH), dense @ model.rest[0](F.relu(dense @ model.first(X))))


def lds(n: int, **options: Any) -> tuple[LDS, Batch, Tensor]:
    """A model in float64 that has observed a ring of n rows, all but the last labelled, and θ."""
    row = torch.arange(n)
    ring = torch.stack([row, (row + 1) % n])
    graph = Graph.from_edges(ring, n, undirected=True, self_loops=True)
    x = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    config = get_system("lds").configure(dropout=0.0, inner_lr=0.3, outer_share=0.5, **options)
    with seeded(0):
        model = LDS(3, 2, config).double()
    batch = Batch(x, torch.where(row < n - 1, row % 2, -1), graph, row[:-1])
    model.observe(batch)
    model.theta = model.theta.double()
    return model, batch, dense_theta(model, n)


def dense_theta(model: LDS, n: int) -> Tensor:
    theta = torch.zeros(n, n, dtype=model.theta.dtype)
    theta.index_put_((model.pairs[0], model.pairs[1]), model.theta, accumulate=True)
    return theta + theta.T


def dense_hypergradient(model: LDS, batch: Batch, theta: Tensor) -> Tensor:
    """The same by autograd through n × n matrices; θ holds zeros and ones, so nothing is drawn."""
    n, call = len(theta), torch.func.functional_call
    theta = theta.clone().requires_grad_()

    def loss(w: dict[str, Tensor], rows: Tensor) -> Tensor:
        edges = theta + torch.eye(n, dtype=theta.dtype)
        adjacency = edges * edges.sum(1, keepdim=True).rsqrt() * edges.sum(1).rsqrt()
        output = call(model.gcn, w, (batch.x, lambda value: adjacency @ value))
        return F.cross_entropy(output[rows], batch.y[rows])

    w = dict(model.gcn.named_parameters())
    for _ in range(model.config.unroll):
        steps = torch.autograd.grad(loss(w, model._inner), list(w.values()), create_graph=True)
        w = {name: p - 0.3 * g for (name, p), g in zip(w.items(), steps, strict=True)}
    slope = torch.autograd.grad(loss(w, model._outer), theta)[0]
    return (slope + slope.T) / 2


@pytest.mark.parametrize("unroll", [0, 1, 2])
def test_lds_hypergradient_of_all_pairs_is_that_of_dense_autograd(unroll: int) -> None:
    model, batch, theta = lds(7, unroll=unroll)
    slope = model.hypergradient(batch.x, batch, CLASSES)
    expected = dense_hypergradient(model, batch, theta)
    row, col = torch.triu_indices(7, 7, 1)
    torch.testing.assert_close(slope.at(row, col), expected[row, col])
    assert float(expected[row, col].abs().min()) > 0


def test_lds_keeping_all_pairs_moves_each_down_its_slope() -> None:
    model, batch, before = lds(6, top_k=6, theta_lr=3.0)
    model.move(model.hypergradient(batch.x, batch, CLASSES))
    expected = (before - 3.0 * dense_hypergradient(model, batch, before)).clamp(0, 1)
    torch.testing.assert_close(dense_theta(model, 6), expected.fill_diagonal_(0.0))


def test_lds_keeps_the_largest_chances_in_a_room_of_fixed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learned, "BLOCK", 10)  # several blocks of rows
    model, batch, before = lds(9, top_k=1, theta_lr=5.0)
    room = model.theta.numel()
    model.move(model.hypergradient(batch.x, batch, CLASSES))
    after, row = dense_theta(model, 9), torch.arange(9)
    assert model.theta.numel() == room == 9 + 9
    full = dense_hypergradient(model, batch, before) + torch.diag(torch.full((9,), torch.inf))
    best = full.argmin(1)
    raised = full[row, best] < 0
    wanted = (before - 5.0 * full).clamp(0, 1)
    torch.testing.assert_close(after[row, best][raised], wanted[row, best][raised])
    assert int((after > 0).sum()) <= 2 * room


def test_lds_draws_edges_at_their_probability() -> None:
    pairs, draw = torch.triu_indices(60, 60, 1), torch.Generator().manual_seed(0)
    dense = DrawnGraph.draw(pairs, torch.full((pairs.shape[1],), 0.3), 60, draw).matrix.csr
    edges = dense.to_dense() > 0
    assert (int(edges.sum()) - 60) / (60 * 59) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(edges, edges.T)
    certain = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 5]])
    close(DrawnGraph.draw(certain, torch.ones(6), 6).matrix.csr.to_dense(), RING.dense())


def test_lds_takes_half_of_the_validation_labels_by_its_papers_protocol() -> None:
    """Those rows move the graph, no longer count as validation, and no test label is seen."""
    split = Split("s", *torch.arange(N).split([10, 10, N - 20]))
    results = list[Any]()
    for outer, flip in (("training", False), ("validation", False), ("validation", True)):
        y = SMALL.y.clone()
        y[20:] = 1 - y[20:] if flip else y[20:]
        train = {"epochs": 3, "lr": 0.05}
        data = replace(SMALL, y=y)
        model, _, _ = run("lds", data, split, train=train, outer=outer, samples=1)
        results.append((model._outer.tolist(), model._inner.numel(), model.theta))
    own, paper, flipped = results
    assert set(own[0]) < set(range(10))
    assert (len(paper[0]), paper[1]) == (5, 10)
    assert set(paper[0]) < set(range(10, 20))
    assert torch.equal(paper[2], flipped[2])

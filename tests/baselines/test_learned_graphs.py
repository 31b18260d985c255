"""GLCN and LDS, which learn the graph, against their equations and a finite difference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from difformer.baselines import get_system, glcn
from difformer.baselines.glcn import GLCN
from difformer.baselines.lds import LDS, adjacency_of, draw_edges, straight_through
from difformer.core.graph import Graph
from difformer.data import Dataset
from difformer.data.batch import Batch
from difformer.train import objective_for, seeded


def test_glcn_weights_are_its_equation_on_one_row(
    small: Dataset, build: Any, own_graph: Any
) -> None:
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


def test_glcn_makes_gaps_in_chunks_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glcn, "EDGE_CHUNK", 5)
    p = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, dtype=torch.float64, requires_grad=True)
    source, target = torch.randint(7, (2, 13))
    gap = p[source] - p[target]
    score, square = glcn.edge_gaps(p, a, source, target)
    torch.testing.assert_close(score, gap.abs() @ a)
    torch.testing.assert_close(square, gap.square().sum(1))
    assert torch.autograd.gradcheck(lambda p, a: glcn.edge_gaps(p, a, source, target), (p, a))


def test_glcn_convolves_on_the_symmetrised_normalised_weights(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model, graph = build("glcn", small), own_graph(small)
    weight, _ = model.learn(small.x, graph)
    dense = torch.zeros(small.num_rows, small.num_rows)
    dense[graph.edge_index[1], graph.edge_index[0]] = weight.detach()
    dense = (dense + dense.T) / 2
    scale = dense.sum(1).rsqrt()
    dense = dense * scale.unsqueeze(1) * scale
    expected = dense @ model.rest[0](F.relu(dense @ model.first(small.x)))
    torch.testing.assert_close(model(small.x, graph), expected, atol=1e-5, rtol=1e-5)


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

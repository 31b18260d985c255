"""GLCN and LDS, which learn the graph, against their equations and a finite difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Dataset
from difformer.data.split import Split
from difformer.jobs.rows import graph_for
from difformer.systems.registry import get_system
from difformer.train.batches import FullBatch
from difformer.train.loop import fit
from difformer.train.objective import objective_for
from difformer.train.seeding import seeded
from difformer.train.settings import TrainSettings
from difformer_paper.rivals import learned
from difformer_paper.rivals.learned import GLCN, LDS, DrawnGraph


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
    monkeypatch.setattr(learned, "EDGE_CHUNK", 5)
    p = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    a = torch.randn(3, dtype=torch.float64, requires_grad=True)
    source, target = torch.randint(7, (2, 13))
    gap = p[source] - p[target]
    score, square = learned.edge_gaps(p, a, source, target)
    torch.testing.assert_close(score, gap.abs() @ a)
    torch.testing.assert_close(square, gap.square().sum(1))
    assert torch.autograd.gradcheck(lambda p, a: learned.edge_gaps(p, a, source, target), (p, a))


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


def lds(n: int, **options: Any) -> tuple[LDS, Batch]:
    """A model in float64 that has observed a ring of n rows, all but the last labelled."""
    row = torch.arange(n)
    ring = torch.stack([row, (row + 1) % n])
    graph = Graph.from_edges(ring, n, undirected=True, self_loops=True)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, dtype=torch.float64, generator=draw)
    y = torch.where(row < n - 1, row % 2, -1)
    config = get_system("lds").configure(dropout=0.0, inner_lr=0.3, outer_share=0.5, **options)
    with seeded(0):
        model = LDS(3, 2, config).double()
    batch = Batch(x, y, graph, row[:-1])
    model.observe(batch)
    model.theta = model.theta.double()
    return model, batch


def dense_theta(model: LDS, n: int) -> Tensor:
    theta = torch.zeros(n, n, dtype=model.theta.dtype)
    theta.index_put_((model.pairs[0], model.pairs[1]), model.theta, accumulate=True)
    return theta + theta.T


def dense_hypergradient(model: LDS, batch: Batch, theta: Tensor) -> Tensor:
    """The same by autograd through n × n matrices; θ holds zeros and ones, so nothing is drawn."""
    n, call = len(theta), torch.func.functional_call
    theta = theta.clone().requires_grad_()

    def convolve(w: dict[str, Tensor]) -> Tensor:
        edges = theta + torch.eye(n, dtype=theta.dtype)
        scale = edges.sum(1).rsqrt()
        adjacency = edges * scale.unsqueeze(1) * scale
        return call(model.gcn, w, (batch.x, lambda value: adjacency @ value))

    w = dict(model.gcn.named_parameters())
    for _ in range(model.config.unroll):
        loss = F.cross_entropy(convolve(w)[model._inner], batch.y[model._inner])
        steps = torch.autograd.grad(loss, list(w.values()), create_graph=True)
        w = {name: p - 0.3 * g for (name, p), g in zip(w.items(), steps, strict=True)}
    outer = F.cross_entropy(convolve(w)[model._outer], batch.y[model._outer])
    slope = torch.autograd.grad(outer, theta)[0]
    return (slope + slope.T) / 2


@pytest.mark.parametrize("unroll", [0, 1, 2])
def test_lds_hypergradient_of_all_pairs_is_that_of_dense_autograd(unroll: int) -> None:
    model, batch = lds(7, unroll=unroll)
    slope = model.hypergradient(batch.x, batch, objective_for("multiclass"))
    expected = dense_hypergradient(model, batch, dense_theta(model, 7))
    row, col = torch.triu_indices(7, 7, 1)
    torch.testing.assert_close(slope.at(row, col), expected[row, col])
    assert float(expected[row, col].abs().min()) > 0


def test_lds_keeping_all_pairs_moves_each_down_its_slope() -> None:
    model, batch = lds(6, top_k=6, theta_lr=3.0)
    before = dense_theta(model, 6)
    slope = model.hypergradient(batch.x, batch, objective_for("multiclass"))
    model.move(slope)
    expected = (before - 3.0 * dense_hypergradient(model, batch, before)).clamp(0, 1)
    torch.testing.assert_close(dense_theta(model, 6), expected.fill_diagonal_(0.0))


def test_lds_keeps_the_largest_chances_in_a_room_of_fixed_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learned, "BLOCK", 10)  # several blocks of rows
    model, batch = lds(9, top_k=1, theta_lr=5.0)
    room = model.theta.numel()
    before = dense_theta(model, 9)
    slope = model.hypergradient(batch.x, batch, objective_for("multiclass"))
    model.move(slope)
    after, row = dense_theta(model, 9), torch.arange(9)
    assert model.theta.numel() == room == 9 + 9
    full = dense_hypergradient(model, batch, before) + torch.diag(torch.full((9,), torch.inf))
    best = full.argmin(1)
    raised = full[row, best] < 0
    wanted = (before - 5.0 * full).clamp(0, 1)
    torch.testing.assert_close(after[row, best][raised], wanted[row, best][raised])
    assert int((after > 0).sum()) <= 2 * room


def test_lds_draws_edges_at_their_probability(ring: Graph) -> None:
    pairs, draw = torch.triu_indices(60, 60, 1), torch.Generator().manual_seed(0)
    dense = DrawnGraph.draw(pairs, torch.full((pairs.shape[1],), 0.3), 60, draw).matrix.csr
    edges = dense.to_dense() > 0
    assert (int(edges.sum()) - 60) / (60 * 59) == pytest.approx(0.3, abs=0.03)
    assert torch.equal(edges, edges.T)
    certain = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 5, 5]])
    drawn = DrawnGraph.draw(certain, torch.ones(6), 6)
    torch.testing.assert_close(drawn.matrix.csr.to_dense(), ring.dense())


def test_lds_takes_half_of_the_validation_labels_by_its_papers_protocol(small: Dataset) -> None:
    """Those rows move the graph, no longer count as validation, and no test label is seen."""
    rows = torch.arange(small.num_rows)
    split = Split("s", rows[:10], rows[10:20], rows[20:])
    system, results = get_system("lds"), list[Any]()
    for outer, flip in (("training", False), ("validation", False), ("validation", True)):
        y = small.y.clone()
        y[20:] = 1 - y[20:] if flip else y[20:]
        config = system.configure(outer=outer, samples=1)
        with seeded(0):
            model = system.build(config, small.num_features, 2)
        assert isinstance(model, LDS)
        source = FullBatch(replace(small, y=y), split, graph_for(system, config, small))
        fit(model, source, objective_for("multiclass"), split, TrainSettings(epochs=3, lr=0.05))
        results.append((model._outer.tolist(), model._inner.numel(), model.theta))
    own, paper, flipped = results
    assert set(own[0]) < set(range(10))
    assert (len(paper[0]), paper[1]) == (5, 10)
    assert set(paper[0]) < set(range(10, 20))
    assert torch.equal(paper[2], flipped[2])

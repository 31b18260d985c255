"""Methods that spread labels or penalise jumps along edges: closed forms."""

from __future__ import annotations

from typing import Any

import torch
from torch_geometric.nn import APPNP, CorrectAndSmooth
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from difformer.core.graph import Graph
from difformer.data.dataset import Batch, Dataset, Prediction
from difformer_paper.rivals.learned import ManiReg


def test_label_propagation_tends_to_its_closed_form(
    small: Dataset, build: Any, with_labels: Any
) -> None:
    batch = with_labels(small, torch.arange(10))
    model = build("lp", small, steps=400, alpha=0.8)
    model.observe(batch)
    bare = Graph.from_edges(batch.graph.edge_index, small.num_rows, self_loops=False).dense()
    labels = torch.zeros(small.num_rows, 2)
    labels[torch.arange(10), small.y[:10]] = 1.0
    limit = 0.2 * torch.linalg.solve(torch.eye(small.num_rows) - 0.8 * bare, labels)
    share = limit / limit.sum(1, keepdim=True)
    output = model(small.x, batch.graph)
    reached = limit.sum(1) > 0  # one row has no edge
    torch.testing.assert_close(output.softmax(1)[reached], share[reached], atol=1e-4, rtol=1e-4)


def test_label_propagation_leaves_a_row_no_label_reaches_undecided(build: Any) -> None:
    alone = Dataset("alone", torch.zeros(3, 1), torch.tensor([0, 1, 1]), class_names=("a", "b"))
    graph = Graph.from_edges(torch.tensor([[0, 1], [1, 0]]), 3, self_loops=True)
    model = build("lp", alone)
    model.observe(Batch(alone.x, torch.tensor([0, -1, -1]), graph, torch.tensor([0])))
    share = model(alone.x, graph).softmax(1)
    assert share[1, 0] > 0.9
    torch.testing.assert_close(share[2], torch.tensor([0.5, 0.5]))


def test_manireg_penalty_is_the_laplacian_form_of_its_probabilities(
    small: Dataset, build: Any, own_graph: Any
) -> None:
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


def test_appnp_is_the_librarys_propagation_of_the_perceptron(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("appnp", small, steps=7, alpha=0.3)
    expected = APPNP(7, 0.3)(model.mlp(small.x), small.edge_index)
    torch.testing.assert_close(model(small.x, own_graph(small)), expected, atol=1e-5, rtol=1e-5)


def test_correct_and_smooth_is_the_librarys(small: Dataset, build: Any, with_labels: Any) -> None:
    rows = torch.arange(12)
    batch = with_labels(small, rows)
    model = build("correct-smooth", small, steps=20, correct_alpha=0.7, smooth_alpha=0.6)
    model.observe(batch)
    edges, weight = gcn_norm(small.edge_index, None, small.num_rows)
    library = CorrectAndSmooth(20, 0.7, 20, 0.6, autoscale=True)
    with torch.no_grad():
        share = model.mlp(small.x).softmax(1)
        corrected = library.correct(share, small.y[rows], rows, edges, weight)
        expected = library.smooth(corrected, small.y[rows], rows, edges, weight)
        torch.testing.assert_close(model.smooth(share, batch.graph), expected)
        output = model(small.x, batch.graph)
    share = expected / expected.sum(1, keepdim=True)
    torch.testing.assert_close(output.exp(), share, atol=1e-5, rtol=1e-5)

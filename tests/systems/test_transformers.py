"""NodeFormer and SGFormer against their dense forms and the library's model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch_geometric.nn.models import SGFormer as LibrarySGFormer

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.systems.registry import get_system
from difformer.train.seeding import seeded
from difformer_paper.rivals import nodeformer
from difformer_paper.rivals.nodeformer import (
    NodeFormerLayer,
    edge_score,
    noisy_average,
    positive_features,
    wider,
)


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
    steps = torch.zeros(17, 17)
    steps[graph.edge_index[1], graph.edge_index[0]] = 1.0
    first, second, third = wider(graph, 3)
    assert first is graph
    for found, power in (second, 2), (third, 4):
        joined = (torch.linalg.matrix_power(steps, power) > 0).float()
        left, right = joined.sum(1).rsqrt(), joined.sum(0).rsqrt()
        expected = left.unsqueeze(1) * joined * right
        torch.testing.assert_close(found.adjacency.to_dense(), expected)
        assert found.symmetric is not directed


def test_nodeformer_moves_its_values_along_the_graph(ring: Graph) -> None:
    config = get_system("nodeformer").configure(num_heads=2)
    with seeded(0):
        layer = NodeFormerLayer(4, config)
    z = torch.randn(6, 4)
    moved = ring.propagate(layer.value(z)).view(6, 2, 4)
    torch.testing.assert_close(layer.moved(z, ring), moved)


def test_nodeformer_edge_score_is_its_equation(ring: Graph) -> None:
    fq, fk = torch.rand(6, 1, 5), torch.rand(6, 1, 5)
    share = (fq[:, 0] @ fk[:, 0].T) / (fq[:, 0] @ fk[:, 0].sum(0)).unsqueeze(1)
    source, target = ring.edge_index
    expected = (share[target, source].log() / 3).mean()  # every row has three edges
    torch.testing.assert_close(edge_score(fq, fk, ring), expected)


def test_sgformer_is_the_librarys_model(small: Dataset, build: Any, own_graph: Any) -> None:
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


def test_sgformer_with_a_plain_backbone_is_attention_beside_a_gcn(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("sgformer", small, hidden_channels=8, graph_weight=1.0)
    gcn = model.model.graph_conv
    expected = torch.log_softmax(model.model.fc(gcn(small.x, own_graph(small))), 1)
    torch.testing.assert_close(model(small.x, own_graph(small)), expected)

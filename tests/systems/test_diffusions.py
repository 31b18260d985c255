"""Diffusions on the graph against matrix exponentials, powers and exact steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.data.dataset import Dataset
from difformer.systems.registry import get_system
from difformer_paper.rivals import diffusions
from difformer_paper.rivals.diffusions import GRAND, diffuse, heat_kernel


def test_dgc_is_the_power_of_its_euler_step_and_tends_to_the_heat_kernel(
    small: Dataset, build: Any, own_graph: Any
) -> None:
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


def test_graphheat_applies_the_matrix_exponential(
    small: Dataset, build: Any, own_graph: Any
) -> None:
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
def test_gdc_keeps_the_largest_of_the_closed_form(small: Dataset, build: Any, kind: str) -> None:
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
    model = build("gdc", small, diffusion=kind, alpha=0.2, time=3.0, top_k=5)
    torch.testing.assert_close(model(small.x, graph), model.gcn(small.x, diffused))


def test_gdc_in_blocks_is_gdc_at_once(
    small: Dataset, own_graph: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, config = own_graph(small), get_system("gdc").configure(top_k=small.num_rows)
    whole = diffuse(graph, config).dense()
    monkeypatch.setattr(diffusions, "BLOCK", 3 * small.num_rows)
    torch.testing.assert_close(diffuse(graph, config).dense(), whole, atol=1e-7, rtol=1e-5)


def dense_attention(model: GRAND, z: torch.Tensor, graph: Graph) -> torch.Tensor:
    dense = torch.zeros(len(z), len(z))
    dense[graph.edge_index[1], graph.edge_index[0]] = model.attention(z, graph).detach()
    return dense


def test_linear_grand_solves_its_linear_equation(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("grand-l", small, method="dopri5", tolerance=1e-6, time=2.0, learned_scale=False)
    assert isinstance(model, GRAND)
    graph, n = own_graph(small), small.num_rows
    z = torch.randn(n, 64)
    dense = dense_attention(model, z, graph)
    torch.testing.assert_close(dense.sum(1), torch.ones(n))
    exact = torch.matrix_exp(2.0 * (dense - torch.eye(n))) @ z
    torch.testing.assert_close(model.diffuse(z, graph), exact, atol=1e-4, rtol=1e-4)


def test_nonlinear_grand_takes_the_attention_of_the_moving_state(
    small: Dataset, build: Any, own_graph: Any
) -> None:
    model = build("grand", small, method="euler", step=0.5, time=1.0, learned_scale=False)
    assert isinstance(model, GRAND)
    graph, n = own_graph(small), small.num_rows
    z = first = torch.randn(n, 64)
    for _ in range(2):
        z = z + 0.5 * (dense_attention(model, z, graph) @ z - z)
    torch.testing.assert_close(model.diffuse(first, graph), z, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["grand-l", "grandpp"])
def test_grand_learns_how_fast_it_moves_and_how_strong_its_source_is(
    name: str, small: Dataset, build: Any, own_graph: Any, with_labels: Any
) -> None:
    model = build(name, small, method="dopri5", tolerance=1e-6, time=2.0).eval()
    assert isinstance(model, GRAND)
    assert torch.sigmoid(model.speed).item() == 0.5
    assert model.strength.item() == 0
    rows = torch.tensor([0, 3, 4])
    model.observe(with_labels(small, rows))
    with torch.no_grad():
        model.speed.fill_(0.3)
        model.strength.fill_(0.7)
        if model.trust is not None:
            model.trust.fill_(0.4)
    graph, n = own_graph(small), small.num_rows
    z = torch.randn(n, 64)
    dense = dense_attention(model, z, graph)
    operator = torch.sigmoid(torch.tensor(0.3)) * (dense - torch.eye(n))
    source = 0.7 * z
    if name == "grandpp":
        source = source + 0.4 * model.source(z)
    # ∂X/∂t = M X + S is linear: [X; I] obeys one matrix exponential, of [[M, S], [0, 0]].
    d = z.shape[1]
    block = torch.zeros(n + d, n + d)
    block[:n, :n], block[:n, n:] = operator, source
    exact = (torch.matrix_exp(2.0 * block) @ torch.cat([z, torch.eye(d)]))[:n]
    torch.testing.assert_close(model.diffuse(z, graph), exact, atol=1e-4, rtol=1e-4)


def test_grand_plus_plus_feeds_labelled_rows_only(
    small: Dataset, build: Any, own_graph: Any, with_labels: Any
) -> None:
    model = build("grandpp", small, source_dropout=0.5).eval()
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
    model.train()  # sources come and go, a row's as a whole
    share = torch.stack([model.source(z)[rows] / source[rows] for _ in range(200)])
    assert set(share.round(decimals=4).unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(share, share[..., :1].expand_as(share))


def test_a_row_that_is_a_source_of_grand_plus_plus_teaches_nothing_in_that_step(
    small: Dataset, build: Any, own_graph: Any, with_labels: Any
) -> None:
    model = build("grandpp", small, source_dropout=0.5).train()
    rows = torch.arange(6)
    model.observe(with_labels(small, rows))
    judged = list[float]()
    for _ in range(20):
        output = model(small.x, own_graph(small))
        (slope,) = torch.autograd.grad(output[rows].sum(), [model.decode.bias])
        judged.append(float(slope[0]))  # one for every row that passes its gradient on
    assert len(set(judged)) > 2  # another draw in each step
    assert 1.5 < sum(judged) / 20 < 4.5
    model.eval()
    output = model(small.x, own_graph(small))
    (slope,) = torch.autograd.grad(output[rows].sum(), [model.decode.bias])
    assert float(slope[0]) == 6

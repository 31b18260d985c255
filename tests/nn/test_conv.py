"""DIFFormerConv: the equations on dense matrices, and its place among PyG's layers."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GCNConv, Sequential

from difformer import DIFFormerConv
from difformer.core.diffusivity.simple import FLOOR
from difformer.core.graph import Graph

EDGES = torch.tensor([[0, 1, 2, 5], [1, 2, 3, 6]])


def dense_step(conv: DIFFormerConv, x: Tensor) -> Tensor:
    """The layer written out for kernel simple, one head: every matrix in full."""
    model = conv.model
    z = F.relu(model.input_norm(model.input(x)))  # type: ignore[misc]
    layer = model.layers[0]
    queries, keys = (F.normalize(linear(z), dim=-1) for linear in (layer.query, layer.key))
    v = layer.value(z)
    scores = 1 + FLOOR + queries @ keys.T
    pairs = (scores / scores.sum(1, keepdim=True)) @ v
    adjacency = Graph.undirected_with_loops(EDGES, len(x)).to(x).adjacency.csr.to_dense()
    mixed = (1 - layer.tau) * z + layer.tau * (pairs + adjacency @ v)
    return layer.norm(mixed)


def test_outputs_and_gradients_are_those_of_the_dense_equations() -> None:
    torch.manual_seed(0)
    conv = DIFFormerConv(4, 3).double()
    x = torch.randn(7, 4, dtype=torch.float64)
    weights = torch.randn(7, 3, dtype=torch.float64)
    found: list[list[Tensor]] = []
    for out in (conv(x, EDGES), dense_step(conv, x)):
        gradients = torch.autograd.grad((out * weights).sum(), list(conv.parameters()))
        found.append([out, *gradients])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


def test_it_trains_among_other_layers_and_has_no_idle_parameter() -> None:
    torch.manual_seed(0)
    model = Sequential(
        "x, edge_index",
        [
            (GCNConv(4, 8), "x, edge_index -> x"),
            nn.ReLU(),
            (DIFFormerConv(8, 5, kernel="sigmoid"), "x, edge_index -> x"),
            nn.Linear(5, 2),
        ],
    )
    out = model(torch.randn(7, 4), EDGES)
    assert out.shape == (7, 2)
    out.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


def test_graphs_of_a_batch_do_not_meet() -> None:
    torch.manual_seed(0)
    conv = DIFFormerConv(4, 3).eval()
    x = torch.randn(7, 4)
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    together = conv(x, EDGES, batch=batch)
    torch.testing.assert_close(together[:4], conv(x[:4], EDGES[:, :3]))


def test_options_are_those_of_the_model_and_a_wrong_one_is_named() -> None:
    assert "kernel" in inspect.signature(DIFFormerConv).parameters
    assert len(DIFFormerConv(4, 3, num_layers=3).model.layers) == 3
    with pytest.raises(ValueError, match="tau must lie in"):
        DIFFormerConv(4, 3, tau=2.0)
    torch.manual_seed(0)
    conv = DIFFormerConv(4, 3)
    before = conv.model.input.weight.clone()
    conv.reset_parameters()
    assert not torch.equal(before, conv.model.input.weight)
    assert repr(conv) == "DIFFormerConv(4, 3)"

"""DIFFormerConv: a model without its output layer, and its place among PyG's layers."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch_geometric.nn import GCNConv, Sequential

from difformer import DIFFormerConv

EDGES = torch.tensor([[0, 1, 2, 5], [1, 2, 3, 6]])


def test_it_is_a_model_of_one_step_without_its_output_layer() -> None:
    torch.manual_seed(0)
    conv = DIFFormerConv(4, 3).double()
    x = torch.randn(7, 4, dtype=torch.float64)
    assert len(conv.model.layers) == 1
    assert torch.equal(conv(x, EDGES), conv.model.encode(x, EDGES))
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    torch.testing.assert_close(conv(x, EDGES, batch=batch)[:4], conv(x[:4], EDGES[:, :3]))


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


def test_options_are_those_of_the_model_and_a_wrong_one_is_named() -> None:
    assert "kernel" in inspect.signature(DIFFormerConv).parameters
    conv = DIFFormerConv(4, 3, num_layers=3)
    assert len(conv.model.layers) == 3
    before = conv.model.input.weight.clone()
    conv.reset_parameters()
    assert not torch.equal(before, conv.model.input.weight)
    assert repr(conv) == "DIFFormerConv(4, 3)"
    with pytest.raises(ValueError, match="tau must lie in"):
        DIFFormerConv(4, 3, tau=2.0)

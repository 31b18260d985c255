"""DIFFormer against a plain transcription of appendix E, and the promises of its interface."""

import dataclasses
import inspect

import pytest
import torch

from difformer.core.diffusivity import KERNELS, Diffusivity
from difformer.core.graph import Graph
from difformer.nn.config import RECIPES, DIFFormerConfig
from difformer.nn.model import DIFFormer
from tests.nn.equations import transcription


@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("n", [1, 2, 23])
def test_forward_and_gradients_equal_the_transcription(make, options, with_graph, n):
    model, x, edges = make(options, n)
    graph = Graph.from_edges(edges, n).to(x) if with_graph else None
    fast = model(x, graph)
    slow = transcription(model, x, model.normalised(graph).dense() if graph else None)
    torch.testing.assert_close(fast, slow)
    probe = torch.randn(fast.shape, dtype=fast.dtype)
    parameters = list(model.parameters())
    grads = [
        torch.autograd.grad(
            (out * probe).sum(), parameters, materialize_grads=True, allow_unused=True
        )
        for out in (fast, slow)
    ]
    torch.testing.assert_close(*grads)


def test_an_edge_list_a_prepared_graph_and_both_input_layouts_agree(make, options):
    model, x, edges = make(options)
    weight = torch.rand(edges.shape[1], dtype=torch.float64)
    expected = model(x, edges, weight)
    graph = Graph.undirected_with_loops(edges, 23, weight)
    torch.testing.assert_close(model(x, graph), expected)
    torch.testing.assert_close(model(x.to_sparse_csr(), edges, weight), expected)
    torch.testing.assert_close(model(x.to_sparse(), edges, weight), expected)


def test_sparse_input_gives_the_same_gradients(make):
    model, x, _ = make({})
    x = x * (torch.rand_like(x) < 0.2)
    grads = [
        torch.autograd.grad(model(form).square().sum(), list(model.parameters()))
        for form in (x, x.to_sparse_csr())
    ]
    torch.testing.assert_close(*grads)


def test_permuting_rows_permutes_outputs(make, options):
    model, x, edges = make(options)
    order = torch.randperm(23)
    where = torch.argsort(order)
    torch.testing.assert_close(model(x[order], where[edges]), model(x, edges)[order])


def test_the_graph_is_built_once_for_the_same_edge_list(make, monkeypatch):
    model, x, edges = make({})
    built = []
    original = Graph.from_edges
    monkeypatch.setattr(Graph, "from_edges", lambda *a, **k: built.append(1) or original(*a, **k))
    for _ in range(3):
        model(x, edges)
    assert len(built) == 1
    edges[0, 0] = (edges[0, 0] + 1) % 23
    changed = model(x, edges)
    assert len(built) == 2
    torch.testing.assert_close(changed, model(x, edges.clone()))


def test_without_use_graph_the_edges_are_ignored(make):
    model, x, edges = make({"use_graph": False})
    assert torch.equal(model(x, edges), model(x))


def test_reset_parameters_draws_anew(make):
    model, x, _ = make({"learn_tau": True})
    before = model(x)
    model.reset_parameters()
    assert not torch.equal(model(x), before)
    assert model.layers[0].tau.item() == pytest.approx(0.5)


def test_a_user_can_pass_their_own_diffusivity(make):
    class Inverse(Diffusivity):
        def omega(self, q, k):
            return 1 / (1 + torch.cdist(q, k))

    model, x, edges = make({"kernel": Inverse()})
    out = model(x, edges)
    out.sum().backward()
    torch.testing.assert_close(model.diffusivity(x).sum(1), torch.ones(23, dtype=torch.float64))


def test_defaults_stand_in_one_place():
    model = DIFFormer(3, 4, 2)
    assert model.config == DIFFormerConfig()
    shown = inspect.signature(DIFFormer).parameters
    assert list(shown) == [
        "in_channels",
        "hidden_channels",
        "out_channels",
        *DIFFormerConfig.names(),
    ]
    assert all(shown[name].default == getattr(model.config, name) for name in model.config.names())
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        DIFFormer(3, 4, 2, depth=2)


def test_every_choice_of_a_kernel_and_of_an_activation_can_be_built():
    choices = {f.name: f.metadata["choices"] for f in dataclasses.fields(DIFFormerConfig)}
    assert choices["kernel"] == tuple(KERNELS)
    for name in choices["activation"]:
        assert DIFFormer(3, 4, 2, activation=name, input_activation=name)


def test_one_row_and_a_graph_without_edges_are_fine(make, options):
    model, x, _ = make(options)
    assert torch.isfinite(model(x[:1])).all()
    assert torch.isfinite(model(x, torch.zeros(2, 0, dtype=torch.int64))).all()


def test_a_linear_first_state_without_biases_maps_zeros_to_zeros_and_flips_with_its_input(make):
    options = {**RECIPES["linear"], "learn_qk": False}  # q·k does not change when all rows flip
    model, _, _ = make(options)
    x = torch.randn(7, model.in_channels, dtype=torch.float64)
    assert not any(name in ("input.bias", "output.bias") for name, _ in model.named_parameters())
    assert torch.equal(model(torch.zeros_like(x)), torch.zeros(7, model.out_channels).to(x))
    torch.testing.assert_close(model(-x), -model(x))
    torch.testing.assert_close(model(x.to_sparse_csr()), model(x))


def test_the_first_state_has_the_activation_asked_for(make):
    model, x, _ = make({"norm": "none"})
    assert (model.states(x)[0] >= 0).all()
    model, x, _ = make({"norm": "none", "input_activation": None})
    assert (model.states(x)[0] < 0).any()
    with pytest.raises(ValueError, match="input_activation must be one of relu"):
        make({"input_activation": "sine"})


def test_an_edge_list_may_hold_an_edge_once_or_both_ways_with_or_without_loops(make):
    model, x, edges = make({})
    edges = edges[:, edges[0] != edges[1]]
    loops = torch.arange(23).repeat(2, 1)
    expected = model(x, edges)
    for same in (edges.flip(0), torch.cat([edges, edges.flip(0)], 1), torch.cat([edges, loops], 1)):
        torch.testing.assert_close(model(x, same), expected)

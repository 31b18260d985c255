"""Every form of DIFFormer against a plain transcription of appendix E, and its interface."""

import dataclasses
import inspect

import pytest
import torch

from difformer.core.diffusivity import KERNELS, Diffusivity
from difformer.core.graph import Graph
from difformer.nn.config import RECIPES, DIFFormerConfig
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks
from difformer.train.processes import Comm
from difformer.train.sharded import ShardedDIFFormer
from tests.nn.conftest import EVERY_FORM
from tests.nn.equations import transcription


@pytest.mark.parametrize("options", EVERY_FORM, ids=str)
@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("n", [1, 2, 23])
def test_values_and_gradients_are_those_of_the_equations(make, options, with_graph, n):
    model, x, edges = make(options, n)
    graph = Graph.from_edges(edges, n).to(x) if with_graph else None
    expected = transcription(model, x, model.normalised(graph).dense() if graph else None)
    fast = model(x, graph)
    torch.testing.assert_close(fast, expected)
    probe = torch.randn(fast.shape, dtype=fast.dtype)
    both = [
        torch.autograd.grad(
            (out * probe).sum(),
            list(model.parameters()),
            materialize_grads=True,
            allow_unused=True,
        )
        for out in (fast, expected)
    ]
    # Where a reach is of more rows than there are, an offset is a limit: slopes are all but zero.
    torch.testing.assert_close(*both, **({"rtol": 1e-4, "atol": 1e-6} if n == 2 else {}))


@pytest.mark.parametrize("options", EVERY_FORM, ids=str)
def test_every_path_is_the_equations(make, options):
    model, x, edges = make(options)
    graph = Graph.from_edges(edges, 23, undirected=True).to(x)
    expected = transcription(model, x, model.normalised(graph).dense())
    for form in (x, x.to_sparse_csr()):
        torch.testing.assert_close(model(form, graph), expected)
        torch.testing.assert_close(predict_in_chunks(model, form, graph, chunk=7), expected)
    alone = transcription(model, x)
    torch.testing.assert_close(ShardedDIFFormer(model, Comm())(x), alone)
    # A row that is known already is moved as it was.
    frozen = model.freeze(x)
    torch.testing.assert_close(frozen(x[:5]), alone[:5])
    if model.config.kernel == "identity" or model.config.qk_norm == "tensor":
        return
    passages = model.passages(x)
    torch.testing.assert_close(
        frozen.weights(x[:5], passages[-1].before, compared=passages[-1].compared),
        model.diffusivity(x, layer=-1, rows=torch.arange(5)),
    )
    q, k, _ = passages[1].project()
    weights = passages[1].layer.diffusivity.weights(q, k).mean(0)
    torch.testing.assert_close(model.diffusivity(x, layer=1), weights)


def test_an_edge_list_a_prepared_graph_and_every_layout_agree(make, options):
    model, x, edges = make(options)
    weight = torch.rand(edges.shape[1], dtype=torch.float64)
    expected = model(x, edges, weight)
    graph = Graph.undirected_with_loops(edges, 23, weight)
    torch.testing.assert_close(model(x, graph), expected)
    torch.testing.assert_close(model(x.to_sparse_csr(), edges, weight), expected)
    torch.testing.assert_close(model(x.to_sparse(), edges, weight), expected)
    order = torch.randperm(23)
    moved = model(x[order], torch.argsort(order)[edges], weight)
    torch.testing.assert_close(moved, expected[order])


def test_an_edge_list_may_hold_an_edge_once_or_both_ways_with_or_without_loops(make):
    model, x, edges = make({})
    edges = edges[:, edges[0] != edges[1]]
    loops = torch.arange(23).repeat(2, 1)
    expected = model(x, edges)
    for same in (edges.flip(0), torch.cat([edges, edges.flip(0)], 1), torch.cat([edges, loops], 1)):
        torch.testing.assert_close(model(x, same), expected)
    model, x, edges = make({"use_graph": False})
    assert torch.equal(model(x, edges), model(x))


def test_sparse_input_gives_the_same_gradients(make):
    model, x, _ = make({})
    x = x * (torch.rand_like(x) < 0.2)
    grads = [
        torch.autograd.grad(model(form).square().sum(), list(model.parameters()))
        for form in (x, x.to_sparse_csr())
    ]
    torch.testing.assert_close(*grads)


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


def test_defaults_and_choices_stand_in_one_place():
    model = DIFFormer(3, 4, 2)
    assert model.config == DIFFormerConfig()
    shown = inspect.signature(DIFFormer).parameters
    widths = ["in_channels", "hidden_channels", "out_channels"]
    assert list(shown) == [*widths, *DIFFormerConfig.names()]
    assert all(shown[name].default == getattr(model.config, name) for name in model.config.names())
    with pytest.raises(TypeError, match="unexpected keyword argument 'depth'"):
        DIFFormer(3, 4, 2, depth=2)
    choices = {f.name: f.metadata["choices"] for f in dataclasses.fields(DIFFormerConfig)}
    assert choices["kernel"] == tuple(KERNELS)
    for name in choices["activation"]:
        assert DIFFormer(3, 4, 2, activation=name, input_activation=name)


def test_a_linear_first_state_without_biases_maps_zeros_to_zeros_and_flips_with_its_input(make):
    options = {**RECIPES["linear"], "learn_qk": False}  # q·k does not change when all rows flip
    model, x, _ = make(options)
    assert not any(name in ("input.bias", "output.bias") for name, _ in model.named_parameters())
    assert torch.equal(model(torch.zeros_like(x)), torch.zeros(23, 3).to(x))
    torch.testing.assert_close(model(-x), -model(x))
    assert (model.states(x)[0] < 0).any()
    model, x, _ = make({"norm": "none"})
    assert (model.states(x)[0] >= 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, got 0"),
        (
            {"num_heads": 2, "learn_qk": False, "use_weight": False},
            "num_heads must be 1 where neither learn_qk nor use_weight",
        ),
        ({"learn_reach": "layer"}, "learn_reach must be none unless kernel is sharp"),
        ({"kernel": "landmarks"}, "compare must be first or input with kernel landmarks"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DIFFormer(3, 4, 2, **options)


EDGE = torch.tensor([[0], [2]])


@pytest.mark.parametrize(
    ("x", "more", "message"),
    [
        (torch.zeros(4, 5), {}, r"x must have shape \(n, 6\), got \(4, 5\)"),
        (torch.zeros(6), {}, r"x must have shape \(n, 6\)"),
        (torch.zeros(0, 6), {}, "x must have at least one row"),
        (torch.zeros(2, 6, dtype=torch.int64), {}, "x must be of a floating-point type"),
        (torch.full((2, 6), float("nan")), {}, r"x must be finite, got 12 NaN.*first at \(0, 0\)"),
        (torch.full((2, 6), float("inf")).to_sparse_csr(), {}, "x must be finite"),
        (torch.zeros(2, 6), {"edge_index": EDGE}, "must name rows 0 to 1, got 2"),
        (torch.zeros(2, 6), {"batch": torch.arange(3)}, r"batch must have shape \(2,\)"),
        (torch.zeros(2, 6), {"batch": torch.zeros(2)}, "batch must hold integers"),
    ],
)
def test_bad_input_is_named(x, more, message):
    with pytest.raises(ValueError, match=message):
        DIFFormer(6, 8, 3)(x, **more)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("value", [1e30, -3e38, 1e19])
def test_features_that_would_overflow_are_one_clear_error(sparse, value):
    model = DIFFormer(4, 8, 3).eval()
    x = torch.randn(6, 4)
    good = model.freeze(x)
    x[2, 1] = value
    x = x.to_sparse_csr() if sparse else x
    for run in (model, good):
        with pytest.raises(ValueError, match=r"^x must lie within ±2e\+16.*scale the columns") as e:
            run(x)
        assert sparse or "at (2, 1)" in str(e.value)
    assert torch.isfinite(model.double()(x.double())).all()


def test_bad_widths_graphs_layers_and_rows_are_named(make):
    model, x, edges = make({})
    graph = Graph.from_edges(edges, 23)
    for call, message in (
        (lambda: DIFFormer(3, 0, 2), "hidden_channels must be a whole number"),
        (lambda: model(x, graph, torch.ones(3)), "edge_weight must be None with a Graph"),
        (lambda: model(x[:4], graph), "Graph of 23 rows, x has 4"),
        (lambda: model.diffusivity(x, layer=2), "layer must lie in 0 to 1, got 2"),
        (lambda: model.diffusivity(x, rows=EDGE[1] + 21), "rows must be a list of rows from 0 to"),
    ):
        with pytest.raises(ValueError, match=message):
            call()

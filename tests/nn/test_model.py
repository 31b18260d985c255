"""DIFFormer against a plain transcription of appendix E, and every promise of its interface."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import difformer
from difformer.core.diffusivity import KERNELS, Diffusivity
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.config import DEFAULTS, DIFFormerConfig
from difformer.nn.model import DIFFormer

OPTIONS = {
    "plain": {},
    "sigmoid": {"kernel": "sigmoid"},
    "softmax": {"kernel": "softmax"},
    "gaussian": {"kernel": "gaussian"},
    "constant": {"kernel": "constant"},
    "identity": {"kernel": "identity"},
    "tensor norm": {"qk_norm": "tensor"},
    "heads": {"num_heads": 3},
    "heads without weight": {"num_heads": 3, "use_weight": False},
    "no weight": {"use_weight": False},
    "mixed graph": {"graph_weight": 0.5},
    "activation": {"activation": "relu"},
    "source": {"source": 0.2},
    "center": {"center": True},
    "learned tau": {"learn_tau": True, "tau": 0.3},
    "no norm": {"norm": "none"},
    "stable": {
        "learn_qk": False,
        "use_weight": False,
        "norm": "input",
        "source": 0.1,
        "graph_weight": 0.9,
        "dropout_at": "ends",
        "tau": 0.9,
    },
    "state as query": {"learn_qk": False, "num_heads": 2},
    "all": {
        "num_heads": 2,
        "source": 0.1,
        "center": True,
        "activation": "elu",
        "graph_weight": 0.3,
    },
}


@pytest.fixture(params=OPTIONS, ids=str)
def options(request):
    return OPTIONS[request.param]


def make(options, n=23, seed=0, p=6, d=8, c=3, **more):
    torch.manual_seed(seed)
    model = DIFFormer(p, d, c, **options, **more).double()
    edges = torch.randint(n, (2, 3 * n))
    return model, torch.randn(n, p, dtype=torch.float64), edges


def transcription(model: DIFFormer, x, graph: torch.Tensor | None):
    """Appendix E, line by line, with dense n × n matrices."""
    c = model.config
    norm = model.input_norm or nn.Identity()
    first = z = F.relu(norm(model.input(x)))
    n, d = z.shape
    for layer in model.layers:
        average = 0
        for head in range(c.num_heads):
            part = slice(head * d, (head + 1) * d)
            q = k = v = z
            if layer.query is not None:
                q = z @ layer.query.weight[part].T + layer.query.bias[part]
                k = z @ layer.key.weight[part].T + layer.key.bias[part]
            if c.use_weight:
                v = z @ layer.value.weight[part].T + layer.value.bias[part]
            if c.qk_norm == "tensor":
                q, k = q / layer.query(z).norm(), k / layer.key(z).norm()
                s = 1 + q @ k.T
            elif c.kernel == "simple":
                s = 1 + F.normalize(q) @ F.normalize(k).T
            elif c.kernel == "sigmoid":
                s = torch.sigmoid(q @ k.T)
            elif c.kernel == "softmax":
                s = torch.exp(q @ k.T / math.sqrt(d))
            elif c.kernel == "gaussian":
                s = torch.exp(-torch.cdist(q, k).square() / 2)
            elif c.kernel == "constant":
                s = torch.ones(n, n, dtype=z.dtype)
            else:
                s = torch.eye(n, dtype=z.dtype)
            p = (s / s.sum(1, keepdim=True)) @ v
            if graph is not None:
                w = c.graph_weight
                p = p + graph @ v if w is None else (1 - w) * p + w * graph @ v
            average = average + p / c.num_heads
        average = (1 - c.source) * average + c.source * first
        tau = torch.sigmoid(layer.logit_tau) if c.learn_tau else c.tau
        u = tau * average + (1 - tau) * z
        if c.center:
            u = u - u.mean(0)
        if layer.norm is not None:
            u = layer.norm(u)
        z = layer.activation(u) if layer.activation is not None else u
    return model.output(z)


@pytest.mark.parametrize("with_graph", [False, True])
@pytest.mark.parametrize("n", [1, 2, 23])
def test_forward_and_gradients_equal_the_transcription(options, with_graph, n):
    model, x, edges = make(options, n)
    graph = Graph.from_edges(edges, n).to(x) if with_graph else None
    fast = model(x, graph)
    slow = transcription(model, x, graph.dense() if graph else None)
    # The floor of the simple diffusivity, 1e-6, is not in the transcription.
    torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    probe = torch.randn(fast.shape, dtype=fast.dtype)
    parameters = list(model.parameters())
    grads = [
        torch.autograd.grad(
            (out * probe).sum(), parameters, materialize_grads=True, allow_unused=True
        )
        for out in (fast, slow)
    ]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_an_edge_list_a_prepared_graph_and_both_input_layouts_agree(options):
    model, x, edges = make(options)
    weight = torch.rand(edges.shape[1], dtype=torch.float64)
    expected = model(x, edges, weight)
    torch.testing.assert_close(model(x, Graph.from_edges(edges, 23, weight)), expected)
    torch.testing.assert_close(model(x.to_sparse_csr(), edges, weight), expected)
    torch.testing.assert_close(model(x.to_sparse(), edges, weight), expected)


def test_sparse_input_gives_the_same_gradients():
    model, x, _ = make({})
    x = x * (torch.rand_like(x) < 0.2)
    grads = [
        torch.autograd.grad(model(form).square().sum(), list(model.parameters()))
        for form in (x, x.to_sparse_csr())
    ]
    torch.testing.assert_close(*grads)


def test_permuting_rows_permutes_outputs(options):
    model, x, edges = make(options)
    order = torch.randperm(23)
    where = torch.argsort(order)
    torch.testing.assert_close(model(x[order], where[edges]), model(x, edges)[order])


@pytest.mark.parametrize("sizes", [(4, 4, 4), (1, 5, 5, 2)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_graph_in_a_batch_gets_exactly_what_it_gets_alone(options, sizes, shuffled):
    n = sum(sizes)
    model, x, _ = make(options, n)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    if shuffled:
        batch = batch[torch.randperm(n)]
    edges = torch.randint(n, (2, 200))
    edges = edges[:, batch[edges[0]] == batch[edges[1]]]
    together = model(x, edges, batch=batch)
    for graph_id in range(len(sizes)):
        rows = (batch == graph_id).nonzero().squeeze(1)
        inside = batch[edges[0]] == graph_id
        own = torch.searchsorted(rows, edges[:, inside])
        torch.testing.assert_close(together[rows], model(x[rows], own))


def test_a_change_in_one_graph_moves_no_other(options):
    model, x, _ = make(options, 12)
    batch = torch.arange(12) // 4
    before = model(x, batch=batch)
    x = x.clone()
    x[:4] += 1
    after = model(x, batch=batch)
    assert torch.equal(after[4:], before[4:])
    assert not torch.equal(after[:4], before[:4])


def test_states_encode_and_output_belong_together(options):
    model, x, edges = make(options, num_layers=3)
    states = model.states(x, edges)
    assert len(states) == 4
    assert torch.equal(states[-1], model.encode(x, edges))
    assert torch.equal(model.output(states[-1]), model(x, edges))


def test_diffusivity_rows_sum_to_one_and_reproduce_the_layer(options):
    model, x, _ = make(
        {
            **options,
            "norm": "none",
            "center": False,
            "source": 0.0,
            "activation": None,
            "use_weight": False,
            "tau": 1.0,
            "learn_qk": True,
            "learn_tau": False,
        }
    )
    for layer in (0, 1, -1):
        s = model.diffusivity(x, layer=layer)
        torch.testing.assert_close(s.sum(1), torch.ones(23, dtype=torch.float64))
        states = model.states(x)
        torch.testing.assert_close(s @ states[layer % 2], states[layer % 2 + 1])


def test_diffusivity_of_some_rows_and_of_the_strongest(options, monkeypatch):
    monkeypatch.setattr("difformer.nn.model.ROW_SCORES", 50)
    model, x, _ = make(options)
    dense = model.diffusivity(x, layer=1)
    rows = torch.tensor([5, 2, 22])
    torch.testing.assert_close(model.diffusivity(x, layer=1, rows=rows), dense[rows])
    weights, columns = model.diffusivity(x, layer=1, top_k=4)
    torch.testing.assert_close(weights, dense.topk(4).values)
    torch.testing.assert_close(dense.gather(1, columns), weights)


def test_diffusivity_is_zero_between_graphs(options):
    model, x, _ = make(options, 9)
    batch = torch.tensor([0, 1, 2] * 3)
    s = model.diffusivity(x, batch=batch)
    assert s[batch[:, None] != batch].abs().max() == 0
    torch.testing.assert_close(s.sum(1), torch.ones(9, dtype=torch.float64))


def test_energies_are_one_a_layer_and_finite(options):
    model, x, edges = make(options, num_layers=3)
    for graph in (None, edges):
        energies = model.energies(x, graph)
        assert energies.shape == (3,)
        assert torch.isfinite(energies).all()


def test_energy_of_a_layer_is_equation_4_on_unit_rows():
    model, x, _ = make({"kernel": "sigmoid"})
    before, after = (F.normalize(z) for z in model.states(x)[:2])
    pairs = KERNELS["sigmoid"]().delta(torch.cdist(after, after).square()).sum()
    expected = (after - before).square().sum() + pairs / 23
    torch.testing.assert_close(model.energies(x)[0], expected)


def test_dropout_acts_in_training_only():
    model, x, _ = make({"dropout": 0.5, "input_dropout": 0.2})
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_input_dropout_on_sparse_features_drops_values_and_keeps_their_mean():
    model, x, _ = make({"input_dropout": 0.5, "norm": "none"})
    sparse = x.abs().to_sparse_csr()
    assert not torch.equal(model(sparse), model(sparse))
    matrix = SparseMatrix.from_csr(sparse)
    dropped = matrix.dropout(0.5)
    dense = dropped.csr.to_dense()
    torch.testing.assert_close(dropped.transpose.to_dense(), dense.T)
    kept = dense != 0
    torch.testing.assert_close(dense[kept], 2 * x.abs()[kept])
    assert 0.3 < kept.double().mean() < 0.7


def test_the_graph_is_built_once_for_the_same_edge_list(monkeypatch):
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


def test_without_use_graph_the_edges_are_ignored():
    model, x, edges = make({"use_graph": False})
    assert torch.equal(model(x, edges), model(x))


def test_deep_copy_is_independent_and_equal():
    model, x, edges = make({})
    model(x, edges)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x, edges), model(x, edges))


def test_reset_parameters_draws_anew():
    model, x, _ = make({"learn_tau": True})
    before = model(x)
    model.reset_parameters()
    assert not torch.equal(model(x), before)
    assert model.layers[0].tau.item() == pytest.approx(0.5)


def test_a_user_can_pass_their_own_diffusivity():
    class Inverse(Diffusivity):
        def omega(self, q, k):
            return 1 / (1 + torch.cdist(q, k))

    model, x, edges = make({"kernel": Inverse()})
    out = model(x, edges)
    out.sum().backward()
    torch.testing.assert_close(model.diffusivity(x).sum(1), torch.ones(23, dtype=torch.float64))


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_bfloat16_autocast_stays_close(kernel):
    model, x, edges = make({"kernel": kernel})
    model, x = model.float(), x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(x, edges)
    low.float().sum().backward()
    torch.testing.assert_close(low.float(), model(x, edges), rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kernel", ["simple", "sigmoid"])
def test_export_with_a_dynamic_number_of_rows(kernel):
    model, x, edges = make({"kernel": kernel})
    model.eval()
    n, e = torch.export.Dim("n", min=2), torch.export.Dim("e", min=2)
    program = torch.export.export(model, (x, edges), dynamic_shapes=({0: n}, {1: e}))
    _, other, other_edges = make({}, 40, seed=1)
    other_edges = other_edges.unique(dim=1)
    torch.testing.assert_close(program.module()(other, other_edges), model(other, other_edges))
    alone = torch.export.export(model, (x,), dynamic_shapes=({0: n},))
    torch.testing.assert_close(alone.module()(other), model(other))


def test_torch_compile_gives_the_same_output_and_gradients():
    model, x, edges = make({"kernel": "simple"})
    edges = edges.unique(dim=1)
    compiled = torch.compile(model, backend="aot_eager")
    torch.testing.assert_close(compiled(x, edges), model(x, edges))
    grads = [
        torch.autograd.grad(f(x, edges).square().sum(), list(model.parameters()))
        for f in (compiled, model)
    ]
    torch.testing.assert_close(*grads)


def test_defaults_stand_in_one_place():
    model = DIFFormer(3, 4, 2)
    assert model.config == DEFAULTS
    assert set(DIFFormerConfig.names()) == set(DIFFormer.__init__.__kwdefaults__)


def test_public_names():
    assert difformer.DIFFormer is DIFFormer
    assert difformer.Graph is Graph


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a whole number of at least 1, got 0"),
        ({"num_heads": 0}, "num_heads must be a whole number of at least 1, got 0"),
        ({"tau": 0.0}, r"tau must lie in \(0, 1\], got 0.0"),
        ({"tau": 1.5}, r"tau must lie in \(0, 1\], got 1.5"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1.0"),
        ({"source": -0.1}, r"source must lie in \[0, 1\), got -0.1"),
        ({"graph_weight": 2.0}, r"graph_weight must lie in \[0, 1\], got 2.0"),
        ({"kernel": "cosine"}, "kernel must be one of simple, sigmoid"),
        ({"qk_norm": "col"}, "qk_norm must be 'row' or 'tensor', got 'col'"),
        ({"norm_eps": 0.0}, "norm_eps must be positive, got 0.0"),
        ({"norm": "batch"}, "norm must be one of all, input, none, got 'batch'"),
        ({"dropout_at": "x"}, "dropout_at must be one of layers, ends, got 'x'"),
        (
            {"num_heads": 2, "learn_qk": False, "use_weight": False},
            "num_heads must be 1 where neither learn_qk nor use_weight",
        ),
        ({"activation": "swish"}, "activation must be None or one of relu"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        DIFFormer(3, 4, 2, **options)


def test_bad_widths_are_named():
    with pytest.raises(ValueError, match="hidden_channels must be a whole number"):
        DIFFormer(3, 0, 2)


@pytest.mark.parametrize(
    ("x", "kwargs", "message"),
    [
        (torch.zeros(4, 5), {}, r"x must have shape \(n, 6\), got \(4, 5\)"),
        (torch.zeros(6), {}, r"x must have shape \(n, 6\)"),
        (torch.zeros(0, 6), {}, "x must have at least one row"),
        (torch.zeros(2, 6, dtype=torch.int64), {}, "x must be of a floating-point type"),
        (torch.full((2, 6), float("nan")), {}, r"x must be finite, got 12 NaN.*first at \(0, 0\)"),
        (torch.full((2, 6), float("inf")).to_sparse_csr(), {}, "x must be finite"),
        (
            torch.zeros(2, 6),
            {"edge_index": torch.tensor([[0], [2]])},
            "must name rows 0 to 1, got 2",
        ),
        (
            torch.zeros(2, 6),
            {"batch": torch.zeros(3, dtype=torch.int64)},
            r"batch must have shape \(2,\)",
        ),
        (torch.zeros(2, 6), {"batch": torch.zeros(2)}, "batch must hold integers"),
    ],
)
def test_bad_input_is_named(x, kwargs, message):
    model = DIFFormer(6, 8, 3)
    with pytest.raises(ValueError, match=message):
        model(x, **kwargs)


def test_bad_graphs_layers_and_rows_are_named():
    model, x, edges = make({})
    graph = Graph.from_edges(edges, 23)
    with pytest.raises(ValueError, match="edge_weight must be None with a Graph"):
        model(x, graph, torch.ones(3))
    with pytest.raises(ValueError, match="Graph of 23 rows, x has 4"):
        model(x[:4], graph)
    with pytest.raises(ValueError, match="layer must lie in 0 to 1, got 2"):
        model.diffusivity(x, layer=2)
    with pytest.raises(ValueError, match="rows must be a list of rows from 0 to 22"):
        model.diffusivity(x, rows=torch.tensor([23]))


def test_one_row_and_a_graph_without_edges_are_fine(options):
    model, x, _ = make(options)
    assert torch.isfinite(model(x[:1])).all()
    assert torch.isfinite(model(x, torch.zeros(2, 0, dtype=torch.int64))).all()

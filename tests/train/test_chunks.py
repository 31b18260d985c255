"""A model in chunks, recomputed or over processes is the model itself, in less memory."""

from __future__ import annotations

import gc

import pytest
import torch

from difformer.core.draws import generator
from difformer.core.euler import add_product
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.layer import DiffusionLayer
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks, recompute_layers
from difformer.train.processes import Comm
from difformer.train.seeding import seeded
from difformer.train.sharded import ShardedDIFFormer, ShardedGraph

CASES = [
    {},
    {"kernel": "sigmoid"},
    {"kernel": "identity"},
    {"kernel": "constant"},
    {"kernel": "softmax"},
    {"qk_norm": "tensor"},
    {"num_heads": 2, "source": 0.2, "center": True},
    {"use_weight": False, "graph_weight": 0.3, "activation": "relu"},
    {"use_weight": False, "learn_qk": False, "norm": "input", "center": True},
    {"use_graph": False},
]


def make(n: int = 63):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    edges = torch.randint(n, (2, 4 * n), generator=generator)
    return x, Graph.from_edges(edges, n)


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("chunk", [1, 10, 63, 1000])
def test_chunks_give_the_models_own_outputs(options, chunk):
    x, graph = make()
    model = DIFFormer(5, 8, 3, num_layers=3, dropout=0.5, **options).double()
    for edges, features in ((graph, x), (None, x), (graph, x.to_sparse_csr())):
        model.train()
        out = predict_in_chunks(model, features, edges, chunk=chunk)
        assert model.training
        torch.testing.assert_close(out, model.eval()(x, edges), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("own", [False, True])
def test_recomputed_layers_have_the_same_gradients_with_dropout(own):
    x, graph = make()
    grads = []
    for recompute in (False, True):
        with seeded(0, own=own):
            model = DIFFormer(5, 8, 3, num_layers=3, dropout=0.5).double()
            names = set(model.state_dict())
            if recompute:
                recompute_layers(model)
            model(x, graph).square().sum().backward()
            after = torch.randint(100, (3,), generator=generator())
        grads.append([*(p.grad for p in model.parameters()), after])
        assert set(model.state_dict()) == names
    assert all(a.equal(b) for a, b in zip(*grads, strict=True))


def held_bytes(model: DIFFormer, n: int) -> int:
    """What is alive between forward and backward."""
    x = torch.randn(n, 5)
    output = model(x)
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.device.type == "cpu"]
    storages = [t.untyped_storage() for t in tensors if t.layout == torch.strided]
    assert output.requires_grad
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def test_a_recomputed_layer_keeps_one_state():
    n, width = 5000, 16
    held = {}
    for again in (False, True):
        models = [DIFFormer(5, width, 3, num_layers=k) for k in (2, 6)]
        for model in models:
            if again:
                recompute_layers(model)
        few, many = (held_bytes(model, n) for model in models)
        held[again] = (many - few) / (4 * n * width * 4)  # in states a layer
    assert held[True] < 1.2 < held[False]


def gradients(model, x, graph):
    x = x.clone().requires_grad_()
    out = model(x, graph)
    chosen = [p for p in model.parameters() if p.requires_grad]
    return [out, *torch.autograd.grad(out.square().sum(), [x, *chosen])]


@pytest.mark.parametrize("options", [{}, {"num_heads": 3}, {"source": 0.3, "graph_weight": 0.4}])
def test_a_step_over_processes_is_the_fused_one_that_stores_no_queries_and_keys(
    monkeypatch, options
):
    x, graph = make()
    model = DIFFormer(5, 8, 3, num_layers=2, **options).double()
    edges = (*graph.ends(0, graph.num_edges), None)
    local = ShardedGraph.build(*edges, [0, 63], Comm(), symmetric=graph.symmetric, dtype=x.dtype)
    slow = gradients(model, x, graph)

    def stored(*_):
        raise AssertionError("the step that stores queries and keys was taken")

    monkeypatch.setattr(DiffusionLayer, "meet", stored)
    fast = gradients(ShardedDIFFormer(model, Comm()), x, local)
    for one, two in zip(slow, fast, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-9)


def test_a_product_added_in_place_has_the_gradients_of_a_sum():
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    dense[dense.abs() < 0.8] = 0
    matrix = SparseMatrix.from_csr(dense.to_sparse_csr())
    out = torch.randn(7, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    slow, fast = out * 2 + 0.3 * dense @ value, add_product(out * 2, matrix, value, 0.3)
    torch.testing.assert_close(fast, slow)
    one, two = (torch.autograd.grad(each.square().sum(), [out, value]) for each in (slow, fast))
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b)

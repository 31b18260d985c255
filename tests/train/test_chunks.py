"""Evaluation in chunks is the model's own forward; recomputing layers changes no bit."""

from __future__ import annotations

import gc

import pytest
import torch

from difformer.core.graph import Graph
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks, recompute_layers

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
    model.train()
    for edges in (graph, None):
        out = predict_in_chunks(model, x, edges, chunk=chunk)
        assert model.training
        model.eval()
        torch.testing.assert_close(out, model(x, edges), rtol=1e-10, atol=1e-12)
        model.train()


def test_sparse_features_in_chunks():
    x, graph = make()
    model = DIFFormer(5, 8, 3).double().eval()
    out = predict_in_chunks(model, x.to_sparse_csr(), graph, chunk=10)
    torch.testing.assert_close(out, model(x, graph), rtol=1e-10, atol=1e-12)


def test_recomputed_layers_have_the_same_gradients_with_dropout():
    x, graph = make()
    model = DIFFormer(5, 8, 3, num_layers=3, dropout=0.5).double()
    grads = []
    for _ in range(2):
        torch.manual_seed(1)
        model.zero_grad()
        model(x, graph).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
        recompute_layers(model)
    assert all(a.equal(b) for a, b in zip(*grads, strict=True))
    assert set(model.state_dict()) == set(DIFFormer(5, 8, 3, num_layers=3).state_dict())


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

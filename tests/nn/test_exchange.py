"""One step for every path, and rows compared by something other than the layer's states."""

import pytest
import torch
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.nn.exchange import Exchange
from difformer.nn.model import DIFFormer
from difformer.train.chunks import predict_in_chunks
from difformer.train.comm import Comm
from difformer.train.sharded import ShardedDIFFormer


class ComparesFeatures(DIFFormer):
    """Queries and keys are the input features in every layer."""

    def compared(self, features, first):
        return features


def make(**options):
    torch.manual_seed(0)
    model = ComparesFeatures(6, 8, 3, num_layers=3, learn_qk=False, **options).double()
    return model.eval(), torch.randn(23, 6, dtype=torch.float64)


def dense(model, x, adjacency=None):
    z = first = model.embed(x)
    c = model.config
    for layer in model.layers:
        weights = layer.diffusivity.weights(x, x)
        v = z if layer.value is None else F.linear(z, layer.value.weight, layer.value.bias)
        p = weights @ v
        if adjacency is not None:
            p = p + adjacency @ v if c.graph_weight is None else torch.lerp(p, adjacency @ v, 0.4)
        p = (1 - c.source) * p + c.source * first
        u = (1 - c.tau) * z + c.tau * p
        z = layer.norm(u - u.mean(0) if c.center else u)
    return model.output(z)


OPTIONS = [
    {"kernel": "simple"},
    {"kernel": "simple", "source": 0.2, "center": True},
    {"kernel": "sigmoid", "graph_weight": 0.4},
    {"kernel": "sigmoid", "use_weight": False},
    {"kernel": "softmax", "source": 0.1},
    {"kernel": "gaussian", "center": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_path_compares_what_it_is_handed(options):
    model, x = make(**options)
    graph = Graph.from_edges(torch.randint(23, (2, 60)), 23, undirected=True).to(x)
    expected = dense(model, x, graph.dense())
    torch.testing.assert_close(model(x, graph), expected)
    torch.testing.assert_close(predict_in_chunks(model, x, graph, chunk=7), expected)
    torch.testing.assert_close(ShardedDIFFormer(model, Comm())(x), dense(model, x))
    # A row that is known already is moved as it was.
    torch.testing.assert_close(model.freeze(x)(x[:5]), dense(model, x)[:5])
    weights = model.layers[1].diffusivity.weights(x, x)
    torch.testing.assert_close(model.diffusivity(x, graph, layer=1), weights)


def test_compared_rows_get_their_gradients():
    model, x = make(kernel="simple")
    probe = torch.randn(23, 3, dtype=torch.float64)
    inputs = x.clone().requires_grad_()
    fast = torch.autograd.grad((model(inputs) * probe).sum(), inputs)
    plain = torch.autograd.grad((dense(model, inputs) * probe).sum(), inputs)
    torch.testing.assert_close(fast, plain)


def test_a_layer_takes_its_merge_its_neighbours_and_its_mean_from_outside():
    torch.manual_seed(0)
    model = DIFFormer(6, 8, 3, num_layers=1, center=True).double()
    layer = model.layers[0]
    z, others = torch.randn(5, 8, dtype=torch.float64), torch.randn(9, 8, dtype=torch.float64)
    both = torch.cat([z, others])

    class WithOthers(Exchange):
        here = False

        def context(self, kernel, q, k, v):
            return super().context(kernel, q, k, v) + layer.summarise(others)

        def neighbours(self, value):
            return 2 * value

        def mean(self, u):
            return u.new_full((1, 8), 0.5)

    q, k, v = layer.project(both)
    pairs = (layer.diffusivity.weights(q, k) @ v)[0, :5] + 2 * v[0, :5]
    expected = layer.norm(0.5 * z + 0.5 * pairs - 0.5)
    torch.testing.assert_close(layer(z, None, WithOthers()), expected)


def test_fused_steps_equal_the_plain_one_in_every_case():
    """The closed form, the step in place and the sum of terms are one step."""
    for options in ({}, {"qk_norm": "tensor"}, {"num_heads": 3}, {"source": 0.3}):
        torch.manual_seed(0)
        layer = DIFFormer(6, 8, 3, num_layers=1, graph_weight=0.4, **options).double().layers[0]
        z, first = torch.randn(2, 23, 8, dtype=torch.float64)
        graph = Graph.from_edges(torch.randint(23, (2, 60)), 23).to(z)
        exchange = Exchange(graph)
        q, k, v = layer.project(z)
        terms = layer.mix(z, layer.average(q, k, v), graph.propagate(v.mean(0)), first)
        torch.testing.assert_close(layer.move(z, first, exchange), terms)
        torch.testing.assert_close(layer.meet(z, q, k, v, first, exchange), terms)

"""How rows interact is handed to a layer; every form of the step is the same step."""

import torch

from difformer.core.graph import Graph
from difformer.nn.exchange import Exchange
from difformer.nn.model import DIFFormer


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

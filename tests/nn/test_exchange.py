"""How rows interact is handed to a layer from outside."""

import torch

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

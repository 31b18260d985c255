"""The fused Euler step against its terms one by one."""

import pytest
import torch

from difformer.core.euler import StepWeights, euler_step
from difformer.core.graph import Graph


@pytest.mark.parametrize("n", [1, 2, 63, 257])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("own_value", [True, False])
@pytest.mark.parametrize("sourced", [True, False])
def test_values_and_gradients_equal_the_sum_of_terms(n, symmetric, own_value, sourced):
    torch.manual_seed(n)
    edges = torch.randint(n, (2, 3 * n))
    graph = Graph.from_edges(edges, n, undirected=symmetric).to(torch.empty(0, dtype=torch.float64))
    z, pairs, first, value = (
        torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for _ in range(4)
    )
    w = StepWeights(0.3, 0.5, 0.7, 0.2)
    carried = z if own_value else value
    rest = {"first": first if sourced else None, "value": None if own_value else value}
    fast = euler_step(w, z, pairs, adjacency=graph.adjacency, **rest)
    plain = w.state * z + w.pairs * pairs + w.neighbours * (graph.dense() @ carried)
    if sourced:
        plain = plain + w.source * first
    torch.testing.assert_close(fast, plain)
    inputs = [z, pairs, *([first] if sourced else []), *([] if own_value else [value])]
    probe = torch.randn(n, 4, dtype=torch.float64)
    grads = [torch.autograd.grad((out * probe).sum(), inputs) for out in (fast, plain)]
    torch.testing.assert_close(*grads)

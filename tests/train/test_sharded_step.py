"""The step over processes is the fused one of a single process, with its outputs and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from difformer.core.euler import add_product
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.layer import DiffusionLayer
from difformer.nn.model import DIFFormer
from difformer.train.processes import Comm
from difformer.train.sharded import ShardedDIFFormer
from difformer.train.sharding import ShardedGraph

N = 63


def gradients(model: torch.nn.Module, x: Tensor, graph: Any) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = model(x, graph)
    chosen = [p for p in model.parameters() if p.requires_grad]
    return [out, *torch.autograd.grad(out.square().sum(), [x, *chosen])]


@pytest.mark.parametrize("options", [{}, {"num_heads": 3}, {"source": 0.3, "graph_weight": 0.4}])
def test_queries_and_keys_are_not_stored(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=generator, dtype=torch.float64)
    ends = torch.randint(N, (2, 200), generator=generator)
    graph = Graph.from_edges(ends, N, undirected=True, self_loops=True)
    model = DIFFormer(5, 8, 3, num_layers=2, **options).double()
    ends = graph.ends(0, graph.num_edges)
    local = ShardedGraph.build(*ends, None, [0, N], Comm(), symmetric=True, dtype=x.dtype)
    slow = gradients(model, x, graph)

    def stored(*_: Any) -> None:
        raise AssertionError("the step that stores queries and keys was taken")

    monkeypatch.setattr(DiffusionLayer, "meet", stored)
    fast = gradients(ShardedDIFFormer(model, Comm()), x, local)
    for one, two in zip(slow, fast, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-9)


def test_a_product_added_in_place_has_the_gradients_of_a_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    dense[dense.abs() < 0.8] = 0
    matrix = SparseMatrix.from_csr(dense.to_sparse_csr())
    out = torch.randn(7, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    slow = out * 2 + 0.3 * dense @ value
    fast = add_product(out * 2, matrix, value, 0.3)
    torch.testing.assert_close(fast, slow)
    for one, two in zip(
        torch.autograd.grad(slow.square().sum(), [out, value]),
        torch.autograd.grad(fast.square().sum(), [out, value]),
        strict=True,
    ):
        torch.testing.assert_close(one, two)

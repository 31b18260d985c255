"""Our training step compared with those of other libraries.

python -m benchmarks.peers             writes results/benchmarks/peers.json

Cora, width 64, two layers, dropout 0.5, features as each library takes them: DIFFormer, and GCN,
GAT and SGFormer of PyTorch Geometric. The all-pair average of -a is compared with PyTorch's softmax
attention of the same shape, forward and backward. These compute different things: only their cost
is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import Ratio, all_pair_average, alternate, write_results
from benchmarks.steps import stepper
from difformer import DIFFormer, Graph, load_dataset
from difformer.core.diffusivity import Sigmoid
from difformer.nn.config import RECIPES

WIDTH, LAYERS = 64, 2
ATTENTION_ROWS = (2_000, 8_000)


class ByEdges(nn.Module):
    """A PyG model called as ours is: (x, edge_index)."""

    def __init__(self, model: nn.Module, *more: Tensor) -> None:
        super().__init__()
        self.model, self.more = model, more

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.model(x, edges, *self.more)


def models(features: int, classes: int, rows: int) -> dict[str, nn.Module]:
    """PyG's models at our width and depth."""
    from torch_geometric.nn.models import GAT, GCN, SGFormer

    return {
        "GCN": ByEdges(GCN(features, WIDTH, LAYERS, classes, dropout=0.5, cached=True)),
        "GAT": ByEdges(GAT(features, WIDTH, LAYERS, classes, dropout=0.5, heads=8)),
        "SGFormer": ByEdges(
            SGFormer(
                features,
                WIDTH,
                classes,
                trans_num_layers=1,
                trans_num_heads=1,
                gnn_num_layers=LAYERS,
            ),
            torch.zeros(rows, dtype=torch.long),
        ),
    }


def forms() -> dict[str, dict[str, Any]]:
    """DIFFormer-s as `difformer train` uses it, and in the released form."""
    return {
        "stable": {**RECIPES["stable"], "num_layers": LAYERS},
        "released": {**RECIPES["released"], "num_layers": LAYERS, "dropout": 0.5},
    }


def cora() -> dict[str, Ratio]:
    """Training steps of the whole graph."""
    data = load_dataset("cora")
    assert data.edge_index is not None
    loops = torch.arange(data.num_rows).repeat(2, 1)
    graph = Graph.from_edges(torch.cat([data.edge_index, loops], dim=1), data.num_rows)
    dense = data.x.to_dense()
    results: dict[str, Ratio] = {}
    for form, options in forms().items():
        for name, peer in models(data.num_features, data.num_outputs, data.num_rows).items():
            torch.manual_seed(0)
            ours = DIFFormer(data.num_features, WIDTH, data.num_outputs, **options)
            title = f"DIFFormer-s, {form} form, beside PyG's {name}"
            results[title] = alternate(
                title,
                stepper(ours, data.x, graph, data.y, fused=True),
                stepper(peer, dense, data.edge_index, data.y, fused=True),
                tolerance=None,
            )
            results[title].show()
    return results


def attention() -> dict[str, Ratio]:
    """Σ_j σ(q·k) v / Σ_j σ(q·k) and softmax attention, forward and backward."""
    results: dict[str, Ratio] = {}
    for rows in ATTENTION_ROWS:
        for tied in (False, True):
            torch.manual_seed(0)
            q, k, v = (torch.randn(rows, WIDTH, requires_grad=True) for _ in range(3))
            title = f"-a, {rows:,} rows, {'states as' if tied else 'own'} queries and keys"
            ours = _sigmoid(q, k, v, tied)
            results[title] = alternate(title, ours, _softmax(q, k, v, tied), tolerance=None)
            results[title].show()
    return results


def our_pairs(rows: int, tied: bool) -> Callable[[], Tensor]:
    """Our all-pair average of -a alone, forward and backward."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(rows, WIDTH, requires_grad=True) for _ in range(3))
    return _sigmoid(q, k, v, tied)


def _sigmoid(q: Tensor, k: Tensor, v: Tensor, tied: bool) -> Callable[[], Tensor]:
    kernel = Sigmoid()

    def step() -> Tensor:
        if tied:
            out = all_pair_average(kernel, q)
        else:
            out = kernel(q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0))
        out.sum().backward()
        return out.detach()

    return step


def _softmax(q: Tensor, k: Tensor, v: Tensor, tied: bool) -> Callable[[], Tensor]:
    def step() -> Tensor:
        parts = (q, q, q) if tied else (q, k, v)
        out = F.scaled_dot_product_attention(*(t.view(1, 1, *t.shape) for t in parts))
        out.sum().backward()
        return out.detach()

    return step


if __name__ == "__main__":
    write_results("peers", {**cora(), **attention()})

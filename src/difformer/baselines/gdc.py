"""GDC (Klicpera, Weissenberger and Gunnemann 2019): a GCN on a diffused and sparsified graph."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric import transforms
from torch_geometric.data import Data

from difformer.baselines.gcn import GCN
from difformer.baselines.layers import GraphModel
from difformer.baselines.registry.diffusions import GDCConfig
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.nn.remembered import Remembered

__all__ = ["GDC", "diffuse"]

_DIFFUSED: Remembered[Graph] = Remembered()  # several seeds on one graph diffuse it once


class GDC(GraphModel):
    """Graph diffusion convolution: O(n³) once, then a GCN with k edges per row.

        S = Σ_r θ_r T^r,   θ_r = α (1 − α)^r (ppr) or e^−t t^r / r! (heat)        (eqs. 1, 2, 4)

    The k largest entries of each column are kept and columns are scaled to sum to one. The
    transform is PyTorch Geometric's, in its exact form. Left out: the approximate push algorithm.
    """

    title = "GDC"

    def __init__(self, in_channels: int, out_channels: int, config: GDCConfig) -> None:
        super().__init__()
        self.gcn = GCN(in_channels, out_channels, config)
        self.config = config

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        config = self.config
        diffused = _DIFFUSED.get(
            (graph.edge_index, graph.edge_weight),
            (config.diffusion, config.alpha, config.time, config.top_k),
            lambda: diffuse(graph, config),
        )
        return self.gcn(x, diffused)


def diffuse(graph: Graph, config: GDCConfig) -> Graph:
    """The diffused graph; its weights are ready to use and are not normalised again."""
    kinds = {
        "ppr": {"method": "ppr", "alpha": config.alpha},
        "heat": {"method": "heat", "t": config.time},
    }
    n = graph.num_nodes
    transform = transforms.GDC(
        self_loop_weight=0,  # the prepared graph has its loops
        normalization_in="sym",
        normalization_out="col",
        diffusion_kwargs=kinds[config.diffusion],
        sparsification_kwargs={"method": "topk", "k": min(config.top_k, n), "dim": 0},
        exact=True,
    )
    data = Data(edge_index=graph.edge_index, edge_attr=graph.edge_weight, num_nodes=n)
    data = transform(data)
    assert data.edge_index is not None
    assert isinstance(data.edge_attr, Tensor)
    source, target, weight = data.edge_index[0], data.edge_index[1], data.edge_attr
    order = torch.argsort(target * n + source)
    source, target, weight = source[order], target[order], weight[order]
    matrix = SparseMatrix.from_coo(target, source, weight, (n, n))
    return Graph(weight, n, matrix)

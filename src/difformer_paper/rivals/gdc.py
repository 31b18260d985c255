"""GDC (Klicpera, Weissenberger and Gunnemann 2019): a GCN on a diffused and sparsified graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.nn.inputs import Remembered
from difformer.systems.gnn import GCN
from difformer.systems.layers import (
    GraphModel,
)
from difformer_paper.rivals.diffusions import heat_kernel
from difformer_paper.systems import GDCConfig

BLOCK = 2**22  # entries of the diffused graph that are held at once

_DIFFUSED: Remembered[Graph] = Remembered()  # several seeds on one graph diffuse it once


class GDC(GraphModel):
    """Graph diffusion convolution: O(n e) once, then a GCN with k edges per row.

        S = Σ_r θ_r T^r,   θ_r = α (1 − α)^r (ppr) or e^−t t^r / r! (heat)        (eqs. 1, 2, 4)

    The k largest entries of each column are kept and columns are scaled to sum to one. The sums
    are exact to single precision, but never formed whole: PyTorch Geometric inverts an n × n
    matrix. Left out: the approximate push algorithm.
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
    """The diffused graph; its weights are ready to use and are not normalised again.

    S is symmetric, so a block of its columns is S times a block of the identity: O(r e n) time for
    r products, and the k largest entries of each column are all that is kept of it, O(n k) memory.
    """
    n, k = graph.num_nodes, min(config.top_k, graph.num_nodes)
    found: list[tuple[Tensor, Tensor]] = []
    for part in tiles(n, max(1, BLOCK // n)):
        unit = torch.zeros(n, part.stop - part.start)
        unit[part] = torch.eye(part.stop - part.start)
        weight, source = _columns(graph, unit, config).topk(k, dim=0)
        weight = weight.clamp_min_(0.0)
        found.append((source.T, (weight / weight.sum(0)).T))
    source, weight = (torch.cat(parts).flatten() for parts in zip(*found, strict=True))
    target = torch.arange(n).repeat_interleave(k)
    kept = weight > 0
    order = torch.argsort(target[kept] * n + source[kept])
    source, target, weight = (t[kept][order] for t in (source, target, weight))
    matrix = SparseMatrix.from_sorted(target, source, weight, (n, n))
    return Graph(weight, n, matrix)


def _columns(graph: Graph, unit: Tensor, config: GDCConfig) -> Tensor:
    if config.diffusion == "heat":
        return heat_kernel(graph, unit, config.time)
    return page_rank(graph, unit, config.alpha)


def page_rank(graph: Graph, value: Tensor, alpha: float, tolerance: float = 1e-7) -> Tensor:
    """α (I − (1 − α) Ã)⁻¹ V by Chebyshev's iteration; the spectrum of Ã lies in [−1, 1].

    Its error falls by q = (1 − √(1 − δ²)) / δ with δ = 1 − α in each of O(1 / √α) products, that of
    the power series by δ.
    """
    delta = 1.0 - alpha
    rate = (1.0 - math.sqrt(1.0 - delta**2)) / delta
    rho, residual = delta, value * alpha
    step = residual.clone()
    total = torch.zeros_like(value)
    for _ in range(math.ceil(math.log(2.0 / tolerance) / -math.log(rate))):
        total += step
        residual += graph.propagate(step).mul_(delta).sub_(step)
        before, rho = rho, 1.0 / (2.0 / delta - rho)
        step.mul_(rho * before).add_(residual, alpha=2.0 * rho / delta)
    return total

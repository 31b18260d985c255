"""Parts of several systems, without PyTorch Geometric, and the perceptrons: MLP and APPNP."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import tiles
from difformer.data.dataset import Batch, Prediction
from difformer.nn.inputs import Remembered


class GraphModel(nn.Module):
    """A model over one graph, given as an edge list or as a prepared Graph.

    An edge list gets one loop per row, as in GCN, and is prepared once; a Graph is used unchanged.
    A batch of several graphs is fine if rows interact only along edges. A subclass implements
    `run`.
    """

    needs_graph: bool = True  # whether it must be called with edges

    def __init__(self) -> None:
        super().__init__()
        self._graph: Remembered[Graph] = Remembered()

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Graph | None = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor | Prediction:
        """x (n, in_channels), dense or sparse CSR -> (n, out_channels)."""
        return self.run(x, self.graph(edge_index, edge_weight, x), batch)

    def run(self, x: Tensor, graph: Any, batch: Tensor | None) -> Tensor | Prediction:
        """The output on a prepared graph, which is None only if none is needed."""
        raise NotImplementedError

    def observe(self, batch: Batch) -> None:
        """Measure the features' scale, for the layers that divide by it."""
        for module in self.modules():
            if isinstance(module, FeatureLinear):
                module.measure(batch.x)

    def graph(
        self, edge_index: Tensor | Graph | None, edge_weight: Tensor | None, x: Tensor
    ) -> Graph | None:
        """The prepared graph over x's rows; ValueError if one is needed and missing."""
        n = x.shape[0]
        if edge_index is None:
            if self.needs_graph:
                raise ValueError(f"edge_index must be given: {type(self).__name__} needs a graph")
            return None
        if isinstance(edge_index, Graph):
            if edge_index.num_nodes != n:
                raise ValueError(f"the graph must have x's {n} rows, it has {edge_index.num_nodes}")
            return edge_index
        make = partial(Graph.from_edges, edge_index, n, edge_weight, self_loops=True)
        return self._graph.get((edge_index, edge_weight), n, make)

    def one_graph(self, batch: Tensor | None) -> None:
        """ValueError for a batch of several graphs, where rows of different graphs would mix."""
        if batch is not None and batch.numel() and bool((batch != batch[0]).any()):
            raise ValueError(f"batch must be None: {type(self).__name__} takes one graph at a time")


class FeatureLinear(nn.Module):
    """dropout(x) s W + b for dense or sparse CSR x, in O(nonzeros · outputs).

    `s` is 1 unless `scaled`: then `measure(x)` sets it to one over the mean size of x's nonzero
    entries, so that a learning rate suits features of any unit. With `standardised`, `measure` also
    standardises dense columns to mean 0 and deviation 1; sparse ones (words) are left unchanged.
    """

    scale: Tensor | None
    mean: Tensor | None
    deviation: Tensor | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        init: str = "linear",
        scaled: bool = False,
        standardised: bool = False,
    ) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()) if scaled else None)
        self.register_buffer("mean", torch.zeros(inputs) if standardised else None)
        self.register_buffer("deviation", torch.ones(inputs) if standardised else None)
        self.linear = nn.Linear(inputs, outputs, bias=bias)
        self.dropout, self.biased, self.init = dropout, bias, init
        self._matrix: Remembered[SparseMatrix] = Remembered()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()
        if self.init == "glorot":  # the initialisation of PyG's graph layers
            nn.init.xavier_uniform_(self.linear.weight)

    def measure(self, x: Tensor) -> None:
        """Set s from these features, and the mean and deviation of their columns, where asked."""
        if self.mean is not None and x.layout == torch.strided:
            deviation, mean = torch.std_mean(x, 0, correction=0)
            self.mean, self.deviation = mean, torch.where(deviation > 0, deviation, 1.0)
        if self.scale is not None:
            size = (x if x.layout == torch.strided else x.values()).abs()
            total = size.sum() / (size > 0).sum().clamp_min(1)
            self.scale = torch.where(total > 0, 1 / total, torch.ones_like(total)).to(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        rate = self.dropout if self.training else 0.0
        weight = self.linear.weight if self.scale is None else self.linear.weight * self.scale
        if x.layout == torch.strided:
            if self.mean is not None and self.deviation is not None:
                x = (x - self.mean) / self.deviation
            return F.linear(F.dropout(x, rate, self.training), weight, self.linear.bias)
        matrix = self._matrix.get((x,), None, lambda: SparseMatrix.from_csr(x))
        out = matrix.dropout(rate) @ weight.T
        return out + self.linear.bias if self.biased else out


def make_norm(name: str | None, width: int) -> nn.Module:
    """The normalisation of that name, "batch" or "layer"; None is the identity."""
    kinds: dict[str | None, Any] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
    return kinds.get(name, nn.Identity)(width)


EDGE_CHUNK = 8192  # edges processed at once: their ends stay in the cache


class EdgeProduct:
    """y_i = Σ_{j→i} w_ij x_j with learnable weights, in O(e · width) and no n × n gradient.

    forward  Y = W X,   ∂X = Wᵀ ∂Y,   ∂w_ij = ∂Y_i · X_j

    Args:
        graph: its edges, sorted by target, give the order of the weights (e,).
    """

    def __init__(self, graph: Graph) -> None:
        self.source, self.target = graph.edge_index
        self.n = graph.num_nodes
        ones = torch.ones(self.source.shape, device=self.source.device)
        self._matrix = SparseMatrix.from_sorted(self.target, self.source, ones, (self.n, self.n))

    def __call__(self, weight: Tensor, x: Tensor) -> Tensor:
        """weight (e,), x (n, d) -> (n, d); with heads, weight (e, h), x (n, h, d) -> (n, h, d)."""
        if weight.dim() == 1:
            return self(weight.unsqueeze(1), x.unsqueeze(1)).squeeze(1)
        return _EdgeProduct.apply(weight, x, self)

    def by_head(self, weight: Tensor, x: Tensor, *, transposed: bool) -> Tensor:
        """The matrix of each head's weights, or its transpose, times its part of x (n, h, d)."""
        heads = zip(weight.detach().unbind(1), x.unbind(1), strict=True)
        made = [(self._matrix.with_values(w.contiguous()), h.contiguous()) for w, h in heads]
        return torch.stack([(m.transpose if transposed else m.csr) @ h for m, h in made], dim=1)


class _EdgeProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, x: Tensor, plan: EdgeProduct) -> Tensor:
        ctx.plan = plan
        ctx.save_for_backward(weight, x)
        return plan.by_head(weight, x, transposed=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, x = ctx.saved_tensors
        plan: EdgeProduct = ctx.plan
        grad = grads[0].contiguous()
        by_edge = torch.empty_like(weight)
        for part in tiles(len(weight), EDGE_CHUNK):
            # Whole rows, all heads at once: index_select copies them as blocks.
            end = grad.index_select(0, plan.target[part])
            end.mul_(x.index_select(0, plan.source[part]))
            torch.sum(end, dim=-1, out=by_edge[part])
        return by_edge, plan.by_head(weight, grad, transposed=True), None


def edge_softmax(score: Tensor, target: Tensor, n: int) -> Tensor:
    """exp(score) normalised over the edges that enter each row; score (e, ...) -> (e, ...)."""
    # Importing PyTorch Geometric takes longer than torch: only the systems that need it pay for it.
    from torch_geometric.utils import softmax

    return softmax(score, target, num_nodes=n)


class FilteredStack(GraphModel):
    """h ← P(h W_k) with dropout(ReLU(·)) between layers, for a propagation P of the model.

    A subclass calls `add_layers`.
    """

    def add_layers(self, in_channels: int, out_channels: int, config: Any) -> None:
        widths = [config.hidden_channels] * (config.num_layers - 1) + [out_channels]
        self.first = FeatureLinear(
            in_channels, widths[0], dropout=config.input_dropout, bias=False, init="glorot"
        )
        self.rest = nn.ModuleList(
            FeatureLinear(a, b, bias=False, init="glorot") for a, b in itertools.pairwise(widths)
        )
        self.dropout = config.dropout

    def filtered(self, x: Tensor, propagate: Callable[[Tensor], Tensor]) -> Tensor:
        """x (n, in_channels) -> (n, out_channels)."""
        h = propagate(self.first(x))
        for linear in self.rest:
            h = F.dropout(F.relu(h), self.dropout, self.training)
            h = propagate(linear(h))
        return h


class MLP(nn.Module):
    """A multi-layer perceptron, O(n d²) per layer; the graph is ignored.

        H⁽⁰⁾ = x,   H⁽ᵏ⁺¹⁾ = dropout(ReLU(norm(H⁽ᵏ⁾ W_k + b_k))),   the last layer is linear.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        widths = [config.hidden_channels] * (config.num_layers - 1) + [out_channels]
        self.first = FeatureLinear(
            in_channels, widths[0], dropout=config.input_dropout, standardised=config.standardise
        )
        self.rest = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.norms = nn.ModuleList(make_norm(config.norm, width) for width in widths[:-1])
        self.dropout = config.dropout

    def observe(self, batch: Batch) -> None:
        """Measure the features, where they are to be standardised."""
        self.first.measure(batch.x)

    def forward(self, x: Tensor, *_: object) -> Tensor:
        h = self.first(x)
        for norm, linear in zip(self.norms, self.rest, strict=True):
            h = linear(F.dropout(F.relu(norm(h)), self.dropout, self.training))
        return h


class APPNP(GraphModel):
    """A perceptron whose outputs go K steps of personalised PageRank, O(n d² + K e c).

        Z⁽⁰⁾ = H = MLP(x),   Z⁽ᵏ⁺¹⁾ = (1 − α) D^-1/2 (A + I) D^-1/2 Z⁽ᵏ⁾ + α H            (eq. 4)

    Left out: dropout on the adjacency.
    """

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        self.mlp = MLP(in_channels, out_channels, config)
        self.steps, self.alpha = config.steps, config.alpha

    def run(self, x: Tensor, graph: Graph, batch: Tensor | None) -> Tensor:
        first = self.mlp(x)
        graph, z = graph.to(first), first
        for _ in range(self.steps):
            z = torch.lerp(graph.propagate(z), first, self.alpha)
        return z

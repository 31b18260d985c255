"""NodeFormer (Wu et al. 2022): kernelised Gumbel-softmax message passing among all pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.graph import Graph
from difformer.core.tiled import tiles
from difformer.data.dataset import Prediction
from difformer.nn.inputs import Remembered
from difformer.systems.layers import FeatureLinear, GraphModel

EPS = 1e-6
NUMBERS_AT_ONCE = 2**18  # numbers (samples × outputs of rows) that fit into a CPU's cache

_WIDER: Remembered[list[Graph]] = Remembered()  # several seeds on one graph widen it once


class NodeFormerLayer(nn.Module):
    """One all-pair layer, O(n h g m d) time for m random features and g Gumbel samples.

        z_i = mean over g of Σ_j κ(q_i, k_j) e^(g_j/τ) v_j / Σ_j κ(q_i, k_j) e^(g_j/τ)   (eq. 6)
        z_i += Σ_r σ(b_r) (Ã_r v)_i                                   (relational bias, eq. 9)

    κ(q, k) = φ(q)·φ(k) estimates e^(q·k/τ) by positive random features (eq. 5). Ã_r joins rows
    that are at most 2^(r − 1) edges apart, as in the released code. Also returns the mean over
    edges of log κ-attention, each edge divided by its target's degree (eq. 8).
    """

    def __init__(self, width: int, config: Any) -> None:
        super().__init__()
        wide = width * config.num_heads
        self.query, self.key, self.value = (nn.Linear(width, wide) for _ in range(3))
        self.out = nn.Linear(wide, width)
        self.bias = nn.Parameter(torch.full((config.bias_order, config.num_heads), 0.1))
        self.width, self.config = width, config
        self.register_buffer("projection", draw_projection(config.features, width))

    def forward(self, z: Tensor, graphs: list[Graph]) -> tuple[Tensor, Tensor | None]:
        """z (n, d), and the graphs Ã_1, Ã_2, ..., or none."""
        heads, width, config = self.config.num_heads, self.width, self.config
        scale = 1.0 / math.sqrt(config.tau)
        q, k = (t(z).view(-1, heads, width) * scale for t in (self.query, self.key))
        v = self.value(z).view(-1, heads, width)
        projection = self.projection
        assert isinstance(projection, Tensor)
        if self.training:  # new directions at every step; fixed ones when predicting
            projection = draw_projection(config.features, width).to(z)
        fq = positive_features(q, projection, query=True)  # (n, h, m)
        fk = positive_features(k, projection, query=False)
        mixed = self.attend(fq, fk, v)
        for weight, graph in zip(self.bias, graphs, strict=False):
            mixed = mixed + torch.sigmoid(weight).view(1, heads, 1) * self.moved(z, graph)
        loss = edge_score(fq, fk, graphs[0]) if graphs else None
        return self.out(mixed.reshape(z.shape[0], -1)), loss

    def moved(self, z: Tensor, graph: Graph) -> Tensor:
        """Ã v (n, h, d) as (Ã z) Wᵀ + (Ã 1) bᵀ: Ã is multiplied by d + 1 columns, not by h d."""
        # A product of its own: with d + 1 columns at once the other would take 1.5 times as long.
        mass = graph.propagate(z.new_ones(z.shape[0], 1))
        value = graph.propagate(z) @ self.value.weight.T + mass * self.value.bias
        return value.view(-1, self.config.num_heads, self.width)

    def attend(self, fq: Tensor, fk: Tensor, v: Tensor) -> Tensor:
        """The all-pair average (n, h, d); with Gumbel noise on the keys while training."""
        if not self.training or self.config.gumbels == 0:
            top = torch.einsum("nhm,hmd->nhd", fq, torch.einsum("nhm,nhd->hmd", fk, v))
            return top / torch.einsum("nhm,hm->nh", fq, fk.sum(0)).unsqueeze(-1)
        noise = -torch.empty(*fk.shape[:2], self.config.gumbels, device=fk.device)
        noise = -noise.exponential_().log() / self.config.tau
        # A factor common to all keys cancels: the largest becomes one, nothing overflows.
        noisy = torch.exp(noise - noise.amax(0, keepdim=True))  # (n, h, g)
        return noisy_average(fq, fk, v, noisy.to(fk))


def noisy_average(fq: Tensor, fk: Tensor, v: Tensor, noisy: Tensor) -> Tensor:
    """z_i = mean over g of Σ_j (φ_i·φ_j) e_jg v_j / Σ_j (φ_i·φ_j) e_jg, O(n h g m d), O(n) memory.

    Shapes: fq, fk (n, h, m), v (n, h, d), e = noisy (n, h, g), which has no gradient -> (n, h, d).
    """
    first = (t.transpose(0, 1).contiguous() for t in (fq, fk, v, noisy))
    return _NoisyAverage.apply(*first).transpose(0, 1)


class _NoisyAverage(torch.autograd.Function):
    """Products over all samples exist for a few rows at a time only, forward and backward.

    The heads are the first dimension here.

    With T_g = Σ_j e_jg φ_j v_jᵀ (m, d), s_g = Σ_j e_jg φ_j and w_ig = 1 / (G φ_i · s_g):
    z_i = Σ_g w_ig φ_i T_g.  Back, with ∂b_ig = −G w_ig² (φ_i T_g · ∂z_i):
    ∂φ_i = Σ_g w_ig T_g ∂z_i + ∂b_ig s_g,   ∂T_g = Σ_i w_ig φ_i ∂z_iᵀ,   ∂s_g = Σ_i ∂b_ig φ_i,
    and for keys   ∂φ_j = Σ_g e_jg (∂T_g v_j + ∂s_g),   ∂v_j = Σ_g e_jg φ_j ∂T_g.
    """

    @staticmethod
    def forward(ctx: Any, fq: Tensor, fk: Tensor, v: Tensor, e: Tensor) -> Tensor:
        (h, n, m), g, d = fk.shape, e.shape[2], v.shape[2]
        table = v.new_zeros(h, m, g * d)
        for part in _parts(n, h * g * d):
            table.baddbmm_(fk[:, part].mT, _outer(e[:, part], v[:, part]))
        sums = fk.mT @ e
        weight = 1 / (g * (fq @ sums + EPS**2))
        out = torch.empty_like(v)
        for part in _parts(n, h * g * d):
            out[:, part] = _mixed(weight[:, part], fq[:, part] @ table)
        ctx.save_for_backward(fq, fk, v, e, weight, table, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        fq, fk, v, e, weight, table, sums = ctx.saved_tensors
        grad = grads[0].contiguous()
        (h, n, _), g, d = fk.shape, e.shape[2], v.shape[2]
        dfq, dfk, dv = torch.empty_like(fq), torch.empty_like(fk), torch.empty_like(v)
        db, dtable = torch.empty_like(weight), torch.zeros_like(table)
        for part in _parts(n, h * g * d):
            each = (fq[:, part] @ table).view(h, -1, g, d).mul_(grad[:, part].unsqueeze(2))
            db[:, part] = weight[:, part].square() * each.sum(3) * -g
            weighed = _outer(weight[:, part], grad[:, part])
            dfq[:, part] = weighed @ table.mT
            dtable.baddbmm_(fq[:, part].mT, weighed)
        for part in _parts(n, h * g * d):
            dfk[:, part] = _outer(e[:, part], v[:, part]) @ dtable.mT
            dv[:, part] = _mixed(e[:, part], fk[:, part] @ dtable)
        return dfq.baddbmm_(db, sums.mT), dfk.baddbmm_(e, db.mT @ fq), dv, None


def _outer(a: Tensor, b: Tensor) -> Tensor:
    """a (h, r, g), b (h, r, d) -> their products (h, r, g d)."""
    return (a.unsqueeze(3) * b.unsqueeze(2)).flatten(2)


def _mixed(weight: Tensor, each: Tensor) -> Tensor:
    """Σ_g weight_g each_g:  (h, r, g), (h, r, g d) -> (h, r, d)."""
    h, r, g = weight.shape
    return each.view(h, r, g, -1).mul_(weight.unsqueeze(3)).sum(2)


def _parts(n: int, width: int) -> Iterator[slice]:
    """Slices of rows, small enough that a tensor of this width stays in the cache."""
    return tiles(n, max(1, NUMBERS_AT_ONCE // width))


class NodeFormer(GraphModel):
    """NodeFormer with its edge loss; it uses the graph where one is given.

        H⁽ᵏ⁺¹⁾ = dropout([act] LayerNorm(layer(H⁽ᵏ⁾) + H⁽ᵏ⁾)),   loss − λ · mean score  (eq. 8)

    The first linear layer's bias would dominate features that are divided by their row sums, and
    LayerNorm would make it worse, so they are scaled; the released code overcomes this in 1,000
    epochs.
    Left out: jumping knowledge and BatchNorm in place of LayerNorm, both off in its citation runs.

    Shapes: x (n, in_channels) dense or sparse CSR -> (n, out_channels).
    """

    needs_graph = False

    def __init__(self, in_channels: int, out_channels: int, config: Any) -> None:
        super().__init__()
        d = config.hidden_channels
        self.first = FeatureLinear(
            in_channels, d, dropout=config.input_dropout, scaled=config.scale_features
        )
        self.layers = nn.ModuleList(NodeFormerLayer(d, config) for _ in range(config.num_layers))
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(config.num_layers + 1))
        self.last = nn.Linear(d, out_channels)
        self.config = config

    def run(self, x: Tensor, graph: Graph | None, batch: Tensor | None) -> Tensor | Prediction:
        self.one_graph(batch)
        rate = self.config.dropout
        z = F.dropout(F.elu(self.norms[0](self.first(x))), rate, self.training)
        scores: list[Tensor] = []
        order = max(1, self.config.bias_order)
        graphs: list[Graph] = []
        if graph is not None:
            graphs = _WIDER.get((graph.edge_index,), order, lambda: wider(graph, order))
        for layer, norm in zip(self.layers, list(self.norms)[1:], strict=True):
            new, score = layer(z, graphs)
            z = norm(new + z)
            z = F.dropout(F.elu(z) if self.config.activation else z, rate, self.training)
            scores += [] if score is None else [score]
        output = self.last(z)
        if not self.training or not scores or not self.config.penalty:
            return output
        return Prediction(output, -self.config.penalty * torch.stack(scores).mean())


def positive_features(x: Tensor, projection: Tensor, *, query: bool) -> Tensor:
    """φ(x) with φ(q)·φ(k) ≈ e^(q·k/√d) up to a factor that the division cancels.

    φ(x) = e^(−‖u‖²/2) e^(P u) / √m,   u = x / d^(1/4).   x (n, h, d), P (m, d) -> (n, h, m).
    """
    u = x / x.shape[-1] ** 0.25
    dash = u @ projection.T - u.square().sum(-1, keepdim=True) / 2
    # The maximum is subtracted so that nothing overflows: per row for queries, over all rows for
    # keys, whose factor must be common to cancel.
    top = dash.amax(-1, keepdim=True) if query else dash.amax((0, 2), keepdim=True)
    return (torch.exp(dash - top.detach()) + EPS) / math.sqrt(projection.shape[0])


def wider(graph: Graph, order: int) -> list[Graph]:
    """Graphs that join rows at most 1, 2, 4, ..., 2^(order − 1) edges apart.

    The graph must have one self-loop per row, so that shorter paths count too. It is the first
    itself; the others have edges without weights and are normalised by their own degrees.
    """
    n, found = graph.num_nodes, [graph]
    source, target = (ends.numpy(force=True) for ends in graph.edge_index)
    near: Any = csr_array((torch.ones(len(source), dtype=torch.bool), (target, source)), (n, n))
    for _ in range(1, order):
        near = near @ near
        near.sort_indices()
        rows, columns = (torch.from_numpy(ends) for ends in near.nonzero())
        wide = Graph.from_sorted(columns.long(), rows.long(), n, symmetric=graph.symmetric)
        found.append(wide.to(graph.adjacency.values))
    return found


def edge_score(fq: Tensor, fk: Tensor, graph: Graph) -> Tensor:
    """Mean over edges and heads of log(attention) / degree of the target."""
    source, target = graph.edge_index
    mass = torch.einsum("nhm,hm->nh", fq, fk.sum(0))
    share = (fq[target] * fk[source]).sum(-1) / mass[target]
    degree = torch.bincount(target, minlength=graph.num_nodes).to(share)
    return (torch.log(share + EPS**2) / degree[target].unsqueeze(1)).mean()


def draw_projection(count: int, width: int) -> Tensor:
    """(count, width) Gaussian directions, orthogonal in blocks of width rows."""
    blocks = [torch.linalg.qr(torch.randn(width, width))[0].T for _ in range(-(-count // width))]
    return torch.cat(blocks)[:count] * torch.randn(count, width).norm(dim=1, keepdim=True)

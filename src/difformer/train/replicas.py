"""Train many copies of one averaging model at once, each on its own rows: cheap validation.

Where the layers only average (no weights, norm, activation or dropout in between) the last state
is a fixed linear map of the first, Z⁽ᴷ⁾ = D Z⁽⁰⁾, and a loss on few rows needs only their rows of
D. These are made once, by one backward pass through the layers, and shared by all copies and
epochs. With a linear first state even D X is made once, and only a linear regression is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.draws import dropout, generator
from difformer.core.graph import Graph
from difformer.core.sparse import SparseMatrix
from difformer.data.dataset import scipy_csr
from difformer.nn.config import DIFFormerConfig
from difformer.nn.model import DIFFormer
from difformer.train.seeding import seeded

RowLosses = Callable[[Tensor, Tensor], Tensor]

# Entries of D below this are left out: a row's weights sum to about one.
NEGLIGIBLE = 1e-7
# Numbers (rows × columns) of X that are diffused at once where X is wide.
BLOCK_NUMBERS = 2**24
# Columns of D X that vary less than this are constant up to rounding.
LEAST_SCALE = 1e-6


@dataclass(frozen=True)
class Replicas:
    """What `fit_replicas` returns.

    Args:
        rows: the rows that some copy was trained on or `also` named, sorted.
        outputs: (copies, len(rows), outputs), without dropout.
        states: of each copy, its parameters by name, as `DIFFormer.load_state_dict` takes them.
    """

    rows: Tensor
    outputs: Tensor
    states: list[dict[str, Tensor]]


def averages(config: DIFFormerConfig) -> bool:
    """Whether the layers only average, by weights that do not depend on parameters."""
    fixed = config.kernel in ("identity", "constant") or (
        config.compare == "input" and not config.learn_qk and config.learn_reach is None
    )
    plain = not config.use_weight and not config.self_weight and not config.residual
    plain = plain and config.activation is None and config.norm != "all" and not config.center
    ends = config.dropout_at == "ends" or config.dropout == 0
    return fixed and plain and ends and not config.learn_tau


def is_linear(config: DIFFormerConfig) -> bool:
    """Whether the first state is linear in the features, so that the whole model is."""
    plain = config.input_activation is None and config.norm == "none"
    return plain and config.dropout == 0 and config.input_dropout == 0


def fit_replicas(
    model: DIFFormer,
    x: Tensor,
    graph: Graph | None,
    row_losses: RowLosses,
    y: Tensor,
    trained: Sequence[Tensor],
    *,
    also: Tensor | None = None,
    weight: Tensor | None = None,
    epochs: int,
    lr: float,
    weight_decay: float,
    seed: int,
    scaled: bool = False,
) -> Replicas:
    """Train one copy of the model for each of the row sets `trained`, all at once, with Adam.

    O(copies · (n p d + r n d)) per epoch for r rows with labels, O(copies · r p) where the model
    is linear. Every copy starts from the same draw of weights, decided by the seed alone.

    Args:
        model: of averaging layers (`averages`); its parameters are not changed.
        x: (n, p), dense or sparse CSR.
        row_losses: the loss of each row, from outputs (m, c) and targets (m, ...): a copy minimises
            their mean over its rows.
        y: (n,) or (n, t), as `row_losses` takes it.
        also: further rows whose outputs are wanted.
        weight: (n,) of each row in the loss, or None.
        scaled: train a linear model on the standardised columns of D X, and fold the scales into
            its weights: weight decay then weighs columns alike, however much averaging has
            flattened them.
    """
    if not averages(model.config):
        raise ValueError("model must have layers that only average: see `averages`")
    if scaled and not (is_linear(model.config) and model.config.bias):
        raise ValueError("scaled needs a linear model with a bias")
    known = torch.unique(torch.cat(list(trained)))
    rows = known if also is None else torch.unique(torch.cat([known, also]))
    spread = _Spread.of(model, x, graph, known, scaled)
    with seeded(seed, own=True):
        net = _Copies(model, spread, len(trained))
        share = _shares(known, trained, weight).to(model.input.weight)
        target = y[known].repeat(len(trained), *[1] * (y.dim() - 1))
        optimizer = torch.optim.Adam(list(net.own.values()), lr=lr, weight_decay=weight_decay)
        with torch.enable_grad():
            for _ in range(epochs):
                output = net.outputs(training=True)
                # A sum over copies: the gradient of each is the one it would have alone.
                each = row_losses(output.flatten(0, 1), target).view(share.shape)
                loss = (each * share).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        return Replicas(rows, net.answers(model, x, graph, rows), net.states())


def _shares(rows: Tensor, trained: Sequence[Tensor], weight: Tensor | None) -> Tensor:
    """How much each row counts in each copy's loss, (copies, r): the sum of a copy is one."""
    share = torch.zeros(len(trained), rows.numel(), dtype=torch.float64)
    for copy, own in enumerate(trained):
        share[copy, torch.searchsorted(rows, own)] = 1.0
    if weight is not None:
        share = share * weight[rows]
    return share / share.sum(1, keepdim=True)


@dataclass(frozen=True)
class _Spread:
    """The labelled rows of D, and the features they are applied to."""

    features: Tensor | SparseMatrix  # D X (r, p) where the model is linear, else X (m, p)
    weights: Tensor | None = None  # (r, m), None where rows do not interact or all is linear
    shift: Tensor | None = None  # (p,) means of the columns of D X, where they are standardised
    scale: Tensor | None = None  # (p,) and their inverse deviations

    @classmethod
    @torch.no_grad()
    def of(
        cls, model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor, scaled: bool
    ) -> _Spread:
        model.eval()
        features = model.check_features(x)
        linear = is_linear(model.config)
        if scaled or (linear and not _is_alone(model, graph) and rows.numel() >= x.shape[1]):
            return cls._in_blocks(model, x, graph, rows, scaled)
        if _is_alone(model, graph):
            return cls(features[rows])
        weights = _rows_of_map(model, x, graph, rows)
        near = (weights.abs() > NEGLIGIBLE).any(0).nonzero().squeeze(1)
        part = features[near]
        weights = weights[:, near].contiguous()
        if not linear:
            return cls(part, weights)
        if isinstance(part, Tensor):
            return cls(weights @ part)
        return cls((SparseMatrix(part.transpose, part.csr) @ weights.T).T.contiguous())

    @classmethod
    def _in_blocks(
        cls, model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor, scaled: bool
    ) -> _Spread:
        """D X, a block of columns at a time: no more than a block is ever dense in all n rows."""
        n, p = x.shape
        columns = None if x.layout == torch.strided else scipy_csr(x).tocsc()
        kept = torch.empty(rows.numel(), p, dtype=x.dtype)
        shift, scale = torch.empty(2, p, dtype=x.dtype)
        width = max(1, BLOCK_NUMBERS // max(1, n))
        for start in range(0, p, width):
            at = slice(start, min(p, start + width))
            dense = x[:, at] if columns is None else torch.from_numpy(columns[:, at].toarray())
            spread = model.diffuse(dense.contiguous(), x, graph)
            kept[:, at] = spread[rows]
            shift[at], scale[at] = spread.mean(0), spread.std(0)
        if not scaled:
            return cls(kept)
        scale = torch.where(scale > LEAST_SCALE, 1 / scale, 0.0)
        return cls((kept - shift) * scale, None, shift, scale)


def _is_alone(model: DIFFormer, graph: Graph | None) -> bool:
    """Whether rows do not interact: D is the identity."""
    return model.config.kernel == "identity" and (graph is None or not model.config.use_graph)


def _rows_of_map(model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor) -> Tensor:
    """D[rows] (r, n): the layers are linear, so their gradient is their transpose."""
    n = x.shape[0]
    dtype = model.input.weight.dtype
    with torch.enable_grad():
        z = torch.zeros(n, rows.numel(), dtype=dtype, requires_grad=True)
        out = model.diffuse(z, x, graph)
        picked = out[rows, torch.arange(rows.numel())].sum()
        (found,) = torch.autograd.grad(picked, z)
    return found.T.contiguous()


class _Copies:
    """Parameters of all copies, stacked: one product serves them all."""

    def __init__(self, model: DIFFormer, spread: _Spread, copies: int) -> None:
        self.config, self.spread, self.copies = model.config, spread, copies
        self.linear = is_linear(model.config)
        self.width, self.eps = model.hidden_channels, model.config.norm_eps
        p, d, c = model.in_channels, model.hidden_channels, model.out_channels
        self.own: dict[str, Tensor] = {}
        like = model.input.weight
        if self.linear and d < c:
            raise ValueError(f"hidden_channels must be {c} or more, one per output, got {d}")
        if self.linear:
            # One linear map is all there is: the first state is the output, and starts at zero.
            self._add("input.weight", like.new_zeros(copies, p, c))
        else:
            self._add("input.weight", self._drawn(p, d, like).expand(copies, -1, -1))
            self._add("output.weight", self._drawn(d, c, like).expand(copies, -1, -1))
            if model.config.bias:
                self._add("input.bias", like.new_zeros(copies, d))
            if model.input_norm is not None:
                self._add("input_norm.weight", like.new_ones(copies, d))
                self._add("input_norm.bias", like.new_zeros(copies, d))
        if model.config.bias:
            self._add("output.bias", like.new_zeros(copies, c))

    def _drawn(self, fan_in: int, fan_out: int, like: Tensor) -> Tensor:
        """Uniform in ±1/√fan_in, as `nn.Linear` draws its weights."""
        drawn = torch.rand(fan_in, fan_out, generator=generator(), dtype=like.dtype)
        return (2 * drawn - 1) / fan_in**0.5

    def _add(self, name: str, value: Tensor) -> None:
        self.own[name] = value.clone().requires_grad_()

    def outputs(self, *, training: bool) -> Tensor:
        """(copies, r, outputs) of the labelled rows."""
        spread = self.spread
        if self.linear:
            z = self._mapped(spread.features, self.own["input.weight"]).transpose(0, 1)
        else:
            z = self._first(spread.features, training)
            if spread.weights is not None:
                z = (spread.weights @ z.flatten(1)).view(-1, self.copies, self.width)
            z = dropout(z, self.config.dropout, training)
            z = torch.einsum("rkd,kdc->krc", z, self.own["output.weight"])
        bias = self.own.get("output.bias")
        return z if bias is None else z + bias.unsqueeze(1)

    def answers(self, model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor) -> Tensor:
        """(copies, r, outputs) of any rows, without dropout: all copies through the layers."""
        features, alone = model.check_features(x), _is_alone(model, graph)
        features = features[rows] if alone else features
        weight, bias = self._folded()
        z = self._mapped(features, weight) if self.linear else self._first(features, False)
        shape = z.shape[1:]
        if not alone:
            z = model.diffuse(z.flatten(1), x, graph)[rows].view(-1, *shape)
        z = z.transpose(0, 1)
        z = z if self.linear else z @ self.own["output.weight"]
        return z if bias is None else z + bias.unsqueeze(1)

    def _folded(self) -> tuple[Tensor, Tensor | None]:
        """First weights and last bias of every copy, for features that are not standardised."""
        weight, bias = self.own["input.weight"], self.own.get("output.bias")
        shift, scale = self.spread.shift, self.spread.scale
        if shift is None or scale is None or bias is None:
            return weight, bias
        weight = weight * scale.unsqueeze(1)
        return weight, bias - shift @ weight

    def _mapped(self, x: Tensor | SparseMatrix, weight: Tensor) -> Tensor:
        """X W of every copy, (m, copies, width), in one product."""
        weight = weight.transpose(0, 1)  # (p, copies, width)
        flat = weight.flatten(1)
        return (x @ flat).view(-1, *weight.shape[1:])

    def _first(self, x: Tensor | SparseMatrix, training: bool) -> Tensor:
        """Z⁽⁰⁾ of those rows, (m, copies, d)."""
        rate = self.config.input_dropout
        if isinstance(x, Tensor):
            x = dropout(x, rate, training)
        elif training:
            x = x.dropout(rate)
        z = self._mapped(x, self.own["input.weight"])
        if "input.bias" in self.own:
            z = z + self.own["input.bias"]
        if "input_norm.weight" in self.own:
            z = F.layer_norm(z, (self.width,), eps=self.eps)
            z = z * self.own["input_norm.weight"] + self.own["input_norm.bias"]
        if self.config.input_activation is not None:
            z = getattr(F, self.config.input_activation)(z)
        return dropout(z, self.config.dropout, training)

    def states(self) -> list[dict[str, Tensor]]:
        found: list[dict[str, Tensor]] = []
        weight, bias = self._folded()
        every = {**self.own, "input.weight": weight}
        every |= {} if bias is None else {"output.bias": bias}
        for i in range(self.copies):
            own = {name: value[i].detach().clone() for name, value in every.items()}
            for name in ("input.weight", "output.weight"):
                if name in own:
                    own[name] = own[name].T.contiguous()
            if self.linear:
                own |= self._unused(own)
            found.append(own)
        return found

    def _unused(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """What a linear model's file holds beside its one map: further states are zero."""
        first = own["input.weight"]  # (c, p)
        wide = first.new_zeros(self.width, first.shape[1])
        wide[: first.shape[0]] = first
        found = {
            "input.weight": wide,
            "output.weight": torch.eye(first.shape[0], self.width).to(first),
        }
        if self.config.bias:
            found["input.bias"] = first.new_zeros(self.width)
        return found

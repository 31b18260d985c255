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
from difformer.core.tiled import tiles
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
    features, weights, scales = _spread(model, x, graph, known, scaled=scaled)
    with seeded(seed, own=True):
        copies = _Copies(model, len(trained))
        share = _shares(known, trained, weight).to(model.input.weight)
        target = y[known].repeat(len(trained), *[1] * (y.dim() - 1))
        own = list(copies.own.values())
        optimizer = torch.optim.Adam(own, lr=lr, weight_decay=weight_decay)
        with torch.enable_grad():
            for _ in range(epochs):
                output = copies.outputs(features, weights)
                # A sum over copies: the gradient of each is the one it would have alone.
                each = row_losses(output.flatten(0, 1), target).view(share.shape)
                loss = (each * share).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        if scales is not None:
            copies.fold(*scales)
        return Replicas(rows, copies.answers(model, x, graph, rows), copies.states())


def _shares(rows: Tensor, trained: Sequence[Tensor], weight: Tensor | None) -> Tensor:
    """How much each row counts in each copy's loss, (copies, r): the sum of a copy is one."""
    share = torch.zeros(len(trained), rows.numel(), dtype=torch.float64)
    for copy, own in enumerate(trained):
        share[copy, torch.searchsorted(rows, own)] = 1.0
    if weight is not None:
        share = share * weight[rows]
    return share / share.sum(1, keepdim=True)


Features = Tensor | SparseMatrix
Scales = tuple[Tensor, Tensor]
"""(p,) means of the columns of D X, and their inverse deviations."""


@torch.no_grad()
def _spread(
    model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor, *, scaled: bool
) -> tuple[Features, Tensor | None, Scales | None]:
    """What the labelled rows are made of.

    D X (r, p) where the model is linear, else X (m, p) and, where rows interact, their rows (r, m)
    of D; and by what the columns of D X were standardised, where they were.
    """
    model.eval()
    features = model.check_features(x)
    linear, alone = is_linear(model.config), _is_alone(model, graph)
    if scaled or (linear and not alone and rows.numel() >= x.shape[1]):
        kept, shift, scale = _in_blocks(model, x, graph, rows)
        return ((kept - shift) * scale, None, (shift, scale)) if scaled else (kept, None, None)
    if alone:
        return features[rows], None, None
    weights = _rows_of_map(model, x, graph, rows)
    near = (weights.abs() > NEGLIGIBLE).any(0).nonzero().squeeze(1)
    part, weights = features[near], weights[:, near].contiguous()
    if not linear:
        return part, weights, None
    if isinstance(part, Tensor):
        return weights @ part, None, None
    return (SparseMatrix(part.transpose, part.csr) @ weights.T).T.contiguous(), None, None


def _in_blocks(
    model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of D X and the `Scales` of all, a block of columns at a time.

    No more than a block is ever dense in all n rows.
    """
    n, p = x.shape
    columns = None if x.layout == torch.strided else scipy_csr(x).tocsc()
    kept = torch.empty(rows.numel(), p, dtype=x.dtype)
    shift, scale = torch.empty(2, p, dtype=x.dtype)
    for at in tiles(p, max(1, BLOCK_NUMBERS // max(1, n))):
        dense = x[:, at] if columns is None else torch.from_numpy(columns[:, at].toarray())
        spread = model.diffuse(dense.contiguous(), x, graph)
        kept[:, at] = spread[rows]
        shift[at], scale[at] = spread.mean(0), spread.std(0)
    return kept, shift, torch.where(scale > LEAST_SCALE, 1 / scale, 0.0)


def _is_alone(model: DIFFormer, graph: Graph | None) -> bool:
    """Whether rows do not interact: D is the identity."""
    return model.config.kernel == "identity" and (graph is None or not model.config.use_graph)


def _rows_of_map(model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor) -> Tensor:
    """D[rows] (r, n): the layers are linear, so their gradient is their transpose."""
    dtype, r = model.input.weight.dtype, rows.numel()
    with torch.enable_grad():
        z = torch.zeros(x.shape[0], r, dtype=dtype, requires_grad=True)
        picked = model.diffuse(z, x, graph)[rows, torch.arange(r)].sum()
        (found,) = torch.autograd.grad(picked, z)
    return found.T.contiguous()


class _Copies:
    """Parameters of all copies, stacked: one product serves them all."""

    def __init__(self, model: DIFFormer, copies: int) -> None:
        self.config, self.linear = model.config, is_linear(model.config)
        self.width, bias = model.hidden_channels, model.config.bias
        p, d, c = model.in_channels, model.hidden_channels, model.out_channels
        if self.linear and d < c:
            raise ValueError(f"hidden_channels must be {c} or more, one per output, got {d}")
        like = model.input.weight

        def drawn(fan_in: int, fan_out: int) -> Tensor:
            """Uniform in ±1/√fan_in, as `nn.Linear` draws its weights; the same in all copies."""
            values = torch.rand(fan_in, fan_out, generator=generator(), dtype=like.dtype)
            return ((2 * values - 1) / fan_in**0.5).expand(copies, -1, -1)

        if self.linear:
            # One linear map is all there is: the first state is the output, and starts at zero.
            start = {"input.weight": like.new_zeros(copies, p, c)}
        else:
            start = {"input.weight": drawn(p, d), "output.weight": drawn(d, c)}
            start |= {"input.bias": like.new_zeros(copies, d)} if bias else {}
            if model.input_norm is not None:
                start["input_norm.weight"] = like.new_ones(copies, d)
                start["input_norm.bias"] = like.new_zeros(copies, d)
        start |= {"output.bias": like.new_zeros(copies, c)} if bias else {}
        self.own = {name: value.clone().requires_grad_() for name, value in start.items()}

    def outputs(self, features: Features, weights: Tensor | None) -> Tensor:
        """(copies, r, outputs) of the labelled rows in training, from what `_spread` gives."""
        z = self._first(features, training=True)
        if weights is not None:
            z = (weights @ z.flatten(1)).view(-1, *z.shape[1:])
        return self._decoded(z, training=True)

    def answers(self, model: DIFFormer, x: Tensor, graph: Graph | None, rows: Tensor) -> Tensor:
        """(copies, r, outputs) of any rows, without dropout: all copies through the layers."""
        features, alone = model.check_features(x), _is_alone(model, graph)
        z = self._first(features[rows] if alone else features, training=False)
        if not alone:
            z = model.diffuse(z.flatten(1), x, graph)[rows].view(-1, *z.shape[1:])
        return self._decoded(z, training=False)

    def fold(self, shift: Tensor, scale: Tensor) -> None:
        """Weights for features that are not standardised."""
        weight = self.own["input.weight"] * scale.unsqueeze(1)
        bias = self.own["output.bias"] - shift @ weight
        self.own |= {"input.weight": weight, "output.bias": bias}

    def _first(self, x: Features, *, training: bool) -> Tensor:
        """Z⁽⁰⁾ of those rows, (m, copies, d): one product serves all copies."""
        own, config = self.own, self.config
        rate = config.input_dropout if training else 0.0
        x = x.dropout(rate) if isinstance(x, SparseMatrix) else dropout(x, rate)
        weight = own["input.weight"].transpose(0, 1)  # (p, copies, d)
        z = (x @ weight.flatten(1)).view(-1, *weight.shape[1:])
        if self.linear:
            return z
        z = z + own["input.bias"] if "input.bias" in own else z
        if "input_norm.weight" in own:
            z = F.layer_norm(z, (self.width,), eps=config.norm_eps)
            z = z * own["input_norm.weight"] + own["input_norm.bias"]
        if config.input_activation is not None:
            z = getattr(F, config.input_activation)(z)
        return dropout(z, config.dropout, training)

    def _decoded(self, z: Tensor, *, training: bool) -> Tensor:
        """(copies, r, outputs) of the last states (r, copies, d)."""
        if self.linear:
            z = z.transpose(0, 1)
        else:
            z = dropout(z, self.config.dropout, training)
            z = torch.einsum("rkd,kdc->krc", z, self.own["output.weight"])
        bias = self.own.get("output.bias")
        return z if bias is None else z + bias.unsqueeze(1)

    def states(self) -> list[dict[str, Tensor]]:
        """The parameters of each copy as the model's file holds them."""
        found: list[dict[str, Tensor]] = []
        for copy in range(len(self.own["input.weight"])):
            own = {name: value[copy].detach().clone() for name, value in self.own.items()}
            for name in own.keys() & {"input.weight", "output.weight"}:
                own[name] = own[name].T.contiguous()
            if self.linear:  # the one map's states beyond the outputs are zero
                first = own["input.weight"]  # (c, p)
                own["input.weight"] = first.new_zeros(self.width, first.shape[1])
                own["input.weight"][: first.shape[0]] = first
                own["output.weight"] = torch.eye(first.shape[0], self.width).to(first)
                own |= {"input.bias": first.new_zeros(self.width)} if self.config.bias else {}
            found.append(own)
        return found

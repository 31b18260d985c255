"""DIFFormer: input layer, K diffusion layers, output layer (appendix E of the paper)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from difformer.core.diffusivity import Diffusivity
from difformer.core.draws import dropout
from difformer.core.fixed import FixedAverage, FixedWeights
from difformer.core.graph import Graph, TracedGraph
from difformer.core.rows import Segments, landmark_sample, make_landmarks, unit_rows
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import HALF
from difformer.nn.config import DIFFormerConfig
from difformer.nn.exchange import Apart, Exchange, Passage
from difformer.nn.inputs import Remembered, build_model, check_features, describe_model, of_data
from difformer.nn.layer import DiffusionLayer, Linear, Tuning, make_activation
from difformer.settings import check_count, takes
from difformer.tensorfiles import read_tensors, write_tensors

if TYPE_CHECKING:
    from difformer.nn.frozen import FrozenDIFFormer


Edges = Tensor | Graph | None


class DIFFormer(nn.Module):
    """An encoder of a whole dataset: every row is influenced by all others, and by a graph.

        Z⁽⁰⁾ = ReLU(LayerNorm(W_I x + b_I))          (eq. 20; ReLU is the `input_activation`)
        Z⁽ᵏ⁺¹⁾ = one diffusion step                                   (DiffusionLayer, eq. 30)
        ŷ = Z⁽ᴷ⁾ W_O + b_O                                                          (eq. 31)

    Args:
        in_channels, hidden_channels, out_channels: widths of x, of the states, of the output.
        The rest: see `DIFFormerConfig`, which says what each option does.
    """

    own_draws: ClassVar[bool] = True
    """Whether all its weights and dropout come from `core.randomness`, on a CPU."""
    landmarks: Tensor | None  # (num_landmarks, in_channels), zeros until they are chosen

    @takes(DIFFormerConfig)
    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, **options: Any
    ) -> None:
        super().__init__()
        self.in_channels = check_count("in_channels", in_channels)
        self.hidden_channels = check_count("hidden_channels", hidden_channels)
        self.out_channels = check_count("out_channels", out_channels)
        self.config = config = DIFFormerConfig(**options)
        self.input = Linear(in_channels, hidden_channels, bias=config.bias)
        self.input_norm = (
            nn.LayerNorm(hidden_channels, eps=config.norm_eps) if config.norm != "none" else None
        )
        self.input_activation = make_activation(config.input_activation)
        self.tuning = Tuning() if config.learn_reach == "shared" else None
        compared = in_channels if config.compare == "input" else None
        self.layers = nn.ModuleList(
            DiffusionLayer(hidden_channels, config, compared, self.tuning)
            for _ in range(config.num_layers)
        )
        self.output = Linear(hidden_channels, out_channels, bias=config.bias)
        self._graph: Remembered[Graph] = Remembered(content=True)
        self._features: Remembered[Tensor | SparseMatrix] = Remembered()
        self._segments: Remembered[Segments] = Remembered(content=True)
        self._fixed: Remembered[FixedAverage | None] = Remembered()
        anchored = self._layer.diffusivity.anchored
        room = torch.zeros(config.num_landmarks, in_channels) if anchored else None
        self.register_buffer("landmarks", room)
        self.num_landmarks = 0  # how many are chosen: 0 before the first rows are seen
        self.register_load_state_dict_post_hook(_count_landmarks)

    def forward(
        self,
        x: Tensor | Any,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """Outputs (n, out_channels) for all rows at once.

        Args:
            x: (n, in_channels), dense or sparse CSR; or only a Data (or Batch) of PyTorch
                Geometric, whose x, edge_index, edge_weight and batch are used.
            edge_index: (2, e) source above target, or a prepared Graph; None for no graph. An edge
                list is taken as undirected and every row gets one self-loop of weight one, as in
                training by `difformer train` and the estimators, so that it makes no difference
                whether it holds an edge once or both ways, with or without loops. A Graph
                (`Graph.from_edges`) is used unchanged: that is how to pass directed edges.
            edge_weight: (e,), with an edge list only.
            batch: (n,) the id of each row's graph: rows of different graphs do not interact.
        """
        return self.decode(self.encode(x, edge_index, edge_weight, batch))

    def encode(
        self,
        x: Tensor | Any,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """The last state Z⁽ᴷ⁾ (n, hidden_channels)."""
        if not isinstance(x, Tensor):
            x, edge_index, edge_weight, batch = of_data(x, edge_index, edge_weight, batch)
        return self._diffused(*self._begin(x, edge_index, edge_weight, batch))

    def states(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> list[Tensor]:
        """Z⁽⁰⁾ … Z⁽ᴷ⁾, each (n, hidden_channels)."""
        found = self.passages(x, edge_index, edge_weight, batch)
        return [found[0].before, *(passage.after for passage in found)]

    def diffusivity(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        layer: int = 0,
        rows: Tensor | None = None,
        top_k: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Ŝ of one layer, averaged over heads; each row sums to one.

        Without `top_k` the rows are dense: (len(rows), n). With it, the k strongest of each row as
        (weights, columns), both (len(rows), k), in O(n · rows of a chunk) memory.
        """
        if not -len(self.layers) <= layer < len(self.layers):
            raise ValueError(f"layer must lie in 0 to {len(self.layers) - 1}, got {layer}")
        with torch.no_grad():
            passage = self.passages(x, edge_index, edge_weight, batch)[layer]
            return passage.diffusivity(rows, top_k, batch)

    def energies(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        *,
        weight: float | None = None,
    ) -> Tensor:
        """E(Z⁽ᵏ⁺¹⁾, k) of eq. 4 (eq. 19 with a graph) for each layer k, float64 (num_layers,).

        States are scaled to unit rows, the domain of the diffusivities' f and δ; `weight` is λ, by
        default 1/n. Where rows are not compared by their states, the energy is quadratic in them:
        δ_ij(z²) = ω_ij z². With a source β its weight is μ = β/(1 − β) times the mean row mass.
        """
        with torch.no_grad():
            passages = self.passages(x, edge_index, edge_weight)
            lam = 1.0 / x.shape[0] if weight is None else weight
            mu = passages[0].source_weight
            return torch.stack([p.energy(F.normalize(p.after, dim=-1), lam, mu) for p in passages])

    def freeze(
        self, x: Tensor, edge_index: Edges = None, edge_weight: Tensor | None = None
    ) -> FrozenDIFFormer:
        """A predictor for new rows that does not need this data any more: see `FrozenDIFFormer`."""
        from difformer.nn.frozen import FrozenDIFFormer

        return FrozenDIFFormer.from_model(self, x, edge_index, edge_weight)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file with the configuration as JSON in its header."""
        write_tensors(Path(path), "model", self.state_dict(), describe_model(self))

    @classmethod
    def load(cls, path: str | Path, *, kernel: Diffusivity | None = None) -> DIFFormer:
        """Read what `save` wrote; pass `kernel` if it was saved with a diffusivity of your own."""
        tensors, description = read_tensors(Path(path), "model")
        return build_model(cls, Path(path), description, tensors, kernel)

    def reset_parameters(self) -> None:
        """Draw all parameters anew, from the thread's own generator or torch's global one."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm | Tuning):
                module.reset_parameters()
            if isinstance(module, DiffusionLayer) and module.logit_tau is not None:
                nn.init.constant_(module.logit_tau, module.initial_logit)

    def diffuse(self, first: Tensor, x: Tensor, edge_index: Edges = None) -> Tensor:
        """The last state (n, d) of rows x whose first state (n, d) is given, of the model's width.

        Where the layers hold no parameters, d may be any width.
        """
        _, exchange, compared = self._begin(x, edge_index)
        return self._diffused(first, exchange, compared)

    def _diffused(self, first: Tensor, exchange: Exchange, compared: Tensor | None) -> Tensor:
        z = first
        for layer in self.layers:
            z = layer(z, first, exchange, compared)
        return z

    def embed(self, x: Tensor | SparseMatrix, *, clean: bool = False) -> Tensor:
        """Z⁽⁰⁾ (n, hidden_channels) from features; a sparse matrix costs O(nonzeros).

        `clean`: without dropout, even in training.
        """
        training = self.training and not clean
        rate = self.config.input_dropout if training else 0.0
        if isinstance(x, SparseMatrix):
            z = x.dropout(rate) @ self.input.weight.T
            z = z + self.input.bias if self.config.bias else z
        else:
            z = self.input(dropout(x, rate))
        if self.input_norm is not None:
            z = self.input_norm(z)
        if self.input_activation is not None:
            z = self.input_activation(z)
        return dropout(z, self.config.dropout, training)

    def decode(self, z: Tensor) -> Tensor:
        """Outputs (n, out_channels) of the last states."""
        if self.config.dropout_at == "ends":
            z = dropout(z, self.config.dropout, self.training)
        return self.output(z)

    def compared(
        self, features: Tensor | SparseMatrix, first: Tensor
    ) -> Tensor | SparseMatrix | None:
        """What every layer compares rows by, (n, p).

        None if each layer compares the states it is given. Dropout is not applied, because it would
        distort the comparison.
        """
        if self.config.compare == "first":
            dropped = self.training and (self.config.dropout or self.config.input_dropout)
            return self.embed(features, clean=True) if dropped else first
        return features if self.config.compare == "input" else None

    def comparison(
        self, features: Tensor | SparseMatrix, first: Tensor, exchange: Exchange
    ) -> Tensor | None:
        """What the layers are given as `compared`: prepared if they learn no queries and keys."""
        rows = self.compared(features, first)
        return None if rows is None else self.prepared(rows.to_dense(), exchange)

    def prepared(self, rows: Tensor, exchange: Exchange) -> Tensor:
        """Rows of `compared` (n, p) as the layers take them."""
        kernel, fixed = self._layer.diffusivity, exchange.fixed
        if self._layer.query is not None or not kernel.prepares:
            return rows
        if isinstance(fixed, FixedWeights) and fixed.offset is not None:
            return torch.cat([unit_rows(rows), fixed.offset], dim=-1)
        rows = rows.unsqueeze(0)
        landmarks = None if exchange.landmarks is None else exchange.landmarks.unsqueeze(0)
        return exchange.prepare(kernel, rows, rows, landmarks)[0].squeeze(0)

    @property
    def compares_fixed_rows(self) -> bool:
        """Whether Ŝ depends on the input features alone: the same in every layer and epoch."""
        config = self.config
        fixed = config.compare == "input" and config.learn_reach is None
        return fixed and self._layer.query is None

    def fixed_average(self, features: Tensor | SparseMatrix) -> FixedAverage | None:
        """Ŝ, computed once, if it depends on the features alone; else None."""
        if not self.compares_fixed_rows:
            return None
        rows = features.detach() if isinstance(features, Tensor) else features
        return self._layer.diffusivity.fixed(rows, self.compared_landmarks())

    def share_fixed(self, other: DIFFormer) -> None:
        """Share what the other model computed from the same features in O(n²)."""
        self._fixed = other._fixed

    @property
    def wants_landmarks(self) -> bool:
        """Whether rows are compared with landmarks and none have been chosen yet."""
        return self.landmarks is not None and self.num_landmarks == 0

    def choose_landmarks(self, features: Tensor | SparseMatrix) -> None:
        """Choose landmarks among these rows if the model needs some; O(sampled rows · m p)."""
        if self.wants_landmarks:
            if torch.compiler.is_compiling():
                raise ValueError("landmarks must be chosen before tracing: run the model once")
            count, width = self.config.num_landmarks, self.in_channels
            sample = landmark_sample(features.shape[0], width, count)
            self.set_landmarks(features[sample].to_dense())

    def set_landmarks(self, rows: Tensor) -> None:
        """Choose landmarks by clustering the rows (n, p)."""
        assert self.landmarks is not None
        made = make_landmarks(rows.detach().to(self.landmarks), self.config.num_landmarks)
        self.landmarks.zero_()[: made.shape[0]] = made
        self.num_landmarks = made.shape[0]

    def compared_landmarks(self) -> Tensor | None:
        """The landmarks (m, ·) in the space in which rows are compared, as constants."""
        if self.landmarks is None:
            return None
        chosen = self.landmarks[: self.num_landmarks]
        if self.config.compare == "input":
            return chosen
        with torch.no_grad():
            return self.embed(chosen, clean=True)

    @property
    def _layer(self) -> DiffusionLayer:
        return cast("DiffusionLayer", self.layers[0])

    def passages(self, x: Tensor, *graph: Any) -> list[Passage]:
        """The input and output of each layer, in order: for inspection and for freezing.

        `graph` is what `forward` takes after x.
        """
        first, exchange, compared = self._begin(x, *graph)
        if compared is None and exchange.fixed is not None:  # needed for inspection
            compared = self.comparison(self._remembered_features(x), first, exchange)
        z, found = first, list[Passage]()
        for module in self.layers:
            after = module(z, first, exchange, compared)
            layer = cast("DiffusionLayer", module)
            found.append(Passage(layer, z, after, first, exchange, compared))
            z = after
        return found

    def _begin(
        self,
        x: Tensor,
        edge_index: Edges = None,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> tuple[Tensor, Exchange, Tensor | None]:
        """The first state, how rows interact, and what they are compared by."""
        features = self._remembered_features(x)
        self.choose_landmarks(features)
        first = self.embed(features)
        graph, n = self.prepare_graph(edge_index, edge_weight, first), first.shape[0]
        exchange = Exchange(graph)
        if batch is not None:
            segments = self._segments.get((batch,), n, lambda: Segments.from_batch(batch, n))
            exchange = Apart(segments, graph)
        exchange.landmarks = self.compared_landmarks()
        constant = not torch.compiler.is_compiling() and not x.requires_grad
        if batch is None and constant and self.compares_fixed_rows:
            key = (x, self.landmarks)
            exchange.fixed = self._fixed.get(key, None, lambda: self.fixed_average(features))
        fixed = exchange.fixed is not None
        return first, exchange, None if fixed else self.comparison(features, first, exchange)

    def _remembered_features(self, x: Tensor) -> Tensor | SparseMatrix:
        if torch.compiler.is_compiling():
            return x
        return self._features.get((x,), self.input.weight.dtype, lambda: self.check_features(x))

    def check_features(self, x: Tensor) -> Tensor | SparseMatrix:
        """Features ready for `embed`; ValueError that names what is wrong with them."""
        return check_features(x, self.in_channels, self.input.weight.dtype)

    def prepare_graph(self, edges: Edges, edge_weight: Tensor | None, z: Tensor) -> Any:
        """The Graph of an edge list for states like z, built once for the same tensors."""
        if edges is None or not self.config.use_graph:
            return None
        if isinstance(edges, Graph):
            if edge_weight is not None:
                raise ValueError("edge_weight must be None with a Graph: it holds its own weights")
            if edges.num_nodes != z.shape[0]:
                raise ValueError(
                    f"edge_index is a Graph of {edges.num_nodes} rows, x has {z.shape[0]}"
                )
            edges = self.normalised(edges)
            return edges if z.dtype in HALF else edges.to(z)
        wide = torch.promote_types(z.dtype, torch.float32)
        if torch.compiler.is_compiling():
            return TracedGraph(edges, edge_weight, z.shape[0], self.config.graph_norm, wide)

        def made() -> Graph:
            weight = None if edge_weight is None else edge_weight.to(wide)
            graph = Graph.undirected_with_loops(edges, z.shape[0], weight)
            return self.normalised(graph).to(z)

        return self._graph.get((edges, edge_weight), (z.shape[0], z.dtype, z.device), made)

    def normalised(self, graph: Graph) -> Graph:
        """The graph as `graph_norm` asks: unchanged, or each row's mean over its neighbours."""
        return graph if self.config.graph_norm == "symmetric" else graph.neighbours_mean


def _count_landmarks(model: DIFFormer, _: Any) -> None:
    """After loading, count the landmarks: the remaining rows are zeros."""
    if model.landmarks is not None:
        model.num_landmarks = int((model.landmarks != 0).any(1).sum())

"""The rivals of the paper as systems: their options, and what they cost. No torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from difformer.settings import (
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    RATE,
    SHARE,
    option,
    unit_interval,
    whole,
)
from difformer.systems.families import DENSE, GAT
from difformer.systems.system import (
    CLASSES,
    KIPF,
    SCALE,
    Config,
    Convolutions,
    GATConfig,
    Perceptron,
    Stack,
    System,
    Width,
)


@dataclass(frozen=True, kw_only=True)
class Propagated(Config):
    """A linear model on features that are propagated once."""

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Dense features before, during and after propagation, and a sparse adjacency."""
        return 3 * n * p + 5 * e


@dataclass(frozen=True, kw_only=True)
class SGCConfig(Propagated):
    """Simplified graph convolution."""

    steps: int = option(2, "propagation steps K", COUNT)


_SGC = System(
    "sgc",
    "SGC",
    "difformer_paper.rivals.diffusions.SGC",
    SGCConfig,
    needs_graph=True,
    train={"lr": 0.2, "weight_decay": 5e-6},
    space={"steps": (2, 4, 8)},
)


@dataclass(frozen=True, kw_only=True)
class DGCConfig(Propagated):
    """Decoupled graph convolution by Euler steps."""

    steps: int = option(100, "Euler steps K", COUNT)
    time: float = option(5.3, "terminal time T", POSITIVE)


_DGC = System(
    "dgc",
    "DGC-Euler",
    "difformer_paper.rivals.diffusions.DGC",
    DGCConfig,
    needs_graph=True,
    train={"lr": 0.2, "weight_decay": 1e-5},
    space={"time": (3.8, 5.3, 6.0)},
)


@dataclass(frozen=True, kw_only=True)
class GDCConfig(Convolutions):
    """A GCN on the diffused graph."""

    diffusion: str = option("ppr", "personalised PageRank or heat kernel", ("ppr", "heat"))
    alpha: float = option(0.05, "teleport probability of ppr", SHARE)
    time: float = option(5.0, "diffusion time of heat", POSITIVE)
    top_k: int = option(128, "entries kept in each column", COUNT)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """A block of columns of the diffusion and its work space, and the entries kept."""
        kept = n * min(self.top_k, n)
        return 8 * min(n * n, 2**22) + 12 * kept + super().numbers(n, kept, p, c)


_GDC = System(
    "gdc",
    "GDC",
    "difformer_paper.rivals.gdc.GDC",
    GDCConfig,
    needs_graph=True,
    package="torch_geometric",
    extra="gnn",
    train=KIPF,
    space={"alpha": (0.05, 0.1), "top_k": (64, 128), "hidden_channels": (16, 64)},
)


@dataclass(frozen=True, kw_only=True)
class HeatConfig(Stack):
    """Heat-kernel convolutions."""

    scale: float = option(3.5, "s in e^(-s L)", POSITIVE)


_HEAT = System(
    "graphheat",
    "GraphHeat",
    "difformer_paper.rivals.diffusions.GraphHeat",
    HeatConfig,
    needs_graph=True,
    defaults={"hidden_channels": 16},
    train=KIPF,
    space={"scale": (1.0, 3.5, 5.0), "hidden_channels": (16, 64)},
)


@dataclass(frozen=True, kw_only=True)
class GRANDConfig(Width):
    """Graph neural diffusion."""

    attention_channels: int = option(16, "width of a head's query and key", COUNT)
    num_heads: int = option(4, "attention heads, averaged", COUNT)
    nonlinear: bool = option(False, "compute the attention of every state; off: of the first only")
    source: bool = option(False, "GRAND++: labelled rows are sources")
    source_dropout: float = option(
        0.5,
        "share of GRAND++'s sources left out of a training step, which learns from their rows only",
        RATE,
    )
    learned_scale: bool = option(True, "learn how fast X(t) moves and how strong the sources are")
    time: float = option(8.0, "terminal time T", POSITIVE)
    method: str = option(
        "rk4", "torchdiffeq's solver", ("euler", "midpoint", "rk4", "dopri5", "adaptive_heun")
    )
    step: float = option(1.0, "step size of the fixed-step solvers", POSITIVE)
    tolerance: float = option(
        1e-3, "relative and absolute tolerance of the adaptive solvers", POSITIVE
    )
    scale_features: bool = option(False, SCALE)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Every evaluation of the field keeps its states, and its attention if it is its own."""
        evaluations = self.time / self.step * {"rk4": 4, "midpoint": 2}.get(self.method, 1)
        attention = e * self.num_heads * (2 * self.attention_channels + 3)
        states = evaluations * n * self.hidden_channels * 7
        often = evaluations if self.nonlinear else 1
        return super().numbers(n, e, p, c) + states + often * attention


_GRAND = System(
    "grand-l",
    "GRAND-l",
    "difformer_paper.rivals.diffusions.GRAND",
    GRANDConfig,
    needs_graph=True,
    package="torchdiffeq",
    extra="paper",
    train={"lr": 0.02, "weight_decay": 5e-4},
    space={"time": (4.0, 8.0, 16.0), "dropout": (0.2, 0.5)},
)
_EULER: dict[str, Any] = {"method": "euler"}
DIFFUSIONS = (
    _SGC,
    _GRAND,
    replace(_GRAND, name="grand", title="GRAND", defaults={**_EULER, "nonlinear": True}),
    replace(
        _GRAND,
        name="grandpp",
        title="GRAND++",
        defaults={**_EULER, "source": True},
        space={**_GRAND.space, "source_dropout": (0.0, 0.5, 0.9)},
    ),
    _GDC,
    _HEAT,
    _DGC,
)


@dataclass(frozen=True, kw_only=True)
class LDSConfig(Propagated):
    """Learning discrete structures."""

    hidden_channels: int = option(16, "width of the hidden layer", COUNT)
    dropout: float = option(0.5, "dropout on features and hidden layer", RATE)
    inner_steps: int = option(5, "weight updates per epoch", COUNT)
    unroll: int = option(1, "gradient steps that the hypergradient is taken through", whole(0))
    inner_lr: float = option(0.1, "learning rate of those steps", POSITIVE)
    theta_lr: float = option(1.0, "learning rate of the edge probabilities", POSITIVE)
    outer: str = option(
        "training",
        "whose labels the outer loss takes; validation: half of those rows, as its paper does",
        ("training", "validation"),
    )
    outer_share: float = option(0.3, "share of the training rows kept for the outer loss", SHARE)
    top_k: int = option(32, "pairs each row may propose, and learned edges kept per row", COUNT)
    samples: int = option(4, "graphs averaged in a prediction", COUNT)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Pairs and their chances, drawn graphs, narrow factors of the hypergradient, features."""
        pairs = 24 * (e + 2 * n * self.top_k)
        factors = 40 * n * (self.hidden_channels + c) * (self.unroll + 1)
        block = 2 * min(n * n, 2**22)
        return pairs + factors + block + super().numbers(n, e, p, c)


_LDS = System(
    "lds",
    "LDS",
    "difformer_paper.rivals.learned.LDS",
    LDSConfig,
    needs_graph=True,
    tasks=CLASSES,
    train={"lr": 0.01, "weight_decay": 5e-4, "epochs": 100},
    space={"theta_lr": (0.1, 1.0), "hidden_channels": (16, 32)},
)


@dataclass(frozen=True, kw_only=True)
class GLCNConfig(Stack):
    """Graph learning-convolutional network."""

    graph_channels: int = option(70, "width of the layer that learns the graph", COUNT)
    penalty: float = option(0.01, "weight λ of the graph loss", NOT_NEGATIVE)
    gamma: float = option(0.1, "weight of its sparsity term", NOT_NEGATIVE)
    beta: float = option(0.0, "weight of its distance to the given graph", NOT_NEGATIVE)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """The projected rows; per edge its score, square, weight and normalised weight."""
        return super().numbers(n, e, p, c) + 20 * e + 4 * self.graph_channels * (n + p)


_GLCN = System(
    "glcn",
    "GLCN",
    "difformer_paper.rivals.learned.GLCN",
    GLCNConfig,
    needs_graph=True,
    defaults={"hidden_channels": 30, "dropout": 0.6, "input_dropout": 0.6},
    package="torch_geometric",
    extra="gnn",
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"penalty": (0.001, 0.01, 0.1), "hidden_channels": (30, 70)},
)
LEARNED = (_LDS, _GLCN, _GLCN.on_neighbours("penalty"))


@dataclass(frozen=True, kw_only=True)
class NodeFormerConfig(Stack):
    """Kernelised Gumbel-softmax message passing; `hidden_channels` is also a head's width."""

    num_heads: int = option(4, "attention heads", COUNT)
    features: int = option(30, "random features m of the kernel", COUNT)
    gumbels: int = option(10, "Gumbel samples while training; 0: none", whole(0))
    tau: float = option(0.25, "temperature", POSITIVE)
    bias_order: int = option(
        2, "graphs of the relational bias: rows at most 1, 2, 4, ... edges apart", whole(0)
    )
    penalty: float = option(1.0, "weight λ of the edge loss", NOT_NEGATIVE)
    activation: bool = option(False, "ELU after every layer, not after the first linear one only")
    scale_features: bool = option(True, SCALE)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Random features of rows and of the ends of edges, noise per sample, wider graphs."""
        rows = 8 * self.features + 4 * max(1, self.gumbels) + 10 * self.hidden_channels
        kept = self.num_heads * (n * rows + 3 * e * self.features)
        wide = sum(min(n**2, n * (e / max(1, n)) ** 2**r) for r in range(1, self.bias_order))
        return super().numbers(n, e, p, c) + self.num_layers * kept + 6 * wide


@dataclass(frozen=True, kw_only=True)
class SGFormerConfig(Stack):
    """Simplified graph transformer; `num_layers` of attention, `dropout` on their states."""

    num_heads: int = option(1, "attention heads", COUNT)
    backbone: str = option(
        "gcn",
        "beside attention: a plain GCN, or a linear layer and convolutions with batch norm and "
        "residuals",
        ("gcn", "residual"),
    )
    graph_layers: int = option(4, "graph convolutions", COUNT)
    graph_weight: float = option(
        0.8, "weight α of the convolutions against attention", unit_interval(zero=True, one=True)
    )
    graph_dropout: float = option(0.5, "dropout on the states of the convolutions", RATE)
    scale_features: bool = option(True, SCALE)

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Attention keeps its queries, keys, values and norms; convolutions theirs."""
        states = n * self.hidden_channels * (16 * self.num_layers + 5 * self.graph_layers)
        return super().numbers(n, e, p, c) + states


TRANSFORMERS = (
    System(
        "nodeformer",
        "NodeFormer",
        "difformer_paper.rivals.nodeformer.NodeFormer",
        NodeFormerConfig,
        all_pairs=True,
        defaults={"hidden_channels": 32, "dropout": 0.2, "input_dropout": 0.0},
        train={"lr": 0.001, "weight_decay": 5e-3},
        space={"hidden_channels": (32, 64), "bias_order": (1, 2), "penalty": (0.1, 1.0)},
    ),
    System(
        "sgformer",
        "SGFormer",
        "difformer_paper.rivals.attention.SGFormer",
        SGFormerConfig,
        needs_graph=True,
        all_pairs=True,
        tasks=CLASSES,
        defaults={"num_layers": 1, "dropout": 0.2, "input_dropout": 0.0},
        package="torch_geometric",
        extra="gnn",
        train=KIPF,
        space={"graph_layers": (2, 4), "graph_weight": (0.5, 0.8), "dropout": (0.2, 0.5)},
    ),
)


@dataclass(frozen=True, kw_only=True)
class DenseGATConfig(GATConfig):
    """Attention over all pairs."""

    def numbers(self, n: int, e: int, p: int, c: int) -> float:
        """Two cumulative sums of the values per layer, their terms, and each row's entries."""
        sums = 12 * n * self.hidden_channels * self.num_heads * self.num_layers
        return super().numbers(n, e, p, c) + sums


@dataclass(frozen=True, kw_only=True)
class BiasedGATConfig(DenseGATConfig):
    """Attention over all pairs with a bias for those that an edge joins."""

    edge_bias: float = option(
        6.0, "first value of the bias; 6: an edge counts as e⁶, about 400, pairs without one"
    )


_DENSE_GAT = replace(
    GAT,
    name="densegat",
    title="Dense GAT",
    model="difformer_paper.rivals.attention.DenseGAT",
    config=DenseGATConfig,
    graph="dense",
    needs_graph=False,
    all_pairs=True,
    defaults={**DENSE, "hidden_channels": 16},
    train=KIPF,
    space={"hidden_channels": (8, 16), "dropout": (0.2, 0.5)},
)
_DENSE_GAT_EDGES = replace(
    _DENSE_GAT,
    name="densegat-edges",
    title="Dense GAT with edges",
    model="difformer_paper.rivals.attention.BiasedDenseGAT",
    config=BiasedGATConfig,
    graph="given",
    needs_graph=True,
)


@dataclass(frozen=True, kw_only=True)
class ManiRegConfig(Perceptron):
    """A perceptron with a penalty on its roughness along edges."""

    penalty: float = option(1.0, "weight λ of the roughness", NOT_NEGATIVE)
    classes: bool = option(True, "penalise probabilities; off: outputs as they are (regression)")


_MANIREG = System(
    "manireg",
    "ManiReg",
    "difformer_paper.rivals.learned.ManiReg",
    ManiRegConfig,
    needs_graph=True,
    defaults={"input_dropout": 0.0},
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={"penalty": (0.1, 1.0, 10.0), "hidden_channels": (16, 64, 256)},
)
SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        *DIFFUSIONS,
        *LEARNED,
        *TRANSFORMERS,
        _DENSE_GAT,
        _DENSE_GAT_EDGES,
        _MANIREG,
        _MANIREG.on_neighbours("penalty"),
    )
}

"""Every system's options: the one place where each name, default and meaning stands. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.baselines.system import option
from difformer.nn.config import DIFFormerConfig

__all__ = [
    "DGCConfig",
    "DIFFormerOptions",
    "GATConfig",
    "GATKNNConfig",
    "GCNConfig",
    "GCNKNNConfig",
    "GDCConfig",
    "GLCNConfig",
    "GLCNKNNConfig",
    "GRANDConfig",
    "HeatConfig",
    "LDSConfig",
    "LPConfig",
    "LPKNNConfig",
    "MLPConfig",
    "ManiRegConfig",
    "ManiRegKNNConfig",
    "NaiveConfig",
    "NodeFormerConfig",
    "SGCConfig",
    "SGFormerConfig",
]

NORMS = ("batch", "layer")
SCALE = "divide the features by the mean size of their entries that are not zero"


@dataclass(frozen=True, kw_only=True)
class DIFFormerOptions(DIFFormerConfig):
    """DIFFormer's own options, and its width."""

    hidden_channels: int = option(64, "width of the states")


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Options of the kNN graph builder; k is one more thing that validation chooses."""

    k: int = option(10, "neighbours a row in the kNN graph, which is then made undirected")
    metric: str = option("cosine", "distance between features", ("cosine", "euclidean"))


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """A perceptron on each row by itself."""

    hidden_channels: int = option(64, "width of the hidden layers")
    num_layers: int = option(2, "linear layers")
    dropout: float = option(0.5, "dropout after every hidden layer")
    input_dropout: float = option(0.0, "dropout on the input features")
    norm: str | None = option(None, "normalisation between layers", NORMS)


@dataclass(frozen=True, kw_only=True)
class ManiRegConfig(MLPConfig):
    """A perceptron with a penalty on its roughness along edges."""

    penalty: float = option(1.0, "weight λ of the roughness")
    classes: bool = option(True, "penalise probabilities; off: outputs as they are (regression)")


@dataclass(frozen=True, kw_only=True)
class LPConfig:
    """Label propagation."""

    steps: int = option(50, "propagation steps")
    alpha: float = option(0.9, "weight of the neighbours against the labels, in (0, 1)")


@dataclass(frozen=True, kw_only=True)
class GCNConfig:
    """Graph convolutions."""

    hidden_channels: int = option(64, "width of the hidden layers")
    num_layers: int = option(2, "graph convolutions")
    dropout: float = option(0.5, "dropout after every hidden layer")
    input_dropout: float = option(0.5, "dropout on the input features")
    residual: bool = option(False, "add a linear map of each layer's input to its output")
    norm: str | None = option(None, "normalisation between layers", NORMS)
    head: bool = option(False, "end with a linear layer rather than with a convolution")
    scale_features: bool = option(False, SCALE)


@dataclass(frozen=True, kw_only=True)
class GATConfig:
    """Graph attention."""

    hidden_channels: int = option(8, "width of a head")
    num_heads: int = option(8, "heads of the hidden layers, concatenated")
    out_heads: int = option(1, "heads of the last layer, averaged")
    num_layers: int = option(2, "attention layers")
    dropout: float = option(0.6, "dropout after every hidden layer")
    attention_dropout: float = option(0.6, "dropout on the attention weights")
    input_dropout: float = option(0.6, "dropout on the input features")
    residual: bool = option(False, "add a linear map of each layer's input to its output")
    norm: str | None = option(None, "normalisation between layers", NORMS)
    head: bool = option(False, "end with a linear layer rather than with attention")
    scale_features: bool = option(False, SCALE)


@dataclass(frozen=True, kw_only=True)
class SGCConfig:
    """Simplified graph convolution."""

    steps: int = option(2, "propagation steps K")


@dataclass(frozen=True, kw_only=True)
class DGCConfig:
    """Decoupled graph convolution by Euler steps."""

    steps: int = option(100, "Euler steps K")
    time: float = option(5.3, "terminal time T")


@dataclass(frozen=True, kw_only=True)
class GDCConfig(GCNConfig):
    """A GCN on the diffused graph."""

    diffusion: str = option("ppr", "personalised PageRank or heat kernel", ("ppr", "heat"))
    alpha: float = option(0.05, "teleport probability of ppr")
    time: float = option(5.0, "diffusion time of heat")
    top_k: int = option(128, "entries kept in each column")


@dataclass(frozen=True, kw_only=True)
class HeatConfig:
    """Heat-kernel convolutions."""

    hidden_channels: int = option(16, "width of the hidden layers")
    num_layers: int = option(2, "convolutions")
    scale: float = option(3.5, "s in e^(-s L)")
    dropout: float = option(0.5, "dropout after every hidden layer")
    input_dropout: float = option(0.5, "dropout on the input features")


@dataclass(frozen=True, kw_only=True)
class GLCNConfig:
    """Graph learning-convolutional network."""

    graph_channels: int = option(70, "width of the layer that learns the graph")
    hidden_channels: int = option(30, "width of the hidden layers")
    num_layers: int = option(2, "convolutions")
    dropout: float = option(0.6, "dropout after every hidden layer")
    input_dropout: float = option(0.6, "dropout on the input features")
    penalty: float = option(0.01, "weight λ of the graph loss")
    gamma: float = option(0.1, "weight of its sparsity term")
    beta: float = option(0.0, "weight of its distance to the given graph")


@dataclass(frozen=True, kw_only=True)
class GRANDConfig:
    """Graph neural diffusion."""

    hidden_channels: int = option(64, "width of the state")
    attention_channels: int = option(16, "width of a head's query and key")
    num_heads: int = option(4, "attention heads, averaged")
    nonlinear: bool = option(False, "attention follows the state; off: that of the first state")
    source: bool = option(False, "GRAND++: labelled rows are sources")
    source_dropout: float = option(0.5, "share of GRAND++'s sources left out in a training step")
    learned_scale: bool = option(True, "learn how fast X(t) moves and how strong the source is")
    time: float = option(8.0, "terminal time T")
    method: str = option(
        "rk4", "torchdiffeq's solver", ("euler", "midpoint", "rk4", "dopri5", "adaptive_heun")
    )
    step: float = option(1.0, "step size of the fixed-step solvers")
    tolerance: float = option(1e-3, "relative and absolute tolerance of the adaptive ones")
    dropout: float = option(0.5, "dropout on the first and the last state")
    input_dropout: float = option(0.5, "dropout on the input features")
    scale_features: bool = option(False, SCALE)


@dataclass(frozen=True, kw_only=True)
class LDSConfig:
    """Learning discrete structures."""

    hidden_channels: int = option(16, "width of the hidden layer")
    dropout: float = option(0.5, "dropout on features and hidden layer")
    inner_steps: int = option(5, "weight updates an epoch")
    unroll: int = option(1, "gradient steps the hypergradient goes through")
    inner_lr: float = option(0.1, "learning rate of those steps")
    theta_lr: float = option(1.0, "learning rate of the edge probabilities")
    outer_share: float = option(0.3, "share of the training rows kept for the outer loss")
    samples: int = option(4, "graphs averaged in a prediction")


@dataclass(frozen=True, kw_only=True)
class NodeFormerConfig:
    """Kernelised Gumbel-softmax message passing."""

    hidden_channels: int = option(32, "width of the states, and of a head")
    num_layers: int = option(2, "layers")
    num_heads: int = option(4, "heads")
    features: int = option(30, "random features m of the kernel")
    gumbels: int = option(10, "Gumbel samples while training; 0: none")
    tau: float = option(0.25, "temperature")
    bias_order: int = option(2, "powers of the adjacency in the relational bias")
    penalty: float = option(1.0, "weight λ of the edge loss")
    activation: bool = option(False, "ELU after every layer, not after the first linear one only")
    dropout: float = option(0.2, "dropout on the states")
    input_dropout: float = option(0.0, "dropout on the input features")
    scale_features: bool = option(True, SCALE)


@dataclass(frozen=True, kw_only=True)
class SGFormerConfig:
    """Simplified graph transformer."""

    hidden_channels: int = option(64, "width of the states")
    num_layers: int = option(1, "all-pair attention layers")
    num_heads: int = option(1, "attention heads")
    backbone: str = option(
        "gcn",
        "beside attention: a plain GCN, or a linear layer and convolutions with batch norm and "
        "residuals",
        ("gcn", "residual"),
    )
    graph_layers: int = option(3, "graph convolutions")
    graph_weight: float = option(0.8, "weight α of the convolutions against attention")
    dropout: float = option(0.2, "dropout on the states of attention")
    graph_dropout: float = option(0.5, "dropout on the states of the convolutions")
    input_dropout: float = option(0.0, "dropout on the input features")
    scale_features: bool = option(True, SCALE)


# A kNN variant is a graph builder × a model: the options of both.


@dataclass(frozen=True, kw_only=True)
class GCNKNNConfig(GCNConfig, Neighbours):
    """GCN on neighbours by features."""


@dataclass(frozen=True, kw_only=True)
class GATKNNConfig(GATConfig, Neighbours):
    """GAT on neighbours by features."""


@dataclass(frozen=True, kw_only=True)
class LPKNNConfig(LPConfig, Neighbours):
    """Label propagation on neighbours by features."""


@dataclass(frozen=True, kw_only=True)
class ManiRegKNNConfig(ManiRegConfig, Neighbours):
    """ManiReg on neighbours by features."""


@dataclass(frozen=True, kw_only=True)
class GLCNKNNConfig(GLCNConfig, Neighbours):
    """GLCN on neighbours by features."""


@dataclass(frozen=True, kw_only=True)
class NaiveConfig:
    """A forecast without a network."""

    rule: str = option("last", "which forecast", ("last", "mean", "node", "pooled"))
    ridge: float = option(0.0, "penalty on the weights of an autoregression")

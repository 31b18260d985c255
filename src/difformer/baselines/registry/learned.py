"""Systems that learn the graph, or its weights."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.baselines.registry.memory import FLOAT, by_edge, features
from difformer.baselines.registry.stack import CLASSES, Stack
from difformer.baselines.system import System
from difformer.options import COUNT, NOT_NEGATIVE, POSITIVE, RATE, SHARE, Options, option, whole

__all__ = ["SYSTEMS", "GLCNConfig", "LDSConfig"]


@dataclass(frozen=True, kw_only=True)
class LDSConfig(Options):
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


def _bilevel(n: int, e: int, p: int, c: int, config: LDSConfig) -> float:
    """Pairs with their chances, drawn graphs, the narrow factors of the hypergradient, features."""
    pairs = 24 * (e + 2 * n * config.top_k)
    factors = 40 * n * (config.hidden_channels + c) * (config.unroll + 1)
    block = 2 * min(n * n, 2**22)
    return FLOAT * (pairs + factors + block) + features(n, e, p, c, config)


_LDS = System(
    name="lds",
    title="LDS",
    model="lds.LDS",
    config=LDSConfig,
    memory=_bilevel,
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


def _edge_weights(n: int, e: int, p: int, c: int, config: GLCNConfig) -> float:
    """The projected rows; per edge its score, square, weight and normalised weight, no gap."""
    return by_edge(16, n, e, p, c, config) + FLOAT * 4 * config.graph_channels * (n + p)


_GLCN = System(
    name="glcn",
    title="GLCN",
    model="glcn.GLCN",
    config=GLCNConfig,
    memory=_edge_weights,
    needs_graph=True,
    defaults={"hidden_channels": 30, "dropout": 0.6, "input_dropout": 0.6},
    train={"lr": 0.005, "weight_decay": 5e-4},
    space={"penalty": (0.001, 0.01, 0.1), "hidden_channels": (30, 70)},
)
SYSTEMS = (_LDS, _GLCN, _GLCN.on_neighbours("penalty"))

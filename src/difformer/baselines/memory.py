"""How much memory a training step takes: (rows, edges, features, outputs, config) -> bytes.

Rough, and on the large side: it is to say before a run that it cannot fit. No torch here.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "bilevel",
    "by_edge",
    "dense_square",
    "edge_weights",
    "features",
    "gumbel",
    "labels",
    "linear",
    "running_sums",
    "solver",
    "tiled",
]

FLOAT = 4  # bytes


def _width(config: Any) -> int:
    return int(getattr(config, "hidden_channels", 16)) * int(getattr(config, "num_heads", 1))


def linear(n: int, e: int, p: int, c: int, config: Any) -> float:
    """States kept for the backward pass, a sparse adjacency, first weights with Adam's moments."""
    d, layers = _width(config), int(getattr(config, "num_layers", 2))
    return FLOAT * (4 * n * d * layers + 5 * e + 4 * p * d)


def tiled(n: int, e: int, p: int, c: int, config: Any) -> float:
    """The sigmoid diffusivity is computed in tiles: no n × n matrix is kept."""
    return linear(n, e, p, c, config) + FLOAT * 256 * n * 4


def running_sums(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Two running sums of the values a layer, their terms, and what each row picks of them."""
    return linear(n, 0, p, c, config) + FLOAT * 12 * n * _width(config) * config.num_layers


def by_edge(n: int, e: int, p: int, c: int, config: Any) -> float:
    """A message of full width an edge and layer, forward and backward."""
    layers = int(getattr(config, "num_layers", 2))
    return linear(n, e, p, c, config) + FLOAT * 2 * e * (_width(config) + c) * max(1, layers / 2)


def edge_weights(n: int, e: int, p: int, c: int, config: Any) -> float:
    """A learned weight an edge, and the gap of two projected rows."""
    return linear(n, e, p, c, config) + FLOAT * 4 * e * config.graph_channels


def features(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Dense features before and after propagation, and a message an edge."""
    return FLOAT * (3 * n * p + e * p)


def labels(n: int, e: int, p: int, c: int, config: Any) -> float:
    return FLOAT * (3 * n * c + e * c)


def dense_square(n: int, e: int, p: int, c: int, config: Any) -> float:
    """The exact diffusion matrix, its inverse and the solver's work space."""
    return FLOAT * 4 * n * n + linear(n, n * config.top_k, p, c, config)


def bilevel(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Each unrolled step keeps its sampled and normalised graph and their gradients."""
    return FLOAT * (8 + 6 * (config.unroll + 1)) * n * n + features(n, 0, p, c, config)


def solver(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Every evaluation of the field keeps its state, and its attention if it has its own."""
    evaluations = config.time / config.step * {"rk4": 4, "midpoint": 2}.get(config.method, 1)
    attention = config.num_heads * (2 * config.attention_channels + 3) if config.nonlinear else 1
    keep = n * config.hidden_channels * 3 + e * attention
    return linear(n, e, p, c, config) + FLOAT * evaluations * keep


def gumbel(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Keys with every Gumbel sample and random feature, and two features an edge."""
    each = config.num_heads * config.features
    samples = n * each * max(1, config.gumbels) * 2 + 3 * e * each
    samples += n * config.num_heads * max(1, config.gumbels) * config.hidden_channels * 2
    return linear(n, e, p, c, config) + FLOAT * config.num_layers * samples

"""How much memory a training step takes: (rows, edges, features, outputs, config) -> bytes.

A rough upper estimate, by which a run that does not fit is refused before it starts. Rules that
several systems share are here; others are next to the entry of their system.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FLOAT", "by_edge", "features", "labels", "linear"]

FLOAT = 4  # bytes


def _width(config: Any) -> int:
    return int(getattr(config, "hidden_channels", 16)) * int(getattr(config, "num_heads", 1))


def linear(n: int, e: int, p: int, c: int, config: Any) -> float:
    """States kept for the backward pass, a sparse adjacency, first weights with Adam's moments."""
    d, layers = _width(config), int(getattr(config, "num_layers", 2))
    return FLOAT * (4 * n * d * layers + 5 * e + 4 * p * d)


def by_edge(numbers: float, n: int, e: int, p: int, c: int, config: Any) -> float:
    """`linear`, and `numbers` per edge; sources and targets of the edges as int64."""
    return linear(n, e, p, c, config) + FLOAT * e * (numbers + 4)


def features(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Dense features before, during and after propagation, and a sparse adjacency."""
    return FLOAT * (3 * n * p + 5 * e)


def labels(n: int, e: int, p: int, c: int, config: Any) -> float:
    """Labels before and after they are spread, and one message per edge."""
    return FLOAT * (3 * n * c + e * c)

"""Contexts: what a layer needs from all keys and values to answer any query.

A Context is additive: summarise(A) + summarise(B) == summarise(A and B together). Chunks of rows,
machines, separate graphs and frozen predictors all rest on that one property.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

C = TypeVar("C", bound="Context")


@dataclass(frozen=True)
class Context:
    """Base of all contexts: a frozen bundle of tensors that can be added, moved and saved."""

    def __add__(self: C, other: C) -> C:
        """The context of both sets of rows together; by default every field is a sum over rows."""
        if type(other) is not type(self):
            raise TypeError(f"cannot add {type(other).__name__} to {type(self).__name__}")
        theirs = other.tensors()
        both = {name: self._join(mine, theirs[name]) for name, mine in self.tensors().items()}
        return type(self)(**both)

    @staticmethod
    def _join(a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def tensors(self) -> dict[str, Tensor]:
        """The fields by name, for saving and for sending in one message."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Mean(Context):
    """Σ v_j and the count: all that a constant diffusivity needs."""

    value_sum: Tensor  # (..., h, 1, e)
    count: Tensor  # ()


@dataclass(frozen=True)
class LandmarkSums(Context):
    """ZᵀV and Zᵀ1: m (e + 1) numbers per head for m landmarks, whatever the row count."""

    value: Tensor  # (..., h, m, e)
    mass: Tensor  # (..., h, m, 1)


@dataclass(frozen=True)
class Moments(Context):
    """Σ v_j, Σ k̃_j v_jᵀ, Σ k̃_j, count: d·e + e + d + 1 numbers per head, whatever the row count."""

    value_sum: Tensor  # (..., h, 1, e)
    key_value: Tensor  # (..., h, d, e)
    key_sum: Tensor  # (..., h, d, 1)
    count: Tensor  # ()


@dataclass(frozen=True)
class ScaledMoments(Moments):
    """Moments of keys not yet scaled, Σ‖k‖² and Σ‖q‖²: the whole-tensor norm stays additive."""

    key_square: Tensor  # (..., 1, 1, 1)
    query_square: Tensor  # (..., 1, 1, 1)


@dataclass(frozen=True)
class Pairs(Context):
    """The keys and values themselves, where nothing separates; adding joins the rows."""

    key: Tensor  # (..., h, m, d)
    value: Tensor  # (..., h, m, e)

    @staticmethod
    def _join(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b], dim=-2)


def row_count(rows: Tensor) -> Tensor:
    """The number of rows m of a tensor (..., m, d), as a scalar tensor of its dtype and device."""
    return rows.new_full((), rows.shape[-2])


CONTEXTS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (LandmarkSums, Mean, Moments, Pairs, ScaledMoments)
}
"""The contexts that a file of a frozen model may name."""

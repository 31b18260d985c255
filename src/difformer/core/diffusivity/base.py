"""The base class of diffusivities: a pairwise ω, and all that follows from it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from difformer.core.context import Context, Pairs
from difformer.core.euler import AverageOfStates
from difformer.core.fixed import FixedAverage
from difformer.core.rows import squared_distances
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import average_by_rows, chunk_rows, tiles


def check_positive(**knobs: float | None) -> None:
    """Raise if one that is given is not above zero."""
    for name, value in knobs.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value!r}")


class Diffusivity(ABC):
    """A pairwise diffusivity. A subclass needs only `omega`; the rest follows, in bounded memory.

    `f` and `delta` are needed only for energies; `domain` is the largest z² on which f ≥ 0.
    """

    name: ClassVar[str] = "custom"
    separable: ClassVar[bool] = False
    """Whether the context is a few sums, whatever the number of rows."""
    local: ClassVar[bool] = False
    """Whether a row's average is its own value, so that a new row needs no context."""
    compares: ClassVar[bool] = True
    """Whether the weights depend on queries and keys; if not, a layer learns none."""
    prepares: bool = False
    """Whether rows must pass through `prepare` before they are compared."""
    anchored: ClassVar[bool] = False
    """Whether rows are compared with landmarks, which `prepare` takes as `known`."""
    knobs: ClassVar[tuple[str, ...]] = ()
    """Which of a model's options its constructor takes."""
    matrices: int = 1
    """How many matrices over pairs of rows `omega_at` holds at once."""
    domain: ClassVar[float] = math.inf

    @abstractmethod
    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        """The unnormalised ω (..., n, m), dense: what the fast paths are tested against."""

    def f(self, z2: Tensor) -> Tensor:
        """The diffusivity as a function of the squared distance of two states: δ'(z²)."""
        raise NotImplementedError(f"the {self.name} diffusivity has no f, so it has no energy")

    def delta(self, z2: Tensor) -> Tensor:
        """The penalty δ of a squared distance in the energy of eq. 4: δ(0) = const, δ' = f."""
        raise NotImplementedError(f"the {self.name} diffusivity has no delta, so it has no energy")

    def omega_at(self, z: Tensor, rows: slice) -> Tensor:
        """ω_ij (rows, n) of a range of rows of states z (n, d) with all of them."""
        return self.f(squared_distances(z[rows], z))

    def delta_at(self, z: Tensor, rows: slice) -> Tensor:
        """δ_ij (rows, n) of a range of rows of states z (n, d) with all of them."""
        return self.delta(squared_distances(z[rows], z))

    def _row_tiles(self, z: Tensor) -> Iterator[slice]:
        return tiles(z.shape[0], chunk_rows(z.shape[0] * self.matrices))

    def pair_penalty(self, z: Tensor) -> Tensor:
        """Σ_ij δ_ij over all ordered pairs of z (n, d): a scalar, O(n² d) in tiles."""
        total = z.new_zeros(())
        for rows in self._row_tiles(z):
            total = total + self.delta_at(z, rows).sum()
        return total

    def pair_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j ω_ij z_j (n, d) and Σ_j ω_ij (n, 1), O(n² d) in tiles."""
        pull, mass = torch.empty_like(z), torch.empty_like(z[:, :1])
        for rows in self._row_tiles(z):
            omega = self.omega_at(z, rows)
            pull[rows], mass[rows] = omega @ z, omega.sum(-1, keepdim=True)
        return pull, mass

    def at(self, states: Tensor) -> Diffusivity:
        """This diffusivity with what it calibrates at these states (n, d), for their energy."""
        return self

    def prepare(self, q: Tensor, k: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys as all other methods take them, (..., n, ·), of the same n rows.

        What depends on other rows is computed from `known` (..., m, d) if given, else from k. The
        base class returns the rows unchanged.
        """
        return q, k

    def fixed(
        self, rows: Tensor | SparseMatrix, known: Tensor | None = None
    ) -> FixedAverage | None:
        """Ŝ of rows (n, d) that are both queries and keys, computed once; None if not supported."""
        return None

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """Ŝ (..., n, m), dense, each row summing to one."""
        omega = self.omega(q, k)
        return omega / omega.sum(-1, keepdim=True)

    def weights_of(self, rows: Tensor | slice, q: Tensor, k: Tensor) -> Tensor:
        """The rows `rows` of weights(q, k), without the others."""
        return self.weights(q[..., rows, :], k)

    def summarise(self, k: Tensor, v: Tensor, q: Tensor | None = None) -> Context:
        """The additive context of some rows' keys and values; some classes need the queries q."""
        return Pairs(k, v)

    def apply(self, q: Tensor, context: Context) -> Tensor:
        """Σ_j Ŝ_ij v_j (..., n, e) from the context of all rows j."""
        assert isinstance(context, Pairs)
        return average_by_rows(self.weights, q, context.key, context.value)

    def closed_form(self, heads: int) -> AverageOfStates | None:
        """The average over all rows where q, k and v are affine maps of the states, or None.

        It has hand-written gradients and needs less memory than `summarise` and `apply`.
        """
        return None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """summarise, then apply: one full-batch average."""
        return self.apply(q, self.summarise(k, v, q))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

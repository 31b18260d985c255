"""The bare diffusion process of eq. 3, and the energies that it descends; no parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from difformer.core.diffusivity import make_diffusivity
from difformer.core.graph import Graph
from difformer.core.rows import check_finite
from difformer.core.tiled import chunk_rows, tiles
from difformer.settings import check_count, unit_interval

Coupling = Literal["joint", "paper"]


@dataclass(frozen=True)
class DescentReport:
    """Energies along a trajectory, E(Z⁽ᵏ⁺¹⁾, k) for k = 0, 1, …, and whether they fall."""

    energies: Tensor  # (steps,) float64
    rises: tuple[int, ...]  # the steps k ≥ 1 at which the energy rose
    tau: float
    guaranteed: float  # a step size that is guaranteed to descend from the first state

    @property
    def holds(self) -> bool:
        """Whether no step raised the energy."""
        return not self.rises


@dataclass(frozen=True)
class Diffusion:
    """The process for one diffusivity: `step`, `trajectory`, `energy`, `check_descent`.

    Args:
        kernel: a Diffusivity, or the name of one. MLP is `"identity"` without a graph.
        tau: the step size, in (0, 1].
        graph: optional; GCN is `"identity"` with a graph and coupling "paper" (Table 1).
        graph_scale: c, the factor on Ã ("joint" only); by default the number of rows, which makes
            both penalties count alike when every ω is near one.
        source_weight: μ, the fidelity to the first state.
        edges_only: restrict ω to the graph's edges, as GAT does (Table 1).
        proximal: applied after each step (appendix C); `relu_proximal` is the ReLU.
    """

    kernel: Any = "simple"
    tau: float = 0.5
    graph: Graph | None = None
    graph_scale: float | None = None
    source_weight: float = 0.0
    coupling: Coupling = "joint"
    edges_only: bool = False
    proximal: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        unit_interval(zero=False, one=True)("tau", self.tau)
        if self.coupling not in ("joint", "paper"):
            raise ValueError(f"coupling must be 'joint' or 'paper', got {self.coupling!r}")
        if self.source_weight < 0:
            raise ValueError(f"source_weight must not be negative, got {self.source_weight!r}")
        if self.edges_only and self.graph is None:
            raise ValueError("graph must be given when edges_only is set")
        object.__setattr__(self, "kernel", make_diffusivity(self.kernel))

    def masses(self, z: Tensor) -> Tensor:
        """The weight each row's average is divided by (n,): Σ_j ω_ij + c Σ_j Ã_ij + μ."""
        return self._sums(z)[1].squeeze(-1)

    def step(self, z: Tensor, source: Tensor | None = None) -> Tensor:
        """One Euler step of z (n, d); `source` is the first state, z itself if None."""
        numerator, mass = self._sums(z)
        if self.source_weight:
            numerator = numerator + self.source_weight * (z if source is None else source)
        if self.coupling == "paper" and self.graph is not None and not self.edges_only:
            degree = self.graph.propagate(torch.ones_like(z[:, :1]))
            flow = numerator / mass - z + self.graph.propagate(z) - degree * z
            moved = z + self.tau / 2 * flow
        else:
            moved = (1 - self.tau) * z + self.tau * numerator / mass
        return moved if self.proximal is None else self.proximal(moved)

    def trajectory(self, z: Tensor, steps: int) -> list[Tensor]:
        """Z⁽⁰⁾ … Z⁽ˢᵗᵉᵖˢ⁾, each (n, d)."""
        self._check(z)
        check_count("steps", steps, at_least=0)
        states = [z]
        for _ in range(steps):
            states.append(self.step(states[-1], z))
        return states

    def energy(
        self, z: Tensor, previous: Tensor, weight: float, source: Tensor | None = None
    ) -> Tensor:
        """E(Z, k) of eq. 4, or of eq. 19 with a graph, which this process descends; float64.

        Args:
            z, previous: (n, d) the states and the ones they came from, Z⁽ᵏ⁾.
            weight: λ.
            source: Z⁽⁰⁾, whose fidelity weighs μ; None leaves it out.
        """
        # Sums over n² pairs need the precision.
        z = z.double()
        share = weight if self.graph is None else weight / 2
        total = (z - previous.double()).square().sum() + share * self.kernel.pair_penalty(z)
        if self.graph is not None:
            total = total + share * self._scale(z) * self._graph_penalty(z)
        if source is not None and self.source_weight:
            fidelity = (z - source.double()).square().sum()
            total = total + 2 * share * self.source_weight * fidelity
        return total

    def _graph_penalty(self, z: Tensor) -> Tensor:
        """Σ_ij Ã_ij ‖z_i − z_j‖² over the edges, in O(e d)."""
        assert self.graph is not None
        target, source, weight = self.graph.adjacency.coo
        total = z.new_zeros(())
        for part in tiles(weight.numel(), chunk_rows(z.shape[1])):
            difference = z[target[part]] - z[source[part]]
            total = total + (weight[part].double() * difference.square().sum(-1)).sum()
        return total

    def safe_tau(self, z: Tensor, weight: float) -> float:
        """The largest step τ for which one step from `z` provably does not raise the energy, O(n).

        With pair weight s (λ = `weight`, or λ/2 with a graph) and the row masses m_i (everything a
        row's average divides by), it changes by at most Σ_i ‖Δz_i‖² (1 + 4 s m_i (1 − 1/τ)), so

            τ = 4 s m / (1 + 4 s m),   m = min_i m_i                   (docs/maths.md, Theorem 1)
        """
        if not weight > 0:
            raise ValueError(f"weight must be positive, got {weight!r}")
        share = weight if self.graph is None else weight / 2
        least = 4.0 * share * float(self.masses(z).min())
        return least / (1.0 + least)

    def check_descent(self, z: Tensor, steps: int, weight: float) -> DescentReport:
        """Run `steps` steps from `z` and compare E(Z⁽ᵏ⁺¹⁾, k) ≤ E(Z⁽ᵏ⁾, k − 1) at each."""
        states = self.trajectory(z, steps)
        energies = torch.stack([self.energy(b, a, weight, states[0]) for a, b in pairwise(states)])
        slack = 1e-9 * energies.abs().max()
        rises = tuple(k for k in range(1, steps) if energies[k] > energies[k - 1] + slack)
        return DescentReport(energies, rises, self.tau, self.safe_tau(z, weight))

    def _scale(self, z: Tensor) -> float:
        return float(z.shape[0]) if self.graph_scale is None else self.graph_scale

    def _sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's weighted sum, without the source, and the weight it is divided by."""
        if self.edges_only:
            return self._edge_sums(z)
        numerator, mass = self.kernel.pair_sums(z)
        if self.coupling == "joint" and self.graph is not None:
            scale = self._scale(z)
            numerator = numerator + scale * self.graph.propagate(z)
            mass = mass + scale * self.graph.propagate(torch.ones_like(z[:, :1]))
        return numerator, mass + self.source_weight

    def _edge_sums(self, z: Tensor) -> tuple[Tensor, Tensor]:
        assert self.graph is not None
        source, target = self.graph.edge_index[0], self.graph.edge_index[1]
        omega = self.kernel.f((z[target] - z[source]).square().sum(-1, keepdim=True))
        numerator = torch.zeros_like(z).index_add(0, target, omega * z[source])
        mass = torch.zeros_like(z[:, :1]).index_add(0, target, omega)
        mass = mass + self.source_weight
        # A row without edges and without a source keeps its state.
        alone = mass == 0
        return torch.where(alone, z, numerator), torch.where(alone, 1.0, mass)

    def _check(self, z: Tensor) -> None:
        if z.dim() != 2 or 0 in z.shape:
            raise ValueError(f"z must have shape (n, d) with n, d at least 1, got {tuple(z.shape)}")
        check_finite("z", z)
        # A ball of radius r holds no two points further apart than 2 r.
        radius2, kernel = float(z.square().sum(-1).max()), self.kernel
        if 4 * radius2 > kernel.domain * (1 + 1e-6):
            raise ValueError(
                f"z must lie in the ball of radius {kernel.domain**0.5 / 2:g} for the "
                f"{kernel.name} diffusivity (f is negative beyond), got a row of length "
                f"{radius2**0.5:g}: scale the rows first"
            )


def relu_proximal(z: Tensor) -> Tensor:
    """The proximal step of appendix C for the feasible region z ≥ 0: a ReLU."""
    return z.clamp_min(0)

"""The energies of the paper, and a step size that is guaranteed to descend.

    E(Z, k) = ‖Z − Z⁽ᵏ⁾‖² + λ Σ_ij δ(‖z_i − z_j‖²)                                  (eq. 4)
    E(Z, k) = ‖Z − Z⁽ᵏ⁾‖² + λ/2 Σ_ij δ(‖z_i − z_j‖²) + λ/2 Σ_ij A_ij ‖z_i − z_j‖²   (eq. 19)

and, with a source of weight μ, + 2 λ μ ‖Z − Z⁽⁰⁾‖² (λ μ with a graph): see docs/maths.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from difformer.core.diffusivity import Diffusivity
from difformer.core.graph import Graph
from difformer.core.tiled import chunk_rows, tiles

__all__ = ["descent_step", "energy", "graph_penalty"]


def graph_penalty(z: Tensor, graph: Graph) -> Tensor:
    """Σ_ij Ã_ij ‖z_i − z_j‖² over the edges, in O(e d); a float64 scalar."""
    z = z.double()
    target, source, weight = graph.adjacency.coo
    total = z.new_zeros(())
    for part in tiles(weight.numel(), chunk_rows(z.shape[1])):
        difference = z[target[part]] - z[source[part]]
        total = total + (weight[part].double() * difference.square().sum(-1)).sum()
    return total


def energy(
    z: Tensor,
    previous: Tensor,
    diffusivity: Diffusivity,
    *,
    weight: float,
    graph: Graph | None = None,
    graph_scale: float = 1.0,
    source: Tensor | None = None,
    source_weight: float = 0.0,
) -> Tensor:
    """E(Z, k) of eq. 4, or of eq. 19 where a graph is given; a float64 scalar.

    Args:
        z, previous: (n, d) the states and the ones they came from, Z⁽ᵏ⁾.
        weight: λ.
        graph, graph_scale: the graph and the factor on its normalised adjacency.
        source, source_weight: Z⁽⁰⁾ and μ, the fidelity to the first state.
    """
    share = weight / 2 if graph is not None else weight
    # Sums over n² pairs need the precision.
    pairs = diffusivity.pair_penalty(z.double())
    total = (z.double() - previous.double()).square().sum() + share * pairs
    if graph is not None:
        total = total + share * graph_scale * graph_penalty(z, graph)
    if source is not None and source_weight:
        fidelity = (z.double() - source.double()).square().sum()
        total = total + 2 * share * source_weight * fidelity
    return total


def descent_step(mass: Tensor, weight: float, *, with_graph: bool = False) -> float:
    """The largest step τ for which one step provably does not raise the energy, O(n).

    With pair weight s (λ, or λ/2 with a graph) and the row masses m_i (everything a row's
    average divides by), the energy changes by at most Σ_i ‖Δz_i‖² (1 + 4 s m_i (1 − 1/τ)), so

        τ = 4 s m / (1 + 4 s m),   m = min_i m_i                       (docs/maths.md, Theorem 1)
    """
    if not weight > 0:
        raise ValueError(f"weight must be positive, got {weight!r}")
    share = weight / 2 if with_graph else weight
    least = 4.0 * share * float(torch.as_tensor(mass).min())
    return least / (1.0 + least)

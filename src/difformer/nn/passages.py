"""Inspection of a model: the input and output of each layer for all rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.diffusion import Diffusion
from difformer.core.diffusivity import Diffusivity
from difformer.core.rows import squared_distances
from difformer.core.tiled import tiles
from difformer.nn.exchange import Exchange
from difformer.nn.layer import DiffusionLayer
from difformer.settings import check_count

# Diffusivities computed at a time when only the strongest of each row are kept.
ROW_SCORES = 2**24


@dataclass(frozen=True)
class Passage:
    """One layer of a forward pass: its input and its output."""

    layer: DiffusionLayer
    before: Tensor  # (n, d)
    after: Tensor  # (n, d)
    first: Tensor  # (n, d)
    exchange: Exchange
    compared: Tensor | None  # (n, p); the states where it is None

    def project(self) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        return self.layer.project(self.before, self.compared, self.exchange)

    def diffusivity(
        self, rows: Tensor | None, top_k: int | None, batch: Tensor | None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Ŝ[rows] averaged over heads, or its `top_k` strongest: see `DIFFormer.diffusivity`."""
        q, k, _ = self.project()
        kernel, n = self.layer.diffusivity, self.before.shape[0]
        rows = torch.arange(n, device=q.device) if rows is None else _checked_rows(rows, n)
        if top_k is None:
            return _weight_rows(kernel, q, k, rows, batch)
        top_k = min(check_count("top_k", top_k), n)
        size = max(1, ROW_SCORES // (n * self.layer.num_heads))
        parts = [
            _weight_rows(kernel, q, k, rows[part], batch).topk(top_k, dim=-1)
            for part in tiles(rows.numel(), size)
        ]
        return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])

    @cached_property
    def pairs(self) -> Diffusivity:
        """The diffusivity whose δ is in this layer's energy, on unit states."""
        kernel = self.layer.diffusivity
        if self.compared is not None and not kernel.local:
            return GivenPairs(kernel, *self.project()[:2])
        return kernel.at(F.normalize(self.before, dim=-1))

    @property
    def source_weight(self) -> float:
        """μ = β/(1 − β) times the mean row mass of the first state; 0 without a source β."""
        beta = self.layer.config.source
        if not beta:
            return 0.0
        masses = Diffusion(self.pairs).masses(F.normalize(self.first, dim=-1))
        return beta / (1 - beta) * float(masses.mean())

    def energy(self, unit: Tensor, weight: float, source_weight: float) -> Tensor:
        """E(·, k) of states on unit rows (n, d), relative to the state before this layer."""
        process = Diffusion(self.pairs, graph=self.exchange.graph, source_weight=source_weight)
        before, first = F.normalize(self.before, dim=-1), F.normalize(self.first, dim=-1)
        return process.energy(unit, before, weight, first)


class GivenPairs(Diffusivity):
    """ω_ij between given rows, averaged over heads, whatever the states: δ_ij(z²) = ω_ij z².

    The energy is then quadratic in the states. `q` and `k` (h, n, ·) are prepared.
    """

    def __init__(self, kernel: Diffusivity, q: Tensor, k: Tensor) -> None:
        self.kernel, self.q, self.k = kernel, q, k

    def omega(self, q: Tensor, k: Tensor) -> Tensor:
        return self.kernel.omega(q, k)

    def omega_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.omega(self.q[:, rows], self.k).mean(0).to(z)

    def delta_at(self, z: Tensor, rows: slice) -> Tensor:
        return self.omega_at(z, rows) * squared_distances(z[rows], z)


def _checked_rows(rows: Tensor, n: int) -> Tensor:
    rows = torch.as_tensor(rows).long()
    if rows.dim() != 1 or (rows.numel() and (int(rows.min()) < 0 or int(rows.max()) >= n)):
        raise ValueError(f"rows must be a list of rows from 0 to {n - 1}, got {rows.tolist()}")
    return rows


def _weight_rows(
    kernel: Diffusivity, q: Tensor, k: Tensor, rows: Tensor, batch: Tensor | None
) -> Tensor:
    """Ŝ[rows] (r, n), averaged over heads; zero between graphs."""
    if batch is None:
        return kernel.weights_of(rows, q, k).mean(-3)
    out = q.new_zeros(rows.numel(), q.shape[-2])
    for graph_id in torch.unique(batch[rows]).tolist():
        members = (batch == graph_id).nonzero().squeeze(1)
        mine = (batch[rows] == graph_id).nonzero().squeeze(1)
        within = torch.searchsorted(members, rows[mine])
        part = kernel.weights_of(within, q[:, members], k[:, members]).mean(-3)
        out[mine.unsqueeze(1), members] = part
    return out

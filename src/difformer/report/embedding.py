"""Projections of the states to two dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["PROJECTIONS", "on_a_line", "project", "sample_rows", "wanted_projections"]

PROJECTIONS = ("auto", "pca", "tsne")
MOST_TSNE = 2000  # rows up to which "auto" takes t-SNE, which is slower


def sample_rows(n: int, most: int, *, seed: int = 0) -> Tensor:
    """At most `most` of n rows, sorted, drawn at random: O(n)."""
    if n <= most:
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(n, generator=generator)[:most].sort().values


def wanted_projections(projection: str, rows: int) -> list[str]:
    """The projections to draw; the first one is shown first."""
    if projection not in PROJECTIONS:
        raise ValueError(f"projection must be one of {', '.join(PROJECTIONS)}, got {projection!r}")
    if projection == "pca" or rows < 5 or (projection == "auto" and rows > MOST_TSNE):
        return ["pca"]
    return ["tsne", "pca"]


def on_a_line(state: Tensor) -> bool:
    """Whether the rows of a state differ in one direction only, to rounding: O(n d²)."""
    return _thin(_pca(_values(state)))


def project(state: Tensor, how: str) -> Tensor:
    """(n, d) -> (n, 2): principal components in O(n d²), or t-SNE in O(n log n) slow steps.

    Rows on a line are piled up on it in either case: both would draw nothing but the line, t-SNE
    because it starts from the principal components, and points on a line push none off it.
    """
    values = _values(state)
    start = _pca(values)
    if _thin(start):
        return _piled(start[:, 0])
    if how == "pca":
        return start
    from sklearn.manifold import TSNE

    n = values.shape[0]
    begin: Any = (start / start[:, 0].std().clamp_min(1e-12) * 1e-4).numpy()
    perplexity = min(30.0, (n - 1) / 3)
    tsne = TSNE(init=begin, max_iter=300, perplexity=perplexity, random_state=0)
    return torch.from_numpy(tsne.fit_transform(values.numpy()))


def _values(state: Tensor) -> Tensor:
    return state.detach().double().nan_to_num()


def _thin(drawn: Tensor) -> bool:
    """Whether the second of two principal components is no more than the rounding of floats."""
    across, up = drawn.std(0, correction=0)
    return bool(up <= 1e-5 * across)


def _piled(across: Tensor) -> Tensor:
    """Rows at their places on a line, those of one of its steps above each other."""
    n = across.shape[0]
    low, width = across.min(), across.max() - across.min()
    step = width / math.ceil(4 * n**0.5)
    piles = ((across - low) / step.clamp_min(1e-300)).floor().long()
    order = (across - low).argsort(stable=True)
    order = order[piles[order].argsort(stable=True)]
    _, sizes = piles[order].unique_consecutive(return_counts=True)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    up = torch.empty_like(across)
    up[order] = torch.arange(n, dtype=up.dtype) - first - (sizes.repeat_interleave(sizes) - 1) / 2
    return torch.stack([across, step * up], 1)


def _pca(values: Tensor) -> Tensor:
    n, d = values.shape
    out = torch.zeros(n, 2, dtype=torch.float64)
    width = min(2, n, d)
    if width and n > 1:
        from sklearn.decomposition import PCA

        centred: Any = values - values.mean(0)
        if float(centred.abs().max()) > 0:
            fitted: Any = PCA(width, random_state=0, svd_solver="randomized" if d > 50 else "auto")
            out[:, :width] = torch.from_numpy(fitted.fit_transform(centred.numpy()))
    elif width:
        out[:, 0] = values[:, 0]
    return out

"""Projections of the states to two dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["PROJECTIONS", "project", "sample_rows", "wanted_projections"]

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


def project(state: Tensor, how: str) -> Tensor:
    """(n, d) -> (n, 2): principal components in O(n d²), or t-SNE in O(n log n) slow steps."""
    values = state.detach().double().nan_to_num()
    if how == "pca" or values.shape[1] < 2 or bool((values.std(0) == 0).all()):
        return _pca(values)
    from sklearn.manifold import TSNE

    n = values.shape[0]
    start: Any = _pca(values)
    start = (start / start[:, 0].std().clamp_min(1e-12) * 1e-4).numpy()
    perplexity = min(30.0, (n - 1) / 3)
    tsne = TSNE(init=start, max_iter=300, perplexity=perplexity, random_state=0)
    return torch.from_numpy(tsne.fit_transform(values.numpy()))


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

"""Nearest neighbours by features: exact for small data, by an approximate index for large."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from difformer.data.dataset import scipy_csr, undirected
from difformer.errors import missing_extra

METRICS = ("cosine", "euclidean")
WEIGHTS = ("uniform", "similarity")
LEAST_WEIGHT = 1e-6  # above 0, so that no edge disappears

# Above this many rows the exact search, O(n² p), takes longer than building the index:
# 50,000 rows of 128 features take some 20 s on one core, a million would take two hours.
EXACT_UP_TO = 50_000

# Links per row and candidates looked at: 0.999 of the true neighbours found at 15,000 × 128.
HNSW_LINKS, HNSW_BUILD, HNSW_SEARCH = 32, 80, 128
SVD_FEATURES = 256


def nearest_neighbours(x: Tensor, k: int, *, metric: str = "cosine") -> Tensor:
    """Edges (2, n · k) from each row's k nearest other rows to the row itself.

    Not symmetrised: `Graph.from_edges(..., undirected=True)` does that. Up to `EXACT_UP_TO` rows
    the search is exact, O(n² p) time and O(n) memory; beyond that by an index (faiss HNSW),
    O(n log n · p), of dense features: sparse ones are first reduced to 256 columns by a truncated
    SVD.

    Args:
        x: (n, p), dense or sparse CSR.
        k: neighbours of each row, fewer than n.
        metric: "cosine" (a row of zeros is equally far from all) or "euclidean".
    """
    n = x.shape[0]
    if metric not in METRICS:
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {metric!r}")
    if not 1 <= k < n:
        raise ValueError(f"k must lie in 1 to {n - 1}, the other rows, got {k}")
    found = _exact(x, k, metric) if n <= EXACT_UP_TO else _index(x, k, metric)
    target = torch.arange(n).repeat_interleave(k)
    return torch.stack([torch.from_numpy(found).reshape(-1).long(), target])


def nearest_known(known: Any, queries: Any, k: int, *, metric: str = "cosine") -> Any:
    """The k rows of `known` nearest to each query, (m, k) int64, each row sorted by number.

    Exact, O(m n p). A query's answer does not depend on the other queries: candidates are found by
    matrix products, whose rounding may depend on them, and then measured again row by row.

    Args:
        known, queries: (n, p) and (m, p), arrays or SciPy sparse matrices.
    """
    from scipy.sparse import issparse
    from sklearn.neighbors import NearestNeighbors

    count = min(2 * k + 8, known.shape[0])
    search = NearestNeighbors(n_neighbors=count, metric=metric, algorithm="brute").fit(known)
    found = np.sort(search.kneighbors(queries, return_distance=False), axis=1)
    chosen = np.empty((queries.shape[0], k), np.int64)
    for i in range(queries.shape[0]):
        a, b = queries[i], known[found[i]]
        a, b = (a.toarray(), b.toarray()) if issparse(a) else (a[None], b)
        a, b = a.astype(np.float64), b.astype(np.float64)
        if metric == "cosine":
            norm = np.sqrt((b * b).sum(1)) * np.sqrt((a * a).sum())
            distance = -(a * b).sum(1) / np.maximum(norm, np.finfo(np.float64).tiny)
        else:
            distance = ((a - b) ** 2).sum(1)
        chosen[i] = np.sort(found[i][np.argsort(distance, kind="stable")[:k]])
    return chosen


def neighbour_graph(
    x: Tensor, k: int, *, metric: str = "cosine", mutual: bool = False, weights: str = "uniform"
) -> tuple[Tensor, Tensor | None]:
    """Edges (2, e) between each row and its k nearest, both directions, and their weights (e,).

    Args:
        mutual: keep only pairs in which each is among the other's nearest; else one direction is
            enough.
        weights: "uniform" (None), or "similarity": the cosine, cut off at 0, or for euclidean
            e^(−d² / 2σ²) with σ² the mean of d² over the pairs.
    """
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    n = x.shape[0]
    pairs = nearest_neighbours(x, k, metric=metric)
    if mutual:
        key = torch.minimum(pairs[0], pairs[1]) * n + torch.maximum(pairs[0], pairs[1])
        key, often = torch.unique(key, return_counts=True)
        pairs = torch.stack([key // n, key % n])[:, often > 1]
    edges = undirected(pairs.T.numpy(), n)
    return edges, None if weights == "uniform" else _similarity(x, edges, metric)


def neighbour_edges(x: Tensor, k: int) -> Tensor | None:
    """Edges (2, e) of each row and its k nearest by cosine, both directions; None for k = 0."""
    return None if k == 0 else neighbour_graph(x, k)[0]


def _similarity(x: Tensor, edges: Tensor, metric: str) -> Tensor:
    """The similarity of the two ends of each edge, in (0, 1]; O(e p) for dense rows."""
    from sklearn.metrics.pairwise import paired_cosine_distances, paired_euclidean_distances

    rows = _rows(x)
    far = paired_cosine_distances if metric == "cosine" else paired_euclidean_distances
    distance = np.asarray(far(rows[edges[0].numpy()], rows[edges[1].numpy()]), np.float64)
    if metric == "cosine":
        near = 1 - distance
    else:
        near = np.exp(-(distance**2) / max(2 * np.mean(distance**2), 1e-300))
    return torch.from_numpy(np.clip(near, LEAST_WEIGHT, 1.0)).to(x.dtype)


def _exact(x: Tensor, k: int, metric: str) -> np.ndarray[Any, Any]:
    from sklearn.neighbors import NearestNeighbors

    search = NearestNeighbors(n_neighbors=k, metric=metric, algorithm="brute").fit(_rows(x))
    # Without an argument a row is not its own neighbour, even where rows are equal.
    return search.kneighbors(return_distance=False)


def _index(x: Tensor, k: int, metric: str) -> np.ndarray[Any, Any]:
    try:
        import faiss
    except ImportError as error:
        raise missing_extra(f"a graph of the nearest of {x.shape[0]:,} rows", "knn") from error
    rows = _rows(x)
    if not isinstance(rows, np.ndarray):
        from sklearn.decomposition import TruncatedSVD

        width = min(SVD_FEATURES, rows.shape[1] - 1)
        rows = TruncatedSVD(width, random_state=0).fit_transform(rows)
    features = np.ascontiguousarray(rows, dtype=np.float32)
    if metric == "cosine":
        # On unit rows, angle and distance give the same order.
        norm = np.linalg.norm(features, axis=1, keepdims=True)
        features = features / np.maximum(norm, np.finfo(np.float32).tiny)
    index: Any = faiss.IndexHNSWFlat(features.shape[1], HNSW_LINKS)
    index.hnsw.efConstruction = HNSW_BUILD
    index.hnsw.efSearch = max(HNSW_SEARCH, 2 * k)
    index.add(features)
    _, found = index.search(features, k + 1)
    return _without_self(found, k)


def _without_self(found: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """The first k of each row's k + 1 results without the row; a miss (-1) becomes the nearest."""
    n = found.shape[0]
    other = (found != np.arange(n)[:, None]) & (found >= 0)
    order = np.argsort(~other, axis=1, kind="stable")[:, :k]
    kept = np.take_along_axis(found, order, axis=1)
    good = np.take_along_axis(other, order, axis=1)
    return np.where(good, kept, kept[:, :1])


def _rows(x: Tensor) -> Any:
    """Rows as scikit-learn takes them: an array, or a CSR matrix where they are sparse."""
    return x.detach().cpu().numpy() if x.layout == torch.strided else scipy_csr(x)

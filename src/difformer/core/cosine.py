"""Rows compared by cosine: unit rows, their products, and centres that stand for many of them."""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor
from torch.nn import functional as F

from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import chunk_rows, tiles

__all__ = ["landmark_sample", "make_landmarks", "score_rows", "unit_rows"]

# Rows sampled per landmark for k-means, and the most numbers it holds.
ROWS_PER_LANDMARK = 20
SAMPLE_NUMBERS = 2**26
LLOYD_STEPS = 10
SEED = 0


@overload
def unit_rows(x: Tensor) -> Tensor: ...
@overload
def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix: ...
def unit_rows(x: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Rows scaled to unit length; a zero row stays zero."""
    if isinstance(x, SparseMatrix):
        return x.unit_rows()
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny)


def score_rows(asking: Tensor | SparseMatrix, rows: Tensor | SparseMatrix) -> Tensor:
    """x_i·y_j (m, n), new, for some rows x (m, p) and rows y (n, p), both dense or both sparse."""
    if isinstance(rows, SparseMatrix):
        return (rows @ asking.to_dense().T).T.contiguous()
    return asking.to_dense() @ rows.T


def landmark_sample(n: int, p: int, count: int) -> Tensor:
    """The rows, of n with width p, that `make_landmarks` is given: sorted, always the same."""
    size = max(count, min(ROWS_PER_LANDMARK * count, SAMPLE_NUMBERS // max(1, p)))
    if n <= size:
        return torch.arange(n)
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:size].sort().values


@torch.no_grad()
def make_landmarks(rows: Tensor, count: int) -> Tensor:
    """At most `count` unit landmarks (m, p) for the rows (n, p), by k-means with cosine distance.

    Drawn by k-means++ with a separate generator, then moved by some of Lloyd's steps. With at most
    `count` rows, each row is a landmark.
    """
    unit = unit_rows(rows)
    unit = unit[unit.square().sum(-1) > 0]
    if unit.shape[0] == 0:
        return unit_rows(torch.ones_like(rows[:1]))
    if unit.shape[0] <= count:
        return unit
    generator = torch.Generator().manual_seed(SEED)
    chosen = [int(torch.randint(unit.shape[0], (1,), generator=generator))]
    gap = torch.full_like(unit[:, 0], math.inf)  # 1 − cosine to the nearest landmark
    for _ in range(count - 1):
        gap = torch.minimum(gap, (1 - unit @ unit[chosen[-1]]).clamp_min_(1e-12))
        at = torch.rand((), generator=generator, dtype=torch.float64).to(gap) * gap.sum()
        chosen.append(min(int(torch.searchsorted(gap.cumsum(0), at)), unit.shape[0] - 1))
    landmarks = unit[chosen]
    for _ in range(LLOYD_STEPS):
        parts = tiles(unit.shape[0], chunk_rows(count))
        nearest = torch.cat([(unit[part] @ landmarks.T).argmax(1) for part in parts])
        total = torch.zeros_like(landmarks).index_add_(0, nearest, unit)
        lost = total.square().sum(-1, keepdim=True) == 0
        landmarks = unit_rows(torch.where(lost, landmarks, total))
    return landmarks

"""The nearest rows by cosine without comparing all pairs: rows are grouped into cells.

About √n cells are found by clustering a sample; a row is compared with the rows of the cells whose
centres are nearest to it. O(n^1.5 p) time in all, and a neighbour is missed only where it lies in a
cell whose centre is far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from difformer.core.cosine import landmark_sample, make_landmarks, unit_rows
from difformer.core.sparse import SparseMatrix
from difformer.core.tiled import chunk_rows, tiles

__all__ = ["NearRows", "near_rows"]

# Cells whose rows a row is compared with.
PROBES = 24


@dataclass(frozen=True)
class NearRows:
    """For each row the rows found nearest to it, itself included, nearest first."""

    score: Tensor  # (n, k) cosines; -inf where fewer were found
    row: Tensor  # (n, k) int64
    cell: Tensor  # (n,) int64: the cell that each row lies in


@torch.no_grad()
def near_rows(rows: Tensor | SparseMatrix, k: int, probes: int = PROBES) -> NearRows:
    """The k nearest rows (n, p) of each by cosine, among those of the cells nearest to it.

    With as many probes as cells it is exact.
    """
    n = rows.shape[0]
    cells = max(1, round(math.sqrt(n)))
    centres = make_landmarks(rows[landmark_sample(n, rows.shape[1], cells)].to_dense(), cells)
    unit = unit_rows(rows)
    probes = min(probes, centres.shape[0])
    parts = tiles(n, chunk_rows(centres.shape[0]))
    near = torch.cat([(unit[part] @ centres.T).topk(probes, dim=1).indices for part in parts])
    members = _grouped(near[:, :1], centres.shape[0])
    values = unit.values if isinstance(unit, SparseMatrix) else unit
    score = values.new_full((n, k), -math.inf)
    found = torch.zeros(n, k, dtype=torch.int64, device=values.device)
    # First each row's own cell: it has most of the near rows, and of the others few are nearer.
    for asked in (near[:, :1], near[:, 1:]):
        for known, asks in zip(members, _grouped(asked, centres.shape[0]), strict=True):
            if known.numel() == 0:
                continue
            among = unit[known].to_dense().T.contiguous()
            for mine in asks.split(chunk_rows(known.numel())):
                scores = unit[mine].to_dense() @ among
                better = (scores.amax(1) > score[mine, -1]).nonzero().squeeze(1)
                mine = mine[better]
                best = scores[better].topk(min(k, known.numel()), dim=1)
                both = torch.cat([score[mine], best.values], dim=1)
                kept = both.topk(k, dim=1)
                rows_found = torch.cat([found[mine], known[best.indices]], dim=1)
                score[mine], found[mine] = kept.values, rows_found.gather(1, kept.indices)
    return NearRows(score, found, near[:, 0])


def _grouped(cells: Tensor, count: int) -> tuple[Tensor, ...]:
    """For each cell the rows of cells (n, c) that name it."""
    order = torch.argsort(cells.reshape(-1), stable=True)
    sizes = torch.bincount(cells.reshape(-1), minlength=count)
    return (order // cells.shape[1]).split(sizes.tolist())

"""Which columns of a table matter: the loss of a score when one of them is shuffled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy import sparse

from difformer.data.convert import scipy_csr
from difformer.data.dataset import Dataset
from difformer.estimators.rows import Rows
from difformer.experiments.own.run import OwnRun
from difformer.experiments.own.scores import HeldOut

__all__ = ["column_importance"]

MOST_ROWS = 400  # held-out rows that are answered again
MOST_COLUMNS = 60
REPEATS = 3
# The metric of each task, and 1 if a larger value is worse, else -1.
METRICS = {"multiclass": ("log_loss", 1), "multilabel": ("roc_auc", -1), "regression": ("rmse", 1)}


def column_importance(
    run: OwnRun, data: Dataset, kept: HeldOut, *, seed: int = 0
) -> tuple[str, list[tuple[str, float]]]:
    """(metric, [(column, how much worse the metric gets)]), the most important column first.

    Permutation importance: the cells of one column are exchanged between held-out labelled rows,
    which are then answered as new ones. O(columns × rows), of at most `MOST_ROWS` rows.
    """
    draw = np.random.default_rng(seed)
    pick = np.sort(draw.permutation(len(kept.rows))[:MOST_ROWS])
    some = replace(kept, rows=kept.rows[pick], truth=kept.truth[pick], found=kept.found[pick])
    x: Any = data.x.numpy() if data.x.layout == torch.strided else scipy_csr(data.x)
    features, graph = x[some.rows], _edges(run, some.rows)
    metric, sign = METRICS[kept.task]

    def loss(rows: Any) -> float:
        told = replace(some, found=run.outputs(Rows(rows, None), graph)).metrics()
        values = [v for k, v in told.items() if k.startswith(metric) and np.isfinite(v)]
        return sign * float(np.mean(values))

    usual, found, place = loss(features), list[tuple[str, float]](), 0
    for column in run.encoder.columns:
        block = slice(place, place + column.width)
        place += column.width
        if not column.width or len(found) >= MOST_COLUMNS:
            continue
        worse = [
            loss(_shuffled(features, block, draw.permutation(len(pick)))) for _ in range(REPEATS)
        ]
        found.append((column.name, float(np.mean(worse)) - usual))
    return metric, sorted(found, key=lambda pair: -pair[1])


def _shuffled(features: Any, block: slice, order: Any) -> Any:
    if not sparse.issparse(features):
        changed = features.copy()
        changed[:, block] = features[order, block]
        return changed
    left, right = features[:, : block.start], features[:, block.stop :]
    return sparse.hstack([left, features[order][:, block], right], format="csr")


def _edges(run: OwnRun, rows: Any) -> Any:
    """The edges of some rows of fit, as a new row would bring them; None if it finds its own."""
    model: Any = run.estimator
    graph = model.graph_
    if graph is None or model._neighbours is not None:
        return None
    index = graph.edge_index.numpy()
    place = np.full(len(run.ids), -1)
    place[rows] = np.arange(len(rows))
    mine = (place[index[1]] >= 0) & (index[0] != index[1])
    values = np.ones(index.shape[1]) if graph.edge_weight is None else graph.edge_weight.numpy()
    shape = (len(rows), len(run.ids))
    return sparse.csr_matrix((values[mine], (place[index[1][mine]], index[0][mine])), shape)

"""Two classes: the ROC curve, precision against recall, and the effect of each threshold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from difformer.report.blocks import COLOURS, Plot, Table, number, plain, rounded

__all__ = ["at_thresholds", "roc_blocks"]

MOST_POINTS = 300
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)

Array = NDArray[Any]


def roc_blocks(truth: Array, chance: Array, name: str) -> list[Any]:
    """Curves of one class by its probability, and a table of thresholds; none for one class."""
    from sklearn.metrics import (
        average_precision_score,
        precision_recall_curve,
        roc_auc_score,
        roc_curve,
    )

    positive = int(truth.sum())
    if positive in (0, len(truth)):
        return []
    alarm, recall, _ = roc_curve(truth, chance, drop_intermediate=False)
    precision, found, _ = precision_recall_curve(truth, chance)
    area, average = roc_auc_score(truth, chance), average_precision_score(truth, chance)
    pick = np.unique(np.linspace(0, len(recall) - 1, MOST_POINTS).astype(int))
    roc = _curve(
        "roc",
        (alarm[pick], recall[pick]),
        ("share of others taken for it", f"share of {name} found"),
        f"ROC curve of {name}: area {number(area, 3)}; 0.5 is chance.",
        ([0, 1], [0, 1]),
    )
    usual = positive / len(truth)
    pick = np.unique(np.linspace(0, len(found) - 2, MOST_POINTS).astype(int))
    pr = _curve(
        "pr",
        (found[pick][::-1], precision[pick][::-1]),  # without the end that no threshold reaches
        (f"share of {name} found (recall)", "share that is right (precision)"),
        f"Precision and recall of {name}: average precision {number(average, 3)}; chance is "
        f"{number(usual, 3)}.",
        ([0, 1], [usual, usual]),
    )
    rows = [
        [f"{t:g}", number(int(k)), *(f"{v:.3f}" if v == v else "–" for v in figures)]
        for t, k, *figures in at_thresholds(truth, chance)
    ]
    header = ["from probability", f"taken for {name}", "precision", "recall", "accuracy"]
    return [roc, pr, Table(f"What a threshold on the probability of {name} does.", header, rows)]


def at_thresholds(truth: Array, chance: Array) -> list[tuple[float, int, float, float, float]]:
    """(threshold, rows taken, precision, recall, accuracy) for each threshold."""
    found: list[tuple[float, int, float, float, float]] = []
    for threshold in THRESHOLDS:
        taken = chance >= threshold
        hit, count = int((taken & (truth == 1)).sum()), int(taken.sum())
        precision = hit / count if count else float("nan")
        accuracy = float((taken == (truth == 1)).mean())
        found.append((threshold, count, precision, hit / int(truth.sum()), accuracy))
    return found


def _curve(
    name: str, points: tuple[Array, Array], axes: tuple[str, str], caption: str, chance: Any
) -> Plot:
    x, y = points
    line = {"color": "#777777", "dash": "dash"}
    return Plot(
        name=name,
        caption=caption,
        alt=f"Line plot. {caption}",
        data=[
            {"type": "scatter", "mode": "lines", "x": chance[0], "y": chance[1], "name": "chance"}
            | {"line": line},
            {"type": "scatter", "mode": "lines", "x": rounded(x), "y": rounded(y)}
            | {"name": "the model", "line": {"color": COLOURS[0], "shape": "hv"}},
        ],
        layout={
            "xaxis": {"title": {"text": plain(axes[0])}, "range": [0, 1.01]},
            "yaxis": {"title": {"text": plain(axes[1])}, "range": [0, 1.02]},
        },
    )

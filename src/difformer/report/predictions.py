"""What the model predicts against what is true: confusion, ROC, calibration, residuals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from difformer.blocks import (
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    digits_for,
    first_few,
    guide,
    number,
    rounded,
    scatter,
)
from difformer.files import counted
from difformer.runs.open import LoadedRun
from difformer.train.objective import calibration

MOST_CLASSES = 30  # a larger matrix is a list of its largest confusions
MOST_SCATTER = 5000
MOST_THRESHOLDS = 300  # of a curve
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of a table
SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of the residuals, in a table

Array = NDArray[Any]


def prediction_section(run: LoadedRun) -> Section:
    """The test rows of a run, or its validation rows, against their labels."""
    y, rows, part = run.dataset.y, run.split.test, "test"
    if rows.numel() == 0:
        rows, part = run.split.val, "validation"
    task, blocks = run.dataset.task, list[Any]()
    if rows.numel() == 0:
        blocks.append(Note("The split has neither test nor validation rows.", missing=True))
    elif task == "regression":
        blocks.append(regression_blocks(run.output[rows], y[rows], part)[0])
    elif task == "multilabel":
        y = y.reshape(run.dataset.num_rows, -1)
        blocks += class_blocks(run.output[rows].sigmoid(), y[rows], (), part)
    elif not bool((y[rows] >= 0).any()):
        blocks.append(Note(f"No {part} row has a known class.", missing=True))
    else:
        rows = rows[y[rows] >= 0]
        blocks += class_blocks(
            run.output[rows].softmax(-1), y[rows], run.class_names, part, roc=False
        )
    return Section("predictions", "Predictions", blocks)


def class_blocks(
    chance: Tensor, y: Tensor, names: Sequence[str], part: str, *, roc: bool = True
) -> list[Any]:
    """Confusion and curves of classes (n,), calibration also of yes-or-no labels (n, c)."""
    blocks: list[Any] = []
    if y.ndim == 1:
        blocks += confusion_blocks(chance, y, list(names), part)
        if roc and len(names) == 2:
            blocks += roc_blocks(y.numpy(), chance[:, 1].numpy(), names[1])
    return [*blocks, calibration_block(chance, y, part)]


def confusion_blocks(output: Tensor, y: Tensor, names: list[str], part: str) -> list[Any]:
    """The confusion matrix as a shaded table, with recall and precision; words for the rest.

    Args:
        output: (n, c) probabilities or logits.
        y: (n,) classes.
    """
    from sklearn.metrics import confusion_matrix

    c = len(names)
    counts: Any = confusion_matrix(y.numpy(), output.argmax(1).numpy(), labels=list(range(c)))
    total, guessed, hit = counts.sum(1), counts.sum(0), counts.diagonal()
    wrong = counts - np.diag(hit)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CLASSES].tolist()
    pairs = [(names[i // c], names[i % c], n) for i in order if (n := int(wrong.flat[i]))]
    words = ", ".join(f"{a} taken for {b} ({n:,})" for a, b, n in pairs[:5])
    text = f"The most frequent confusions: {words}." if words else "No row is predicted wrong."
    notes = [Note(text)]
    empty = [name for name, rows in zip(names, total, strict=True) if not rows]
    if empty:
        notes.append(Note(f"Classes without a {part} row: {first_few(empty, 10)}."))
    if c > MOST_CLASSES:
        caption = f"The largest confusions among {c} classes, {part} rows."
        cells = [[a, b, number(n)] for a, b, n in pairs]
        return [Table(caption, ["class", "taken for", "rows"], cells), *notes]
    cells = [
        [name, *map(number, [*row, rows]), _share(right, rows), _share(right, taken)]
        for name, row, rows, taken, right in zip(
            names, counts.tolist(), total.tolist(), guessed.tolist(), hit.tolist(), strict=True
        )
    ]
    shades = np.pad(counts / np.maximum(1, total)[:, None], ((0, 0), (0, 3))).tolist()
    caption = f"Confusion matrix of the {part} rows: the true class down, the predicted one across."
    header = ["class", *names, "rows", "recall", "precision"]
    return [Table(caption, header, cells, shades), *notes]


def roc_blocks(truth: Array, chance: Array, name: str) -> list[Any]:
    """Curves of one class by its probability, and a table of thresholds; none for one class."""
    from sklearn import metrics

    positive = int(truth.sum())
    if positive in (0, len(truth)):
        return []
    alarm, recall, _ = metrics.roc_curve(truth, chance, drop_intermediate=False)
    precision, found, _ = metrics.precision_recall_curve(truth, chance)
    area = number(metrics.roc_auc_score(truth, chance), 3)
    average = number(metrics.average_precision_score(truth, chance), 3)
    usual = positive / len(truth)
    caption = f"ROC curve of {name}: area {area}; 0.5 is chance."
    titles = "share of others taken for it", f"share of {name} found"
    roc = _rates("roc", (alarm, recall), titles, caption, [0, 1])
    caption = f"Precision and recall of {name}: average precision {average}; chance is "
    titles = f"share of {name} found (recall)", "share that is right (precision)"
    # Without the end that no threshold reaches.
    ends = found[-2::-1], precision[-2::-1]
    pr = _rates("pr", ends, titles, f"{caption}{number(usual, 3)}.", [usual, usual])
    rows: list[list[str]] = []
    for threshold in THRESHOLDS:
        taken = chance >= threshold
        count, hit, right = int(taken.sum()), int(truth[taken].sum()), int((taken == truth).sum())
        shares = (_share(hit, count), _share(hit, positive), _share(right, len(truth)))
        rows.append([f"{threshold:g}", number(count), *shares])
    header = ["from probability", f"taken for {name}", "precision", "recall", "accuracy"]
    return [roc, pr, Table(f"What a threshold on the probability of {name} does.", header, rows)]


def _rates(
    name: str,
    points: tuple[Array, Array],
    titles: tuple[str, str],
    caption: str,
    chance: list[float],
) -> Plot:
    """One share against another, at no more than 300 thresholds, beside that of chance."""
    pick = np.unique(np.linspace(0, len(points[0]) - 1, MOST_THRESHOLDS).astype(int))
    x, y = (rounded(share[pick]) for share in points)
    line = {"color": colour(0), "shape": "hv"}
    data = [guide([0, 1], chance, "chance"), scatter(x, y, name="the model", line=line)]
    across, up = axis(titles[0], range=[0, 1.01]), axis(titles[1], range=[0, 1.02])
    return Plot(name, caption, f"Line plot. {caption}", data, {"xaxis": across, "yaxis": up})


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"


def calibration_block(probability: Tensor, y: Tensor, part: str) -> Plot:
    """Reliability diagram: is the model right as often as it says? O(n).

    With one class per row the confidence is that of the predicted class; with yes-or-no labels it
    is the probability of yes, over all known labels.
    """
    if y.ndim == 1:
        what, (confidence, guess) = "confidence", probability.max(1)
        right = (guess == y).double()
    else:
        what, known = "probability of yes", ~y.isnan()
        confidence, right = probability[known], y[known].double()
    bins, error = calibration(confidence, right)
    said, share, rows = bins.T.tolist()
    line = scatter(
        rounded(said),
        rounded(share),
        "lines+markers",
        name="the model",
        line={"color": colour(0)},
        marker={"size": [6 + 18 * (n / max(rows)) ** 0.5 for n in rows]},
        text=[counted(int(n), "row") for n in rows],
        hovertemplate="says %{x:.2f}, right %{y:.2f} (%{text})<extra></extra>",
    )
    over = float((confidence.double() - right).nan_to_num().mean()) if rows else 0.0
    lean = "over-confident" if over > 0.02 else "under-confident"
    lean = lean if abs(over) > 0.02 else "well balanced"
    caption = (
        f"Calibration on the {part} rows: expected calibration error {number(error, 3)}; "
        f"on the whole {lean}. Larger points have more rows."
    )
    alt = (
        f"Reliability diagram of {len(bins)} bins: share right against {what}. "
        f"Expected calibration error {number(error, 3)}, {lean}."
    )
    across, up = axis(what, range=[0, 1.02]), axis("share right", range=[0, 1.02])
    cells = [[number(a, 3), number(b, 3), number(int(n))] for a, b, n in bins.tolist()]
    table = Table("Calibration, by bin of confidence.", [what, "share right", "rows"], cells)
    data = [guide([0, 1], [0, 1], "perfectly calibrated"), line]
    return Plot("calibration", caption, alt, data, {"xaxis": across, "yaxis": up}, table)


def regression_blocks(output: Tensor, y: Tensor, part: str, name: str = "") -> list[Plot]:
    """Predicted against true values and the errors of predictions, of at most 5,000 points."""
    truth, guess = y.flatten().double(), output.flatten().double()
    known = (~truth.isnan()).nonzero().squeeze(1)
    part = f"{part} rows"
    if known.numel() > MOST_SCATTER:
        part = f"{part} ({MOST_SCATTER:,} of {known.numel():,} sampled)"
        keep = torch.randperm(known.numel(), generator=torch.Generator().manual_seed(0))
        known = known[keep[:MOST_SCATTER]]
    truth, guess = truth[known], guess[known]
    error, of, end = guess - truth, f" of {name}" if name else "", f"-{name}" if name else ""
    words, mean = "no value is known", "–"
    fifths, shares = list[list[str]](), list[list[str]]()
    if truth.numel():
        words, mean = _errors(truth, guess), number(float(error.mean()), 3)
        digits = digits_for(truth, 3)
        edges = truth.quantile(torch.linspace(0, 1, 6, dtype=truth.dtype)).tolist()
        for low, high in pairwise(edges):
            fifth = float(guess[(truth >= low) & (truth <= high)].mean())
            low, high, fifth = (number(v, digits) for v in (low, high, fifth))
            fifths.append([f"{low} to {high}", fifth])
        shares = [[f"{100 * q:g} %", number(float(error.quantile(q)))] for q in SHARES]
    predicted, true = axis(f"predicted {name}".strip()), axis(f"true {name}".strip())
    ends, span = _ends(truth), _ends(guess)
    return [
        Plot(
            f"predicted{end}",
            f"Predicted against true values{of}, {part}; {words}.",
            f"Scatter plot of predicted against true values{of}; {words}.",
            [guide(ends, ends, "perfect"), _points(truth, guess)],
            {"xaxis": true, "yaxis": predicted},
            Table("Mean prediction by fifth of the true values.", ["true", "predicted"], fifths),
        ),
        Plot(
            f"residuals{end}",
            f"Residuals{of} (predicted − true), {part}; their mean is {mean}.",
            f"Scatter plot of residuals{of} against predictions; their mean is {mean}.",
            [guide(span, [0.0, 0.0], "no error"), _points(guess, error)],
            {"xaxis": predicted, "yaxis": axis("predicted − true")},
            Table("Of the residuals, this share is at most", ["share", "residual"], shares),
        ),
    ]


def _ends(values: Tensor) -> list[float]:
    return [float(values.min()), float(values.max())] if values.numel() else [0.0, 1.0]


def _errors(truth: Tensor, guess: Tensor) -> str:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    pair: Any = truth.numpy(), guess.numpy()
    fit = number(float(r2_score(*pair)), 3) if truth.std(correction=0) > 0 else "–"
    root, size = number(root_mean_squared_error(*pair)), number(mean_absolute_error(*pair))
    return f"R² {fit}, mean absolute error {size}, root mean squared error {root}"


def _points(x: Tensor, y: Tensor) -> dict[str, Any]:
    marker = {"color": colour(0), "opacity": 0.5, "size": 5}
    return scatter(rounded(x), rounded(y), "markers", name="rows", marker=marker)

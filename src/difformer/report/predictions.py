"""What the model predicts against what is true: confusion, ROC, calibration, residuals."""

from __future__ import annotations

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
from difformer.metrics import calibration as calibration_bins
from difformer.runs.open import LoadedRun

MOST_CLASSES = 30  # a larger matrix is a list of its largest confusions
MOST_SCATTER = 5000
MOST_THRESHOLDS = 300  # of a curve
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of a table

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
        blocks.append(regression_block(run.output[rows], y[rows], part))
    elif task == "multilabel":
        y = y.reshape(run.dataset.num_rows, -1)
        blocks.append(calibration_block(run.output[rows].sigmoid(), y[rows], part))
    elif not bool((y[rows] >= 0).any()):
        blocks.append(Note(f"No {part} row has a known class.", missing=True))
    else:
        rows = rows[y[rows] >= 0]
        chance = run.output[rows].softmax(-1)
        blocks += confusion_blocks(chance, y[rows], run.class_names, part)
        blocks.append(calibration_block(chance, y[rows], part))
    return Section("predictions", "Predictions", blocks)


def confusion_blocks(output: Tensor, y: Tensor, names: list[str], part: str) -> list[Any]:
    """The confusion matrix as a shaded table, with recall and precision; words for the rest.

    Args:
        output: (n, c) probabilities or logits.
        y: (n,) classes.
    """
    from sklearn.metrics import confusion_matrix

    c = len(names)
    counts: Any = confusion_matrix(y.numpy(), output.argmax(1).numpy(), labels=list(range(c)))
    total, guessed, hit = counts.sum(1).tolist(), counts.sum(0).tolist(), counts.diagonal().tolist()
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable").tolist()
    pairs = [(names[i // c], names[i % c], int(wrong.flat[i])) for i in order[:MOST_CLASSES]]
    pairs = [pair for pair in pairs if pair[2]]
    words = ", ".join(f"{a} taken for {b} ({n:,})" for a, b, n in pairs[:5])
    notes = [
        Note(f"The most frequent confusions: {words}." if words else "No row is predicted wrong.")
    ]
    empty = [name for name, rows in zip(names, total, strict=True) if not rows]
    if empty:
        notes.append(Note(f"Classes without a {part} row: {first_few(empty, 10)}."))
    if c > MOST_CLASSES:
        caption = f"The largest confusions among {c} classes, {part} rows."
        cells = [[a, b, number(n)] for a, b, n in pairs]
        return [Table(caption, ["class", "taken for", "rows"], cells), *notes]
    header = ["class", *names, "rows", "recall", "precision"]
    cells = [
        [
            names[a],
            *map(number, counts[a].tolist()),
            number(total[a]),
            _share(hit[a], total[a]),
            _share(hit[a], guessed[a]),
        ]
        for a in range(c)
    ]
    shades = [[*(counts[a] / max(1, total[a])).tolist(), 0.0, 0.0, 0.0] for a in range(c)]
    caption = f"Confusion matrix of the {part} rows: the true class down, the predicted one across."
    return [Table(caption, header, cells, shades), *notes]


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
    roc = _rates(
        "roc",
        (alarm, recall),
        ("share of others taken for it", f"share of {name} found"),
        f"ROC curve of {name}: area {number(area, 3)}; 0.5 is chance.",
        [0, 1],
    )
    usual = positive / len(truth)
    pr = _rates(
        "pr",
        (found[-2::-1], precision[-2::-1]),  # without the end that no threshold reaches
        (f"share of {name} found (recall)", "share that is right (precision)"),
        f"Precision and recall of {name}: average precision {number(average, 3)}; chance is "
        f"{number(usual, 3)}.",
        [usual, usual],
    )
    rows = [
        [f"{t:g}", number(int(k)), *(f"{v:.3f}" if v == v else "–" for v in figures)]
        for t, k, *figures in at_thresholds(truth, chance)
    ]
    header = ["from probability", f"taken for {name}", "precision", "recall", "accuracy"]
    return [roc, pr, Table(f"What a threshold on the probability of {name} does.", header, rows)]


def at_thresholds(truth: Array, chance: Array) -> list[tuple[float, int, float, float, float]]:
    """(threshold, rows taken, precision, recall, accuracy) for each threshold."""
    from sklearn.metrics import accuracy_score, precision_score, recall_score

    found: list[tuple[float, int, float, float, float]] = []
    for threshold in THRESHOLDS:
        taken = (chance >= threshold).astype(int)
        right: Any = precision_score(truth, taken, zero_division=np.nan)  # type: ignore[arg-type]
        rates = float(right), float(recall_score(truth, taken)), accuracy_score(truth, taken)
        found.append((threshold, int(taken.sum()), *rates))
    return found


def _rates(
    name: str,
    points: tuple[Array, Array],
    titles: tuple[str, str],
    caption: str,
    chance: list[float],
) -> Plot:
    """One share against another, at no more than 300 thresholds, beside that of chance."""
    count = len(points[0])
    pick = np.unique(np.linspace(0, count - 1, MOST_THRESHOLDS).astype(int))
    x, y = (rounded(share[pick]) for share in points)
    line = {"color": colour(0), "shape": "hv"}
    return Plot(
        name=name,
        caption=caption,
        alt=f"Line plot. {caption}",
        data=[guide([0, 1], chance, "chance"), scatter(x, y, name="the model", line=line)],
        layout={
            "xaxis": axis(titles[0], range=[0, 1.01]),
            "yaxis": axis(titles[1], range=[0, 1.02]),
        },
    )


def calibration(probability: Tensor, y: Tensor) -> tuple[list[list[float]], float]:
    """(mean confidence, share right, rows) of each filled bin, and the expected error. O(n).

    With one class per row the confidence is that of the predicted class; with yes-or-no labels it
    is the probability of yes, over all known labels.
    """
    if y.ndim == 1:
        confidence, guess = probability.max(1)
        right = (guess == y).double()
    else:
        known = ~y.isnan()
        confidence, right = probability[known], y[known].double()
    bins, error = calibration_bins(confidence, right)
    return bins.tolist(), error


def calibration_block(probability: Tensor, y: Tensor, part: str) -> Plot:
    """Reliability diagram: is the model right as often as it says?"""
    bins, error = calibration(probability, y)
    what = "confidence" if y.ndim == 1 else "probability of yes"
    most = max((b[2] for b in bins), default=1.0)
    said = scatter(
        rounded(b[0] for b in bins),
        rounded(b[1] for b in bins),
        "lines+markers",
        name="the model",
        line={"color": colour(0)},
        marker={"size": [6 + 18 * (b[2] / most) ** 0.5 for b in bins]},
        text=[counted(int(b[2]), "row") for b in bins],
        hovertemplate="says %{x:.2f}, right %{y:.2f} (%{text})<extra></extra>",
    )
    mean = sum((b[0] - b[1]) * b[2] for b in bins) / max(1.0, sum(b[2] for b in bins))
    lean = (
        "over-confident" if mean > 0.02 else "under-confident" if mean < -0.02 else "well balanced"
    )
    return Plot(
        name="calibration",
        caption=f"Calibration on the {part} rows: expected calibration error {number(error, 3)}; "
        f"on the whole {lean}. Larger points have more rows.",
        alt=f"Reliability diagram of {len(bins)} bins: share right against {what}. "
        f"Expected calibration error {number(error, 3)}, {lean}.",
        data=[guide([0, 1], [0, 1], "perfectly calibrated"), said],
        layout={
            "xaxis": axis(what, range=[0, 1.02]),
            "yaxis": axis("share right", range=[0, 1.02]),
        },
        table=Table(
            "Calibration, by bin of confidence.",
            [what, "share right", "rows"],
            [[number(b[0], 3), number(b[1], 3), number(int(b[2]))] for b in bins],
        ),
    )


def regression_block(output: Tensor, y: Tensor, part: str, *, name: str = "") -> Plot:
    """Predicted against true values, of at most 5,000 points."""
    truth, guess, sampled = _pairs(output, y)
    ends = [float(truth.min()), float(truth.max())] if truth.numel() else [0.0, 1.0]
    words = _errors(truth, guess)
    quantiles = torch.linspace(0, 1, 6, dtype=truth.dtype)
    cells: list[list[str]] = []
    if truth.numel():
        digits = digits_for(truth, 3)
        edges = truth.quantile(quantiles)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            inside = (truth >= low) & (truth <= high)
            mean = float(guess[inside].mean())
            low, high, mean = (number(v, digits) for v in (low, high, mean))
            cells.append([f"{low} to {high}", mean])
    of = f" of {name}" if name else ""
    return Plot(
        name=f"predicted{name and '-' + name}",
        caption=f"Predicted against true values{of}, {part} rows{sampled}; {words}.",
        alt=f"Scatter plot of predicted against true values{of}; {words}.",
        data=[guide(ends, ends, "perfect"), _points(truth, guess)],
        layout={"xaxis": axis(f"true {name}".strip()), "yaxis": axis(f"predicted {name}".strip())},
        table=Table("Mean prediction by fifth of the true values.", ["true", "predicted"], cells),
    )


def residual_block(output: Tensor, y: Tensor, part: str, *, name: str = "") -> Plot:
    """The error (predicted − true) against the prediction; a good fit shows no pattern."""
    truth, guess, sampled = _pairs(output, y)
    error = guess - truth
    ends = [float(guess.min()), float(guess.max())] if guess.numel() else [0.0, 1.0]
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    cells = [
        [f"{100 * share:g} %", number(float(error.quantile(share)))]
        for share in shares
        if error.numel()
    ]
    of = f" of {name}" if name else ""
    mean = number(float(error.mean()), 3) if error.numel() else "–"
    return Plot(
        name=f"residuals{name and '-' + name}",
        caption=f"Residuals{of} (predicted − true), {part} rows{sampled}; their mean is {mean}.",
        alt=f"Scatter plot of residuals{of} against predictions; their mean is {mean}.",
        data=[guide(ends, [0.0, 0.0], "no error"), _points(guess, error)],
        layout={"xaxis": axis(f"predicted {name}".strip()), "yaxis": axis("predicted − true")},
        table=Table("Of the residuals, this share is at most", ["share", "residual"], cells),
    )


def _pairs(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor, str]:
    """True and predicted values of at most `MOST_SCATTER` known targets, and how many were left."""
    truth, guess = y.flatten().double(), output.flatten().double()
    known = ~truth.isnan()
    truth, guess = truth[known], guess[known]
    total = truth.numel()
    if total <= MOST_SCATTER:
        return truth, guess, ""
    keep = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:MOST_SCATTER]
    return truth[keep], guess[keep], f" ({MOST_SCATTER:,} of {total:,} sampled)"


def _errors(truth: Tensor, guess: Tensor) -> str:
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    if not truth.numel():
        return "no value is known"
    pair: Any = truth.numpy(), guess.numpy()
    fit = number(float(r2_score(*pair)), 3) if truth.std(correction=0) > 0 else "–"
    root, size = number(root_mean_squared_error(*pair)), number(mean_absolute_error(*pair))
    return f"R² {fit}, mean absolute error {size}, root mean squared error {root}"


def _points(x: Tensor, y: Tensor) -> dict[str, Any]:
    marker = {"color": colour(0), "opacity": 0.5, "size": 5}
    return scatter(rounded(x), rounded(y), "markers", name="rows", marker=marker)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"

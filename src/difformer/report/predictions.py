"""What the model predicts against what is true: confusion, calibration, scatter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from difformer.report.blocks import COLOURS, Note, Plot, Table, number, plain, rounded
from difformer.train.metrics import calibration as calibration_bins

__all__ = [
    "calibration",
    "calibration_block",
    "confusion",
    "confusion_blocks",
    "regression_block",
    "residual_block",
]

MOST_CLASSES = 30  # a larger matrix is a list of its largest confusions
MOST_SCATTER = 5000


def confusion(output: Tensor, y: Tensor, rows: Tensor, classes: int) -> Tensor:
    """counts[a, b]: rows of class a taken for b; (c, c) int64."""
    pairs = y[rows] * classes + output[rows].argmax(1)
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def confusion_blocks(
    output: Tensor, y: Tensor, rows: Tensor, names: list[str], part: str
) -> list[Any]:
    """The confusion matrix as a shaded table, with recall and precision; words for the rest."""
    c = len(names)
    counts = confusion(output, y, rows, c)
    total, guessed, hit = counts.sum(1), counts.sum(0), counts.diagonal()
    off = counts.clone()
    off.fill_diagonal_(0)
    worst = off.flatten().argsort(descending=True)[:5].tolist()
    found = [(names[i // c], names[i % c], int(off.flatten()[i])) for i in worst]
    found = [item for item in found if item[2]]
    words = ", ".join(f"{a} taken for {b} ({n:,})" for a, b, n in found)
    notes = [Note(f"The most frequent confusions: {words}." if words else "No row is confused.")]
    empty = [names[i] for i in range(c) if int(total[i]) == 0]
    if empty:
        shown = ", ".join(empty[:10]) + (" and others" if len(empty) > 10 else "")
        notes.append(Note(f"Without a {part} row: {shown}."))
    if c > MOST_CLASSES:
        listed = off.flatten().argsort(descending=True)[:MOST_CLASSES].tolist()
        cells = [
            [names[i // c], names[i % c], number(int(off.flatten()[i]))]
            for i in listed
            if int(off.flatten()[i])
        ]
        caption = f"The largest confusions among {c} classes, {part} rows."
        return [Table(caption, ["class", "taken for", "rows"], cells), *notes]
    header = ["class", *names, "rows", "recall", "precision"]
    cells = [
        [
            names[a],
            *(number(v) for v in counts[a].tolist()),
            number(int(total[a])),
            _share(int(hit[a]), int(total[a])),
            _share(int(hit[a]), int(guessed[a])),
        ]
        for a in range(c)
    ]
    shades = [
        [*(v / max(1, int(total[a])) for v in counts[a].tolist()), 0.0, 0.0, 0.0] for a in range(c)
    ]
    caption = f"Confusion matrix of the {part} rows: the true class down, the predicted one across."
    return [Table(caption, header, cells, shades), *notes]


def calibration(probability: Tensor, y: Tensor, rows: Tensor) -> tuple[list[list[float]], float]:
    """(mean confidence, share right, rows) of each filled bin, and the expected error. O(n).

    With one class per row the confidence is that of the predicted class; with yes-or-no labels it
    is the probability of yes, over all known labels.
    """
    if y.ndim == 1:
        confidence, guess = probability[rows].max(1)
        right = (guess == y[rows]).double()
    else:
        known = ~y[rows].isnan()
        confidence, right = probability[rows][known], y[rows][known].double()
    bins, error = calibration_bins(confidence, right)
    return bins.tolist(), error


def calibration_block(probability: Tensor, y: Tensor, rows: Tensor, part: str) -> Plot:
    """Reliability diagram: is the model right as often as it says?"""
    bins, error = calibration(probability, y, rows)
    what = "confidence" if y.ndim == 1 else "probability of yes"
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [0, 1],
            "y": [0, 1],
            "name": "perfectly calibrated",
            "line": {"color": "#777777", "dash": "dash"},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": rounded(b[0] for b in bins),
            "y": rounded(b[1] for b in bins),
            "name": "the model",
            "line": {"color": COLOURS[0]},
            "marker": {"size": [6 + 18 * (b[2] / max(x[2] for x in bins)) ** 0.5 for b in bins]},
            "text": [f"{int(b[2]):,} rows" for b in bins],
            "hovertemplate": "says %{x:.2f}, right %{y:.2f} (%{text})<extra></extra>",
        },
    ]
    mean = sum((b[0] - b[1]) * b[2] for b in bins) / max(1.0, sum(b[2] for b in bins))
    lean = (
        "over-confident" if mean > 0.02 else "under-confident" if mean < -0.02 else "well balanced"
    )
    return Plot(
        name="calibration",
        caption=f"Calibration on the {part} rows: expected calibration error {number(error, 3)}; "
        f"on the whole {lean}. A larger point is more rows.",
        alt=f"Reliability diagram of {len(bins)} bins: share right against {what}. "
        f"Expected calibration error {number(error, 3)}, {lean}.",
        data=data,
        layout={
            "xaxis": {"title": {"text": what}, "range": [0, 1.02]},
            "yaxis": {"title": {"text": "share right"}, "range": [0, 1.02]},
        },
        table=Table(
            "Calibration, by bin of confidence.",
            [what, "share right", "rows"],
            [[number(b[0], 3), number(b[1], 3), number(int(b[2]))] for b in bins],
        ),
    )


def regression_block(output: Tensor, y: Tensor, rows: Tensor, part: str, *, name: str = "") -> Plot:
    """Predicted against true values, of at most 5,000 points."""
    truth, guess, sampled = _pairs(output, y, rows)
    ends = [float(truth.min()), float(truth.max())] if truth.numel() else [0.0, 1.0]
    words = _errors(truth, guess)
    quantiles = torch.linspace(0, 1, 6, dtype=truth.dtype)
    cells: list[list[str]] = []
    if truth.numel():
        edges = truth.quantile(quantiles)
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            inside = (truth >= low) & (truth <= high)
            mean = float(guess[inside].mean())
            cells.append([f"{number(low, 3)} to {number(high, 3)}", number(mean, 3)])
    of = f" of {name}" if name else ""
    return Plot(
        name=f"predicted{name and '-' + name}",
        caption=f"Predicted against true values{of}, {part} rows{sampled}; {words}.",
        alt=f"Scatter plot of predicted against true values{of}; {words}.",
        data=[_line(ends, ends, "perfect"), _points(truth, guess)],
        layout={
            "xaxis": {"title": {"text": plain(f"true {name}".strip())}},
            "yaxis": {"title": {"text": plain(f"predicted {name}".strip())}},
        },
        table=Table("Mean prediction by fifth of the true values.", ["true", "predicted"], cells),
    )


def residual_block(output: Tensor, y: Tensor, rows: Tensor, part: str, *, name: str = "") -> Plot:
    """The error (predicted − true) against the prediction: no pattern, and nothing to mend."""
    truth, guess, sampled = _pairs(output, y, rows)
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
        data=[_line(ends, [0.0, 0.0], "no error"), _points(guess, error)],
        layout={
            "xaxis": {"title": {"text": plain(f"predicted {name}".strip())}},
            "yaxis": {"title": {"text": "predicted − true"}},
        },
        table=Table("Of the residuals, this share is at most", ["share", "residual"], cells),
    )


def _pairs(output: Tensor, y: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, str]:
    """True and predicted values of at most `MOST_SCATTER` known targets, and how many were left."""
    truth = y.reshape(y.shape[0], -1)[rows].flatten().double()
    guess = output.reshape(output.shape[0], -1)[rows].flatten().double()
    known = ~truth.isnan()
    truth, guess = truth[known], guess[known]
    total = truth.numel()
    if total <= MOST_SCATTER:
        return truth, guess, ""
    keep = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:MOST_SCATTER]
    return truth[keep], guess[keep], f" ({MOST_SCATTER:,} of {total:,} sampled)"


def _errors(truth: Tensor, guess: Tensor) -> str:
    if not truth.numel():
        return "no value is known"
    error = guess - truth
    spread = float((truth - truth.mean()).square().sum())
    fit = number(1 - float(error.square().sum()) / spread, 3) if spread > 0 else "–"
    root = number(float(error.square().mean().sqrt()))
    size = number(float(error.abs().mean()))
    return f"R² {fit}, mean absolute error {size}, root mean squared error {root}"


def _line(x: list[float], y: list[float], name: str) -> dict[str, Any]:
    line = {"color": "#777777", "dash": "dash"}
    ends = {"x": rounded(x), "y": rounded(y)}
    return {"type": "scatter", "mode": "lines", "name": name, "line": line, **ends}


def _points(x: Tensor, y: Tensor) -> dict[str, Any]:
    marker = {"color": COLOURS[0], "opacity": 0.5, "size": 5}
    places = {"x": rounded(x.tolist()), "y": rounded(y.tolist())}
    return {"type": "scatter", "mode": "markers", "name": "rows", "marker": marker, **places}


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"

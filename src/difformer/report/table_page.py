"""The sections of a run on a table: its quality, what was read, predictions, important columns.

They are for readers who do not know the paper; the model itself is folded below them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from difformer.blocks import (
    Finder,
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    digits_for,
    number,
    plain,
    rounded,
)
from difformer.data.dataset import Dataset
from difformer.files import counted
from difformer.jobs.own import OwnRun
from difformer.jobs.table import HeldOut, column_importance, labelled
from difformer.metrics import METRICS
from difformer.report.predictions import class_blocks, regression_blocks
from difformer.runs.open import LoadedRun
from difformer.train.folder import FitResult, Run

MOST_ROWS = 5000  # most rows on the page, those to predict first
MOST_CELLS = 60_000  # of these rows: the page stays below 3 MB
NEAR = 3  # rows named beside each of them
LEVEL = 0.9  # of the intervals and sets on the page
LEAST_SURE = 10
SKEWED = 0.75  # of the labels in one class: accuracy says little


def titles(run: Run) -> tuple[str, str]:
    """Such as 'price in houses.csv', and what was trained on and is predicted."""
    label = run.config.get("data", {}).get("label", "the label")
    named = label if isinstance(label, str) else ", ".join(label)
    result = _only(run).record
    known, rows = result.get("labelled", 0), result.get("rows", 0)
    return f"{named} in {run.config.get('dataset', run.folder.name)}", (
        f"A DIFFormer was trained on {known:,} labelled rows. It predicts the {rows - known:,} "
        "others, and new rows."
    )


def _only(run: Run) -> FitResult:
    """The one fit of a run on a table."""
    return next(iter(run.fits.values()))


def table_sections(run: Run, loaded: LoadedRun) -> list[Section]:
    """Everything above what is inside the model, as far as the run has something for it."""
    own, data, result = loaded.own, loaded.table, _only(run).record
    assert own is not None
    assert data is not None
    kept = HeldOut.of(own, data)
    return [
        Section("result", "How good it is", result_blocks(result)),
        Section("read", "What was read", _read(own, data)),
        Section("rows", "Predictions", _rows(own, data, kept)),
        Section("quality", "Where it is right and wrong", _quality(own, kept) if kept else []),
        Section("columns", "Which columns matter", _importance(own, data, kept) if kept else []),
        Section("tried", "What was tried", _tried(result)),
    ]


def _title(name: str) -> str:
    """'mae_price' as 'mean absolute error of price'."""
    for key, metric in METRICS.items():
        if name == key:
            return metric.title
        if name.startswith(f"{key}_"):
            return f"{metric.title} of {name.removeprefix(f'{key}_')}"
    return name.replace("_", " ")


def headline(result: Mapping[str, Any]) -> str:
    """One sentence: the score, its interval, on how many rows, and the score of a baseline."""
    told = result.get("held_out") or {}
    metrics, base = told.get("metrics") or {}, told.get("baseline") or {}
    if not metrics:
        return "No labelled row was held out, so it is not known how good the model is."
    name = next(iter(metrics))
    if base.get("accuracy", 0.0) >= SKEWED and "roc_auc" in metrics:
        name = "roc_auc"
    on = f"on {told['rows']:,} labelled rows held out"
    kind = next((key for key in ("r2", "roc_auc") if name.startswith(f"{key}_")), "none")
    others = [key for key in metrics if key.startswith(f"{kind}_")]
    if len(others) > 1:  # one for each of several labels
        each = ", ".join(f"{k.removeprefix(f'{kind}_')} {number(metrics[k], 3)}" for k in others)
        text = f"{METRICS[kind].title} {on}: {each}."
    else:
        low, high = told["intervals"][name]
        beside = f"; {number(base[name], 3)} without any column" if name in base else ""
        error = f" Mean absolute error {number(metrics['mae'], 3)}." if "mae" in metrics else ""
        interval = f"95 % interval {number(low, 3)} to {number(high, 3)}"
        text = f"{_title(name)} {number(metrics[name], 3)} ({interval}) {on}{beside}.{error}"
    return text[0].upper() + text[1:]


def result_blocks(result: Mapping[str, Any]) -> list[Any]:
    """How good the run is: in a sentence, every score, and beside simple methods."""
    told = result.get("held_out") or {}
    blocks: list[Any] = [Note(headline(result))]
    if not told:
        return blocks
    ours, base = told["metrics"], told["baseline"]
    most = base.get("accuracy", 0.0)
    if most >= SKEWED:
        text = (
            f"{100 * most:.0f} % of the labels are of one class, so accuracy says little: see "
            "the rarer classes under “Where it is right and wrong” on the page."
        )
        blocks.append(Note(text))
    rows: list[list[str]] = []
    for name, value in ours.items():
        ends = " to ".join(number(end, 3) for end in told["intervals"][name])
        rows.append([_title(name), number(value), ends, number(base.get(name))])
    header = ["", "DIFFormer", "95 % interval", "without any column"]
    units = ", in the units of the label" if result.get("task") == "regression" else ""
    what = f"Scores of the labelled rows that were held out{units}."
    blocks.append(Table(what, header, rows))
    peers = result.get("peers")
    if peers:
        metric = peers[0]["metric"]
        scores = [(p["title"], p["value"]) for p in peers]
        scores += [("DIFFormer (this run)", ours[metric])] if metric in ours else []
        scores.sort(key=lambda pair: pair[1], reverse=METRICS[metric].better > 0)
        caption = "Compared with simple methods on held-out labels of the same table, best first."
        lines = [[title, number(value)] for title, value in scores]
        blocks.append(Table(caption, ["method", _title(metric)], lines))
    return blocks


def _read(own: OwnRun, data: Dataset) -> list[Any]:
    known = int(labelled(data).sum())
    edges = f", {counted(data.num_edges, 'edge')}" if data.edge_index is not None else ""
    text = (
        f"{counted(data.num_rows, 'row')}: {known:,} with a label, "
        f"{data.num_rows - known:,} to predict{edges}."
    )
    missing = {column.name: column.missing for column in own.encoder.columns}
    y = data.y.reshape(data.num_rows, -1)
    gone = y.isnan() if y.is_floating_point() else y < 0
    missing |= dict(zip(own.labels, gone.sum(0).tolist(), strict=True))
    columns = own.encoder.describe()
    rows = [[name, kind, number(missing.get(name, 0)), how] for name, kind, how in columns]
    table = Table("Columns.", ["column", "is", "empty cells", "becomes"], rows)
    return [Note(text), _balance(own, data), table]


def _balance(own: OwnRun, data: Dataset) -> Plot:
    """How the known labels are spread: classes as bars, numbers as a histogram."""
    title, y = ", ".join(own.labels), data.y.reshape(data.num_rows, -1).numpy()
    caption, bars, cells = f"The known labels: {title}.", list[Any](), list[list[str]]()
    if data.task == "regression":
        header = ["label", "least", "median", "largest"]
        for j, name in enumerate(own.labels):
            values = y[~np.isnan(y[:, j]), j]
            counts, ends = np.histogram(values, bins=min(30, max(5, len(values) // 10)))
            middle = rounded((ends[:-1] + ends[1:]) / 2, 5)
            bars.append(_bars(middle, counts.tolist(), j, name=plain(name)))
            digits, points = digits_for(values), np.quantile(values, (0, 0.5, 1)).tolist()
            cells.append([name, *(number(q, digits) for q in points)])
    else:
        header = ["class", "rows"]
        if data.task == "multilabel":
            title, caption, counts = "label", "Rows whose label is yes.", np.nansum(y, axis=0)
        else:
            counts = np.bincount(y[y >= 0], minlength=len(own.classes))
        pairs = list(zip(own.classes, map(int, counts), strict=False))[:40]
        bars.append(_bars([plain(name) for name, _ in pairs], [count for _, count in pairs]))
        cells += [[name, number(count)] for name, count in pairs]
    words = "; ".join(" ".join(row) for row in cells[:10])
    alt = f"Bar plot of the known labels of {title}. {words}."
    layout = {"xaxis": axis(title), "yaxis": axis("rows"), "height": 260}
    table = Table("Of the known labels.", header, cells)
    return Plot("balance", caption, alt, bars, layout, table)


def _bars(x: Sequence[Any], y: Sequence[Any], index: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "x": x, "y": y, "marker": {"color": colour(index)}, **more}


def _rows(own: OwnRun, data: Dataset, kept: HeldOut | None) -> list[Any]:
    """The prediction for every row, found by its id; the least sure ones as a table."""
    empty = ~labelled(data)
    sure = LEVEL if kept is not None and kept.task != "multilabel" else own.level
    told = replace(own, influential=0, level=sure)
    most = min(MOST_ROWS, MOST_CELLS // (len(told.header) + len(own.labels)))
    order = np.argsort(~empty, kind="stable")[:most].tolist()  # those to predict come first
    answers = told.fitted(order)
    header = [told.header[0], *(f"true {n}" for n in own.labels), *told.header[1:]]
    digits = digits_for(data.y.flatten()) if data.task == "regression" else None
    lines = told.lines([own.ids[i] for i in order], answers)
    rows = [
        [str(name), *own.truth(data.y[place]), *(_short(cell, digits) for cell in cells)]
        for place, (name, *cells) in zip(order, lines, strict=True)
    ]
    shown = "" if len(order) == data.num_rows else f" {len(order):,} of {data.num_rows:,} rows."
    unsure = np.argsort(-_doubt(own, answers), kind="stable").tolist() if own.classes else []
    finder = Finder(
        "rows",
        f"The prediction for every row; choose one to see which rows weigh most in it.{shown}",
        header,
        rows,
        near=_near(own, order),
        near_caption="Rows that weigh most in the prediction for",
        orders={"least sure first": unsure} if own.classes else {},
    )
    if not own.classes:
        return [finder]
    least = ([i for i in unsure if empty[order[i]]] or unsure)[:LEAST_SURE]
    filled = [j for j in range(len(header)) if any(rows[i][j] for i in least)]
    whose = "rows without a label" if empty.any() else "all rows"
    caption = f"The least certain predictions of {whose}."
    cells = [[rows[i][j] for j in filled] for i in least]
    return [Table(caption, [header[j] for j in filled], cells), finder]


def _near(own: OwnRun, order: list[int]) -> list[list[list[Any]]] | None:
    if len(own.ids) > MOST_ROWS:
        return None
    weights, where = own.estimator.influence_in_fit(np.array(order), top_k=NEAR)
    if not (weights > 0).any():
        return None
    return [
        [[own.ids[j], v] for v, j in zip(rounded(w, 3), r.tolist(), strict=True) if v > 0]
        for w, r in zip(weights, where, strict=True)
    ]


def _doubt(own: OwnRun, answers: list[dict[str, Any]]) -> Any:
    """How unsure each answer is: one minus the best probability, or the nearness to a half."""
    chances = np.array([list(answer["probabilities"].values()) for answer in answers])
    return 1 - chances.max(1) if len(own.labels) == 1 else 0.5 - np.abs(chances - 0.5).min(1)


def _short(cell: Any, digits: int | None) -> str:
    """A cell of a CSV file with the digits that people read."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return str(cell)
    # A class may be a whole number; among predicted numbers a whole one is as the others.
    return number(value, digits or 4) if digits or "." in str(cell) else str(cell)


def _quality(own: OwnRun, kept: HeldOut) -> list[Any]:
    found, truth = torch.from_numpy(kept.found), torch.from_numpy(kept.truth)
    if kept.task != "regression":
        return class_blocks(found, truth, kept.names, "held-out")
    model: Any = own.estimator  # its intervals come from the held-out errors
    (half,) = model.interval_around(np.zeros((1, len(own.labels))), LEVEL)[..., 1].tolist()
    words = ", ".join(f"{n} ± {number(h, 3)}" for n, h in zip(own.labels, half, strict=True))
    text = f"{100 * LEVEL:g} % of the predictions for rows like these are within: {words}."
    columns = zip(own.labels, found.T, truth.reshape(found.shape).T, strict=True)
    plots = [regression_blocks(mine, known, "held-out", name) for name, mine, known in columns]
    return [Note(text), *(plot for pair in plots for plot in pair)]


def _importance(own: OwnRun, data: Dataset, kept: HeldOut) -> list[Any]:
    metric, found = column_importance(own, data, kept)
    if not found:
        return [Note("No column can be shuffled.", missing=True)]
    title, cells = f"{_title(metric)} worse by", [[n, number(v, 3)] for n, v in found[:20]]
    names, values = zip(*reversed(found[:20]), strict=True)
    caption = (
        "How much worse the held-out rows are predicted when the values of one column are "
        "shuffled among them: near zero, the model does not need the column."
    )
    alt = "Bar plot of columns by importance: " + ", ".join(map(" ".join, cells[:10]))
    bars = _bars(rounded(values, 3), list(map(plain, names)), orientation="h")
    height = 120 + 26 * len(cells)
    layout = {"xaxis": axis(title), "yaxis": {"type": "category"}, "height": height}
    table = Table("The same in numbers.", ["column", title], cells)
    return [Plot("importance", caption, alt, [bars], layout, table)]


def _tried(result: Mapping[str, Any]) -> list[Any]:
    tried, members = result.get("tried") or {}, result.get("members") or {}
    if len(tried) < 2:
        return []
    taken = {name.split("/")[0]: weight for name, weight in members.items()} | members
    ranked = sorted(tried.items(), key=lambda pair: (pair[1] is None, pair[1] or 0.0))
    shares = {name: f"{100 * weight:.0f} %" for name, weight in taken.items()}
    rows = [[name, number(loss), shares.get(name, "")] for name, loss in ranked]
    what = f"{len(members)} of them are averaged" if members else "the best one is used"
    caption = f"Forms of the model by their loss on held-out labels; {what}."
    header = ["form", "held-out loss", "weight in the average"][: 3 if members else 2]
    return [Table(caption, header, [row[: len(header)] for row in rows])]

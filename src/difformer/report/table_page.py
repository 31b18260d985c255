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
from difformer.files import counted, number_text
from difformer.jobs.own import OwnRun
from difformer.jobs.scores import HeldOut, column_importance, labelled
from difformer.metrics import METRICS
from difformer.report.predictions import (
    calibration_block,
    confusion_blocks,
    regression_block,
    residual_block,
    roc_blocks,
)
from difformer.runs.open import LoadedRun
from difformer.runs.run import Run

MOST_ROWS = 5000  # most rows on the page, those to predict first
MOST_CELLS = 60_000  # of these rows: the page stays below 3 MB
NEAR = 3  # rows named beside each of them
LEVEL = 0.9  # of the intervals and sets on the page
LEAST_SURE = 10
SKEWED = 0.75  # of the labels in one class: accuracy says little


def title_of(run: Run) -> str:
    """Such as 'price in houses.csv'."""
    label = run.config.get("data", {}).get("label", "the label")
    named = label if isinstance(label, str) else ", ".join(label)
    return f"{named} in {run.config['dataset']}"


def subtitle_of(run: Run) -> str:
    """What was trained on, and what is predicted."""
    result = run.seeds[0].result
    known, rows = result.get("labelled", 0), result.get("rows", 0)
    return (
        f"A DIFFormer was trained on {known:,} labelled rows. It predicts the {rows - known:,} "
        "others, and new rows."
    )


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
    kind = next((key for key in ("r2", "roc_auc") if name.startswith(f"{key}_")), None)
    others = [key for key in metrics if kind and key.startswith(f"{kind}_")]
    if kind and len(others) > 1:  # one for each of several labels
        each = ", ".join(f"{k.removeprefix(f'{kind}_')} {number(metrics[k], 3)}" for k in others)
        return f"{_capital(METRICS[kind].title)} {on}: {each}."
    low, high = told["intervals"][name]
    beside = f"; {number(base[name], 3)} without any column" if name in base else ""
    error = f" Mean absolute error {number(metrics['mae'], 3)}." if "mae" in metrics else ""
    return (
        f"{_capital(_title(name))} {number(metrics[name], 3)} (95 % interval {number(low, 3)} to "
        f"{number(high, 3)}) {on}{beside}.{error}"
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def table_sections(run: Run, loaded: LoadedRun) -> list[Section]:
    """Everything above what is inside the model."""
    own, data, result = loaded.own, loaded.table, run.seeds[0].result
    assert own is not None
    assert data is not None
    kept = HeldOut.of(own.estimator, data, own.classes or own.labels)
    sections = [
        Section("result", "How good it is", result_blocks(result)),
        Section("read", "What was read", _read(own, data)),
        Section("rows", "Predictions", _rows(own, data, kept)),
    ]
    if kept is not None:
        sections.append(
            Section("quality", "Where it is right and wrong", _quality(own, data, kept))
        )
        sections.append(Section("columns", "Which columns matter", [_importance(own, data, kept)]))
    tried = _tried(result)
    if tried:
        sections.append(Section("tried", "What was tried", tried))
    return sections


def _title(name: str) -> str:
    """'mae_price' as 'mean absolute error of price'."""
    for key, metric in METRICS.items():
        if name == key:
            return metric.title
        if name.startswith(f"{key}_"):
            return f"{metric.title} of {name.removeprefix(f'{key}_')}"
    return name.replace("_", " ")


def result_blocks(result: Mapping[str, Any]) -> list[Any]:
    """How good the run is: in a sentence, every score, and beside simple methods."""
    told = result.get("held_out") or {}
    blocks: list[Any] = [Note(headline(result))]
    if not told:
        return blocks
    most = told["baseline"].get("accuracy", 0.0)
    if most >= SKEWED:
        blocks.append(
            Note(
                f"{100 * most:.0f} % of the labels are of one class, so accuracy says little: see "
                "the rarer classes under “Where it is right and wrong” on the page."
            )
        )
    rows = [
        [
            _title(name),
            number(value),
            " to ".join(number(end, 3) for end in told["intervals"][name]),
            number(told["baseline"].get(name)),
        ]
        for name, value in told["metrics"].items()
    ]
    header = ["", "DIFFormer", "95 % interval", "without any column"]
    units = ", in the units of the label" if result.get("task") == "regression" else ""
    what = f"Scores of the labelled rows that were held out{units}."
    blocks.append(Table(what, header, rows))
    return [*blocks, *_peers(result.get("peers") or [], told["metrics"])]


def _peers(peers: Sequence[Mapping[str, Any]], ours: Mapping[str, float]) -> list[Table]:
    if not peers:
        return []
    metric = peers[0]["metric"]
    scores = [(p["title"], p["value"]) for p in peers]
    scores += [("DIFFormer (this run)", ours[metric])] if metric in ours else []
    scores.sort(key=lambda pair: pair[1], reverse=metric not in ("rmse", "mae", "log_loss"))
    caption = "Compared with simple methods on held-out labels of the same table, best first."
    lines = [[title, number(value)] for title, value in scores]
    return [Table(caption, ["method", _title(metric)], lines)]


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
    rows = [
        [name, kind, number(missing.get(name, 0)), how]
        for name, kind, how in own.encoder.describe()
    ]
    table = Table("Columns.", ["column", "is", "empty cells", "becomes"], rows)
    return [Note(text), _balance(own, data), table]


def _balance(own: OwnRun, data: Dataset) -> Plot:
    """How the known labels are spread: classes as bars, numbers as a histogram."""
    title = ", ".join(own.labels)
    caption = f"The known labels: {title}."
    if data.task == "multilabel":
        title, caption = "label", "Rows whose label is yes."
    bars, table = (_spread if data.task == "regression" else _counts)(own, data)
    words = "; ".join(" ".join(row) for row in table.rows[:10])
    return Plot(
        name="balance",
        caption=caption,
        alt=f"Bar plot of the known labels of {title}. {words}.",
        data=bars,
        layout={"xaxis": axis(title), "yaxis": axis("rows"), "height": 260},
        table=table,
    )


def _spread(own: OwnRun, data: Dataset) -> tuple[list[dict[str, Any]], Table]:
    """The histogram of each label that is a number, and its quantiles."""
    bars, cells = list[dict[str, Any]](), list[list[str]]()
    for j, name in enumerate(own.labels):
        values = data.y.reshape(data.num_rows, -1)[:, j].numpy()
        values = values[~np.isnan(values)]
        counts, ends = np.histogram(values, bins=min(30, max(5, len(values) // 10)))
        middle = rounded((ends[:-1] + ends[1:]) / 2, 5)
        bars.append(_bars(middle, counts.tolist(), j, name=plain(name)))
        digits = digits_for(values)
        cells.append([name, *(number(float(q), digits) for q in np.quantile(values, (0, 0.5, 1)))])
    return bars, Table("Of the known labels.", ["label", "least", "median", "largest"], cells)


def _counts(own: OwnRun, data: Dataset) -> tuple[list[dict[str, Any]], Table]:
    """The rows of each class; of several labels, those that are yes."""
    if data.task == "multiclass":
        counts = np.bincount(data.y[data.y >= 0].numpy(), minlength=len(own.classes))
    else:
        counts = np.nansum(data.y.reshape(data.num_rows, -1).numpy(), axis=0)
    pairs = list(zip(own.classes, map(int, counts), strict=False))[:40]
    bars = _bars([plain(name) for name, _ in pairs], [count for _, count in pairs])
    cells = [[name, number(count)] for name, count in pairs]
    return [bars], Table("Of the known labels.", ["class", "rows"], cells)


def _bars(x: Sequence[Any], y: Sequence[Any], index: int = 0, **more: Any) -> dict[str, Any]:
    return {"type": "bar", "x": x, "y": y, "marker": {"color": colour(index)}, **more}


def _rows(own: OwnRun, data: Dataset, kept: HeldOut | None) -> list[Any]:
    """The prediction for every row, found by its id; the least sure ones as a table."""
    empty = ~labelled(data)
    told = replace(own, influential=0)
    if kept is not None and kept.task != "multilabel":
        told = replace(told, level=LEVEL)
    most = min(MOST_ROWS, MOST_CELLS // (len(told.header) + len(own.labels)))
    order = np.argsort(~empty, kind="stable")[:most]  # those to predict come first
    answers = told.fitted(order.tolist())
    header = [told.header[0], *(f"true {n}" for n in own.labels), *told.header[1:]]
    digits = digits_for(data.y.flatten()) if data.task == "regression" else None
    rows: list[list[str]] = []
    for place, answer in zip(order.tolist(), answers, strict=True):
        cells = told.lines([own.ids[place]], [answer])[0]
        rows.append(
            [str(cells[0]), *_truth(own, data, place), *(_short(c, digits) for c in cells[1:])]
        )
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
    table = Table(
        caption, [header[j] for j in filled], [[rows[i][j] for j in filled] for i in least]
    )
    return [table, finder]


def _near(own: OwnRun, order: Any) -> list[list[list[Any]]] | None:
    if len(own.ids) > MOST_ROWS:
        return None
    weights, where = own.estimator.influence_in_fit(order, top_k=NEAR)
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


def _truth(own: OwnRun, data: Dataset, row: int) -> list[str]:
    values = data.y[row].reshape(-1).tolist()
    if data.task == "multiclass":
        return [own.classes[values[0]] if values[0] >= 0 else ""]
    return list(map(number_text, values))


def _short(cell: Any, digits: int | None) -> str:
    """A cell of a CSV file with the digits that people read."""
    try:
        value = float(cell)
    except (TypeError, ValueError):
        return str(cell)
    # A class may be a whole number; among predicted numbers a whole one is as the others.
    return number(value, digits or 4) if digits or "." in str(cell) else str(cell)


def _quality(own: OwnRun, data: Dataset, kept: HeldOut) -> list[Any]:
    found, truth = torch.from_numpy(kept.found), torch.from_numpy(kept.truth)
    part = "held-out"
    if kept.task == "regression":
        blocks: list[Any] = []
        for j, name in enumerate(own.labels):
            args: Any = (found[:, j], truth.reshape(found.shape)[:, j], part)
            blocks += [regression_block(*args, name=name), residual_block(*args, name=name)]
        return [_covered(own), *blocks]
    calibrated = calibration_block(found, truth, part)
    if kept.task != "multiclass":
        return [calibrated]
    blocks = confusion_blocks(found, truth, list(kept.names), part)
    if len(kept.names) == 2:
        blocks += roc_blocks(kept.truth, kept.found[:, 1], kept.names[1])
    return [*blocks, calibrated]


def _covered(own: OwnRun) -> Note:
    """How wide the intervals are, by the held-out errors they come from."""
    model: Any = own.estimator
    (half,) = model.interval_around(np.zeros((1, len(own.labels))), LEVEL)[..., 1].tolist()
    words = ", ".join(f"{n} ± {number(h, 3)}" for n, h in zip(own.labels, half, strict=True))
    return Note(f"{100 * LEVEL:g} % of the predictions for rows like these are within: {words}.")


def _importance(own: OwnRun, data: Dataset, kept: HeldOut) -> Any:
    metric, found = column_importance(own, data, kept)
    if not found:
        return Note("No column can be shuffled.", missing=True)
    found = found[:20]
    title = f"{_title(metric)} worse by"
    bars = _bars(
        rounded((v for _, v in reversed(found)), 3),
        [plain(name) for name, _ in reversed(found)],
        orientation="h",
    )
    return Plot(
        name="importance",
        caption="How much worse the held-out rows are predicted when the values of one column are "
        "shuffled among them: near zero, the model does not need the column.",
        alt="Bar plot of columns by importance: "
        + ", ".join(f"{n} {number(v, 3)}" for n, v in found[:10]),
        data=[bars],
        layout={
            "xaxis": axis(title),
            "yaxis": {"type": "category"},
            "height": 120 + 26 * len(found),
        },
        table=Table(
            "The same in numbers.", ["column", title], [[n, number(v, 3)] for n, v in found]
        ),
    )


def _tried(result: Mapping[str, Any]) -> list[Any]:
    tried, members = result.get("tried") or {}, result.get("members") or {}
    if len(tried) < 2:
        return []
    taken = {name.split("/")[0]: weight for name, weight in members.items()} | members
    ranked = sorted(tried.items(), key=lambda pair: (pair[1] is None, pair[1] or 0.0))
    rows = [
        [name, number(loss), f"{100 * taken[name]:.0f} %" if name in taken else ""]
        for name, loss in ranked
    ]
    what = f"{len(members)} of them are averaged" if members else "the best one is used"
    caption = f"Forms of the model by their loss on held-out labels; {what}."
    header = ["form", "held-out loss", "weight in the average"][: 3 if members else 2]
    return [Table(caption, header, [row[: len(header)] for row in rows])]

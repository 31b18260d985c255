"""The sections of a run on a series: how good it is, each node's forecast as a fan, its errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import shortest_path

from difformer.blocks import (
    Finder,
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    first_few,
    number,
    plain,
    rounded,
    scatter,
)
from difformer.data.series import read_places
from difformer.estimators.backtest import OURS
from difformer.files import counted
from difformer.jobs.series import CUT, LEVEL, half_widths, lower_end, next_stamps
from difformer.runs.open import LoadedRun

MOST_NODES = 400  # most nodes on the page
SHOWN = 120  # newest steps of each
MOST_EDGES = 5000  # drawn
MOST_CURVES = 4  # of other methods: more hide one another on a phone
ERRORS = {"mse": 4, "mae": 4, "mase": 3}  # digits of each in the table
NAMED = 12  # nodes that have their names beside them, or in a sentence
SHARE = f"{100 * LEVEL:g} %"
LEARNED = {"sqrt": "the square roots of the values", "log": "the logarithms of the values plus one"}


def series_sections(loaded: LoadedRun) -> list[Section]:
    """Everything above what is inside the model."""
    model, record, tested = loaded.estimator, loaded.record, loaded.record.get("backtest")
    return [
        Section("result", "How good it is", result_blocks(record)),
        Section("nodes", "Forecasts", [_fans(model, record)]),
        Section("read", "What was read", [_read(model), *learned_notes(record)]),
        Section("steps", "Error by step", [_by_step(tested["methods"])] if tested else []),
        Section("map", "Error by node", _map(model, record) if tested else []),
    ]


def result_blocks(record: Mapping[str, Any]) -> list[Any]:
    """How good the forecasts are: in a sentence, every error, and how often intervals held."""
    tested = record.get("backtest")
    if not tested:
        why = record.get("no_backtest", "none was asked for")
        return [Note(f"There is no backtest: {why}.", missing=True)]
    methods, ours = tested["methods"], tested["methods"]["DIFFormer"]
    ranked = sorted(methods, key=lambda name: methods[name]["mse"])
    other = next(name for name in ranked if name != "DIFFormer")
    error, theirs = math.sqrt(ours["mse"]), math.sqrt(methods[other]["mse"])
    steps, origins = record["settings"]["steps"], tested["origins"]
    beside = ""
    if theirs:
        percent = round(100 * (error / theirs - 1))
        how = f"{abs(percent)} % {'worse' if percent > 0 else 'better'}" if percent else "as good"
        beside = f" DIFFormer is {how}."
    texts = [
        f"Root mean squared error {number(error, 3)} over {counted(steps, 'step')} ahead "
        f"from {counted(len(origins), 'consecutive origin')}; {number(theirs, 3)} for the best "
        f"simple forecast, {other}.{beside}"
    ]
    closest = min(methods, key=lambda name: methods[name]["mae"])
    if ours["mae"] > methods[closest]["mae"]:
        texts.append(
            f"By mean absolute error {closest} is better: the forecast is a mean, not a median, "
            "and keeps squared errors small."
        )
    rows = [[name, *(number(methods[name][e], d) for e, d in ERRORS.items())] for name in ranked]
    caption = (
        "Errors of forecasts made before these steps; scaled: divided by the mean change from one "
        "step to the next before them."
    )
    header = ["forecast", "mean squared", "mean absolute", "mean absolute scaled"]
    told, below = tested["coverage"][str(LEVEL)], list[str]()
    if told["coverage"] is not None:
        cut = f" They {CUT}" if tested.get("lower") == 0 else ""
        below.append(
            f"{SHARE} intervals, each made from earlier errors, contained "
            f"{100 * told['coverage']:.0f} % of the values of the later half (pinball loss "
            f"{number(told['pinball'], 3)}).{cut}"
        )
    below += [f"{tested['left_out']}."] if tested.get("left_out") else []
    return [*map(Note, texts), Table(caption, header, rows), *map(Note, below)]


def _read(model: Any) -> Note:
    """How many steps and nodes, from when to when, and what is missing."""
    data = model.series_
    steps, nodes = data.values.shape
    ends = [_date(stamp) for stamp in data.stamps[:1] + data.stamps[-1:]]
    span = f", {ends[0]} to {ends[1]}" if len(ends) == 2 else ""
    gone = float(np.isnan(data.values).mean())
    missing = f"{100 * gone:.2g} % of the values are missing" if gone else "no value is missing"
    return Note(f"{counted(steps, 'step')} of {counted(nodes, 'node')}{span}; {missing}.")


def learned_notes(record: Mapping[str, Any]) -> list[Note]:
    """What the model learns from, what the forecast is averaged with, what was corrected."""
    told = ", as changes from the last one" if record.get("level") == "last" else ""
    if record.get("calendar") == "cycles":
        told += ", and from the time of day, week and year"
    if record.get("known"):
        told += ", and from the values known ahead"
    how = LEARNED.get(record.get("transform", ""), "the values")
    texts = [f"The model learns from {how} of each node{told}."]
    # The simple forecasts that are mixed in, the largest share first.
    shares = sorted(record.get("shares", {}).items(), key=lambda pair: -pair[1])
    others = [f"{100 * s:.0f} % {name}" for name, s in shares if name != OURS and s >= 0.005]
    if others:
        texts.append(f"The forecast is averaged with {', '.join(others)}, as validation chose.")
    texts += [f"Corrected while reading: {note}." for note in record.get("notes", ())]
    left = record.get("naive_nodes") or []
    if left:
        one = len(left) == 1
        who = "1 node hardly varies; its" if one else f"{len(left):,} nodes hardly vary; their"
        texts.append(f"{who} forecast is the last value: {first_few(left, NAMED)}.")
    return list(map(Note, texts))


def _date(stamp: Any) -> str:
    return str(stamp).removesuffix(" 00:00:00")


def _fans(model: Any, record: Mapping[str, Any]) -> Finder:
    """Each node's newest values and its forecast, those with the largest errors first."""
    data, tested = model.series_, record.get("backtest")
    ahead = np.asarray(model.predict(record["settings"]["steps"]))
    half = half_widths(record, LEVEL) if tested else np.full_like(ahead, np.nan)
    names = data.names or tuple(str(j) for j in range(data.values.shape[1]))
    values, later = data.values[-SHOWN:], next_stamps(data, len(ahead))
    first = len(data.values) - len(values)
    times = [_date(stamp) for stamp in data.stamps[-SHOWN:]]
    times = times or [str(first + i) for i in range(len(values))]
    sizes = tested["sizes"] if tested else [None] * len(names)
    least, left = lower_end(data.values), set(record.get("naive_nodes", ()))
    low, high = np.maximum(ahead - half, least), ahead + half
    rows: list[list[str]] = []
    curves: list[dict[str, Any]] = []
    for j, name in enumerate(names[:MOST_NODES]):
        known = values[:, j][~np.isnan(values[:, j])]
        last = number(float(known[-1])) if known.size else "–"
        how = "last value" if name in left else "DIFFormer"
        rows.append([name, last, number(float(ahead[0, j])), number(sizes[j], 3), how])
        band = _band(later, low[:, j], high[:, j]) if np.isfinite(half[:, j]).all() else []
        line = {"color": colour(0)}, {"color": colour(1)}
        seen = scatter(times, rounded(values[:, j]), name="known", line=line[0])
        next_ = scatter(later, rounded(ahead[:, j]), "lines+markers", name="forecast", line=line[1])
        curves.append({"data": [*band, seen, next_], "layout": {}})
    order = np.argsort([-(s or 0.0) for s in sizes], kind="stable").tolist()
    kept = "" if len(rows) == len(names) else f" The first {len(rows):,} of {len(names):,}."
    return Finder(
        "nodes",
        f"Choose a node to see its newest values and its forecast with {SHARE} intervals.{kept}",
        ["node", "last value", "next step", "mean absolute error", "by"],
        rows,
        orders={"largest error first": [i for i in order if i < len(rows)]},
        curves=curves,
    )


def _band(later: Sequence[str], low: Any, high: Any) -> list[dict[str, Any]]:
    edge: Any = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    above = scatter(later, rounded(high), **edge)
    edge |= {"fill": "tonexty", "fillcolor": "rgba(204,102,119,0.25)", "showlegend": True}
    return [above, scatter(later, rounded(low), name=f"{SHARE} interval", **edge)]


def _map(model: Any, record: Mapping[str, Any]) -> list[Plot]:
    """The nodes where they are, or as their edges place them, coloured by their error."""
    nodes, edges = model.node_names, model.edges_
    ticks: dict[str, Any] = {"showgrid": False, "zeroline": False}
    if record.get("places"):
        places, where = read_places(record["places"], nodes), "at their coordinates"
    elif edges is not None:
        places, where = placed_by_edges(edges, len(nodes)), "placed by their edges"
        ticks["showticklabels"] = False
    else:
        return []
    sizes = record["backtest"]["sizes"]
    error = np.array([np.nan if size is None else size for size in sizes])
    shown = np.flatnonzero(np.isfinite(places).all(1))
    data: list[dict[str, Any]] = []
    if edges is not None and edges.shape[1] <= MOST_EDGES:
        both = [places[edges[0]], places[edges[1]], np.full((edges.shape[1], 2), np.nan)]
        x, y = np.stack(both, axis=1).reshape(-1, 2).T
        grey = {"color": "rgba(128,128,128,0.35)", "width": 1}
        line = scatter(rounded(x), rounded(y), line=grey, hoverinfo="skip", showlegend=False)
        data.append(line)
    marker = {
        "size": 12 if len(shown) <= 100 else 7,
        "color": rounded(error[shown]),
        "colorscale": "YlOrRd",
        "reversescale": True,  # light is small
        "showscale": True,
        "colorbar": {"title": {"text": "error"}, "thickness": 12},
        "line": {"width": 1, "color": "rgba(128,128,128,0.8)"},
    }
    points = scatter(
        rounded(places[shown, 0]),
        rounded(places[shown, 1]),
        "markers+text" if len(shown) <= NAMED else "markers",
        text=[plain(nodes[j]) for j in shown],
        textposition="top center",
        customdata=rounded(error[shown]),
        hovertemplate="%{text}: %{customdata}<extra></extra>",
        marker=marker,
        showlegend=False,
    )
    order = np.argsort(-np.nan_to_num(error), kind="stable")[:MOST_NODES]
    rows = [[nodes[j], number(float(error[j]), 3)] for j in order]
    caption = f"The nodes {where}, coloured by mean absolute error in the backtest."
    alt = "Scatter plot of the nodes, coloured by their error."
    layout = {"xaxis": ticks, "yaxis": {**ticks, "scaleanchor": "x"}, "hovermode": "closest"}
    table = Table("The same in numbers, largest first.", ["node", "mean absolute error"], rows)
    return [Plot("map", caption, alt, [*data, points], layout, table)]


def placed_by_edges(edges: Any, count: int) -> Any:
    """(n, 2) by classical scaling of the number of edges between two nodes. O(n³)."""
    near = sparse.csr_array((np.ones(edges.shape[1]), edges), shape=(count, count))
    apart = shortest_path(near, directed=False, unweighted=True)
    most = apart[np.isfinite(apart)].max(initial=1.0)
    square = np.where(np.isfinite(apart), apart, 1.5 * most) ** 2
    centred = -0.5 * (square - square.mean(0) - square.mean(1)[:, None] + square.mean())
    values, vectors = np.linalg.eigh(centred)
    found = np.zeros((count, 2))
    kept = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    found[:, : kept.shape[1]] = kept[:, ::-1]
    return found


def _by_step(methods: Mapping[str, Any]) -> Plot:
    others = sorted((n for n in methods if n != "DIFFormer"), key=lambda n: methods[n]["mse"])
    drawn = ["DIFFormer", *others[:MOST_CURVES]]
    errors = {name: np.sqrt(np.array(told["mse_by_step"])) for name, told in methods.items()}
    steps = list(range(1, len(errors["DIFFormer"]) + 1))
    lines = [{"color": colour(i), "width": 1.5 if i else 3} for i in range(len(drawn))]
    data = [
        scatter(steps, rounded(errors[name]), "lines+markers", name=name, line=line)
        for name, line in zip(drawn, lines, strict=True)
    ]
    caption = (
        "Root mean squared error by step ahead, in the units of the series: DIFFormer and "
        f"the {len(drawn) - 1} best others."
    )
    alt = "Line plot of the error of every forecast by step ahead."
    layout = {
        "xaxis": axis("steps ahead", dtick=max(1, len(steps) // 12)),
        "yaxis": axis("root mean squared error", rangemode="tozero"),
    }
    rows = [[name, *map(number, each.tolist())] for name, each in errors.items()]
    table = Table("The same in numbers.", ["forecast", *map(str, steps)], rows)
    return Plot("by-step", caption, alt, data, layout, table)

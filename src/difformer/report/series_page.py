"""The sections of a run on a series: how good it is, each node's forecast as a fan, its errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
from difformer.jobs.series import (
    CUT,
    LEVEL,
    half_widths,
    lower_end,
    next_stamps,
)
from difformer.runs.open import LoadedRun

MOST_NODES = 400  # most nodes on the page
SHOWN = 120  # newest steps of each
MOST_EDGES = 5000  # drawn
MOST_CURVES = 4  # of other methods: more hide one another on a phone
ERRORS = {"mse": 4, "mae": 4, "mase": 3}  # digits of each in the table
NAMED = 12  # nodes that have their names beside them, or in a sentence


def series_sections(loaded: LoadedRun) -> list[Section]:
    """Everything above what is inside the model."""
    model: Any = loaded.estimator
    record = loaded.record
    ahead = np.asarray(model.predict(record["settings"]["steps"]))
    tested = record.get("backtest")
    half = half_widths(record, LEVEL) if tested else None
    return [
        Section("result", "How good it is", result_blocks(record)),
        Section("nodes", "Forecasts", [_fans(model, record, ahead, half)]),
        Section("read", "What was read", [_read(model), *learned_notes(record)]),
        Section("steps", "Error by step", [_by_step(tested)] if tested else []),
        Section("map", "Error by node", _map(model, record, tested) if tested else []),
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
    texts = [
        f"Root mean squared error {number(error, 3)} over {counted(steps, 'step')} ahead "
        f"from {counted(len(origins), 'consecutive origin')}; {number(theirs, 3)} for the best "
        f"simple forecast, {other}.{_beside(error, theirs)}"
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
            f"{100 * LEVEL:g} % intervals, each made from earlier errors, contained "
            f"{100 * told['coverage']:.0f} % of the values of the later half (pinball loss "
            f"{number(told['pinball'], 3)}).{cut}"
        )
    if tested.get("left_out"):
        below.append(f"{tested['left_out']}.")
    return [*map(Note, texts), Table(caption, header, rows), *map(Note, below)]


def _beside(ours: float, theirs: float) -> str:
    """By how much it is better or worse, where the other's error is not zero."""
    if not theirs:
        return ""
    percent = round(100 * (ours / theirs - 1))
    how = f"{abs(percent)} % {'worse' if percent > 0 else 'better'}" if percent else "as good"
    return f" DIFFormer is {how}."


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
    made = {
        "sqrt": "the square roots of the values",
        "log": "the logarithms of the values plus one",
    }
    how = made.get(record.get("transform", ""), "the values")
    told = ", as changes from the last one" if record.get("level") == "last" else ""
    if record.get("calendar") == "cycles":
        told += ", and from the time of day, week and year"
    if record.get("known"):
        told += ", and from the values known ahead"
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


def _fans(model: Any, record: Mapping[str, Any], ahead: Any, half: Any) -> Finder:
    data = model.series_
    names = data.names or tuple(str(j) for j in range(data.values.shape[1]))
    values = data.values[-SHOWN:]
    first = len(data.values) - len(values)
    times = [_date(stamp) for stamp in data.stamps[-SHOWN:]]
    times = times or [str(first + i) for i in range(len(values))]
    later = next_stamps(data, len(ahead))
    sizes = (record.get("backtest") or {}).get("sizes") or [None] * len(names)
    left, least = set(record.get("naive_nodes", ())), lower_end(data.values)
    rows: list[list[str]] = []
    curves: list[dict[str, Any]] = []
    order = np.argsort([-(s or 0.0) for s in sizes], kind="stable").tolist()
    for j in range(min(len(names), MOST_NODES)):
        known = values[:, j][~np.isnan(values[:, j])]
        last = number(float(known[-1])) if known.size else "–"
        how = "last value" if names[j] in left else "DIFFormer"
        rows.append([names[j], last, number(float(ahead[0, j])), number(sizes[j], 3), how])
        curves.append(_fan(values[:, j], ahead[:, j], half, j, times, later, least))
    header = ["node", "last value", "next step", "mean absolute error", "by"]
    kept = "" if len(rows) == len(names) else f" The first {len(rows):,} of {len(names):,}."
    return Finder(
        "nodes",
        f"Choose a node to see its newest values and its forecast with {100 * LEVEL:g} % "
        f"intervals.{kept}",
        header,
        rows,
        orders={"largest error first": [i for i in order if i < len(rows)]},
        curves=curves,
    )


def _fan(
    values: Any, ahead: Any, half: Any, node: int, times: list[str], later: list[str], least: float
) -> dict[str, Any]:
    data: list[dict[str, Any]] = []
    if half is not None and np.isfinite(half[:, node]).all():
        low, high = np.maximum(ahead - half[:, node], least), ahead + half[:, node]
        edge: Any = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        data.append(scatter(later, rounded(high), **edge))
        edge |= {"fill": "tonexty", "fillcolor": "rgba(204,102,119,0.25)", "showlegend": True}
        data.append(scatter(later, rounded(low), name=f"{100 * LEVEL:g} % interval", **edge))
    data.append(scatter(times, rounded(values), name="known", line={"color": colour(0)}))
    line = {"color": colour(1)}
    data.append(scatter(later, rounded(ahead), "lines+markers", name="forecast", line=line))
    return {"data": data, "layout": {}}


def _map(model: Any, record: Mapping[str, Any], tested: Mapping[str, Any]) -> list[Plot]:
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
    error = np.array([np.nan if size is None else size for size in tested["sizes"]])
    shown = np.flatnonzero(np.isfinite(places).all(1))
    data: list[dict[str, Any]] = []
    if edges is not None and edges.shape[1] <= MOST_EDGES:
        both = [places[edges[0]], places[edges[1]], np.full((edges.shape[1], 2), np.nan)]
        line = np.stack(both, axis=1).reshape(-1, 2)
        grey = {"color": "rgba(128,128,128,0.35)", "width": 1}
        x, y = rounded(line[:, 0]), rounded(line[:, 1])
        data.append(scatter(x, y, line=grey, hoverinfo="skip", showlegend=False))
    data.append(
        scatter(
            rounded(places[shown, 0]),
            rounded(places[shown, 1]),
            "markers+text" if len(shown) <= NAMED else "markers",
            text=[plain(nodes[j]) for j in shown],
            textposition="top center",
            customdata=rounded(error[shown]),
            hovertemplate="%{text}: %{customdata}<extra></extra>",
            marker={
                "size": 12 if len(shown) <= 100 else 7,
                "color": rounded(error[shown]),
                "colorscale": "YlOrRd",
                "reversescale": True,  # light is small
                "showscale": True,
                "colorbar": {"title": {"text": "error"}, "thickness": 12},
                "line": {"width": 1, "color": "rgba(128,128,128,0.8)"},
            },
            showlegend=False,
        )
    )
    order = [int(j) for j in np.argsort(-np.nan_to_num(error), kind="stable")]
    plot = Plot(
        name="map",
        caption=f"The nodes {where}, coloured by mean absolute error in the backtest.",
        alt="Scatter plot of the nodes, coloured by their error.",
        data=data,
        layout={
            "xaxis": ticks,
            "yaxis": {**ticks, "scaleanchor": "x"},
            "hovermode": "closest",
        },
        table=Table(
            "The same in numbers, largest first.",
            ["node", "mean absolute error"],
            [[nodes[j], number(float(error[j]), 3)] for j in order[:MOST_NODES]],
        ),
    )
    return [plot]


def placed_by_edges(edges: Any, count: int) -> Any:
    """(n, 2) by classical scaling of the number of edges between two nodes. O(n³)."""
    near = sparse.csr_array((np.ones(edges.shape[1]), edges), shape=(count, count))
    apart = shortest_path(near, directed=False, unweighted=True)
    most = apart[np.isfinite(apart)].max(initial=1.0)
    apart = np.where(np.isfinite(apart), apart, 1.5 * most)
    square = apart**2
    centred = -0.5 * (square - square.mean(0) - square.mean(1)[:, None] + square.mean())
    values, vectors = np.linalg.eigh(centred)
    found = np.zeros((count, 2))
    kept = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    found[:, : kept.shape[1]] = kept[:, ::-1]
    return found


def _by_step(tested: Mapping[str, Any]) -> Plot:
    methods = tested["methods"]
    others = sorted((n for n in methods if n != "DIFFormer"), key=lambda n: methods[n]["mse"])
    drawn = ["DIFFormer", *others[:MOST_CURVES]]
    steps = list(range(1, len(methods["DIFFormer"]["mse_by_step"]) + 1))
    data = [
        scatter(
            steps,
            rounded(np.sqrt(np.array(methods[name]["mse_by_step"], float))),
            "lines+markers",
            name=name,
            line={"color": colour(i), "width": 3 if i == 0 else 1.5},
        )
        for i, name in enumerate(drawn)
    ]
    rows = [[n, *(number(v**0.5) for v in told["mse_by_step"])] for n, told in methods.items()]
    return Plot(
        name="by-step",
        caption="Root mean squared error by step ahead, in the units of the series: DIFFormer and "
        f"the {len(drawn) - 1} best others.",
        alt="Line plot of the error of every forecast by step ahead.",
        data=data,
        layout={
            "xaxis": axis("steps ahead", dtick=max(1, len(steps) // 12)),
            "yaxis": axis("root mean squared error", rangemode="tozero"),
        },
        table=Table("The same in numbers.", ["forecast", *map(str, steps)], rows),
    )

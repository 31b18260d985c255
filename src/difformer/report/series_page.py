"""The sections of a run on a series: how good it is, each node's forecast as a fan, its errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import shortest_path

from difformer.data.series_files import read_places
from difformer.experiments.forecast import LEVEL, half_widths, mixed_in, next_stamps
from difformer.experiments.loaded import LoadedRun
from difformer.report.blocks import (
    COLOURS,
    Finder,
    Note,
    Plot,
    Section,
    Table,
    number,
    plain,
    rounded,
)

__all__ = ["series_sections"]

MOST_NODES = 400  # that the page carries
SHOWN = 120  # newest steps of each
MOST_EDGES = 5000  # drawn
MOST_CURVES = 4  # of other methods: more hide one another on a phone
NAMED = 12  # nodes that have their names beside them, or in a sentence


def series_sections(loaded: LoadedRun) -> list[Section]:
    """Everything above what is inside the model."""
    model: Any = loaded.estimator
    record = loaded.record
    ahead = np.asarray(model.predict(record["settings"]["steps"]))
    tested = record.get("backtest")
    half = half_widths(record, LEVEL) if tested else None
    sections = [
        Section("result", "How good it is", _result(record, tested)),
        Section("nodes", "Forecasts", [_fans(model, record, ahead, half)]),
        Section("read", "What was read", _read(model, record)),
    ]
    if tested:
        sections.append(Section("steps", "Error by step", [_by_step(tested)]))
        drawn = _map(model, record, tested)
        if drawn is not None:
            sections.append(Section("map", "Error by node", [drawn]))
    return sections


def _result(record: Mapping[str, Any], tested: Mapping[str, Any] | None) -> list[Any]:
    blocks: list[Any] = []
    if not tested:
        why = record.get("no_backtest", "none was asked for")
        return [Note(f"There is no backtest: {why}.", missing=True)]
    ranked = sorted(tested["methods"].items(), key=lambda pair: pair[1]["mse"])
    ours = tested["methods"]["DIFFormer"]
    other, best = next((n, e) for n, e in ranked if n != "DIFFormer")
    error, theirs = math.sqrt(ours["mse"]), math.sqrt(best["mse"])
    steps, origins = record["settings"]["steps"], tested["origins"]
    blocks.append(
        Note(
            f"Off by {number(error, 3)} (root mean squared error) over {steps} steps ahead from "
            f"{len(origins):,} consecutive origins; the best simple forecast, {other}, by "
            f"{number(theirs, 3)}{_beside(error, theirs)}."
        )
    )
    if ours["mae"] > min(e["mae"] for e in tested["methods"].values()):
        name = min(tested["methods"], key=lambda n: tested["methods"][n]["mae"])
        blocks.append(
            Note(
                f"By mean absolute error {name} is better: it counts a large miss no more than "
                "many small ones, and the forecast is a mean, not a median."
            )
        )
    rows = [[n, number(e["mse"]), number(e["mae"]), number(e["mase"], 3)] for n, e in ranked]
    caption = (
        "Errors of forecasts that saw none of these steps; scaled: in units of the mean change "
        "from step to step before them."
    )
    blocks.append(
        Table(caption, ["forecast", "mean squared", "mean absolute", "mean absolute scaled"], rows)
    )
    told = tested["coverage"][str(LEVEL)]
    if told["coverage"] is not None:
        blocks.append(
            Note(
                f"{100 * LEVEL:g} % intervals, each from the errors known before it, held "
                f"{100 * told['coverage']:.0f} % of the values of the later half (pinball loss "
                f"{number(told['pinball'], 3)})."
            )
        )
    if tested.get("left_out"):
        blocks.append(Note(f"{tested['left_out']}."))
    return blocks


def _beside(ours: float, theirs: float) -> str:
    """By how much it is better or worse, where the other's error is not zero."""
    if not theirs:
        return ""
    percent = round(100 * (ours / theirs - 1))
    return f": {abs(percent)} % {'worse' if percent > 0 else 'better'}" if percent else ": level"


def _read(model: Any, record: Mapping[str, Any]) -> list[Any]:
    """How many steps and nodes, from when to when, what is missing, and what was made of it."""
    data = model.series_
    steps, nodes = data.values.shape
    ends = [str(stamp).removesuffix(" 00:00:00") for stamp in (data.stamps[:1] + data.stamps[-1:])]
    span = f", {ends[0]} to {ends[1]}" if len(ends) == 2 else ""
    gone = float(np.isnan(data.values).mean())
    missing = f"{100 * gone:.2g} % of the values are missing" if gone else "no value is missing"
    blocks = [Note(f"{steps:,} steps of {nodes:,} nodes{span}; {missing}.")]
    made = {"sqrt": "the square root", "log": "the logarithm of one more"}
    how = made.get(record.get("transform", ""))
    used = f"{how} is" if how else "the values are"
    told = ", as its change from the last one," if record.get("level") == "last" else ""
    cycle = ", with the place of each step in day, week and year"
    cycle = cycle if record.get("calendar") == "cycles" else ""
    known = ", and what is known ahead" if record.get("known") else ""
    blocks.append(Note(f"Of each node {used} learned from{told}{cycle}{known}."))
    others = mixed_in(record)
    if others:
        blocks.append(Note(f"The forecast is mixed, as validation chose, with {others}."))
    blocks += [Note(f"Put right in reading: {note}.") for note in record.get("notes", ())]
    left = record.get("naive_nodes") or []
    if left:
        named = ", ".join(left[:NAMED]) + (" and others" if len(left) > NAMED else "")
        count = f"{len(left):,} node{'s' if len(left) > 1 else ''}"
        blocks.append(Note(f"{count} left to the last value, because hardly varying: {named}."))
    return blocks


def _fans(model: Any, record: Mapping[str, Any], ahead: Any, half: Any) -> Finder:
    data = model.series_
    names = data.names or tuple(str(j) for j in range(data.values.shape[1]))
    values = data.values[-SHOWN:]
    first = len(data.values) - len(values)
    times = [str(t).removesuffix(" 00:00:00") for t in data.stamps[-SHOWN:]]
    times = times or [str(first + i) for i in range(len(values))]
    later = next_stamps(data, len(ahead))
    sizes = (record.get("backtest") or {}).get("sizes") or [None] * len(names)
    left, least = set(record.get("naive_nodes", ())), bool((values[values == values] >= 0).all())
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
    values: Any, ahead: Any, half: Any, node: int, times: list[str], later: list[str], least: bool
) -> dict[str, Any]:
    line: Any = {"type": "scatter", "mode": "lines"}
    data: list[dict[str, Any]] = []
    if half is not None and np.isfinite(half[:, node]).all():
        low, high = ahead - half[:, node], ahead + half[:, node]
        low = np.maximum(low, 0.0) if least else low
        edge = {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
        data.append({**line, "x": later, "y": rounded(high), **edge})
        fill = {"fill": "tonexty", "fillcolor": "rgba(204,102,119,0.25)"}
        band = {"name": f"{100 * LEVEL:g} % interval", "showlegend": True}
        data.append({**line, "x": later, "y": rounded(low), **edge, **fill, **band})
    known = {"name": "known", "line": {"color": COLOURS[0]}}
    data.append({**line, "x": times, "y": rounded(values), **known})
    forecast = {"name": "forecast", "mode": "lines+markers", "line": {"color": COLOURS[1]}}
    data.append({**line, "x": later, "y": rounded(ahead), **forecast})
    return {"data": data, "layout": {}}


def _map(model: Any, record: Mapping[str, Any], tested: Mapping[str, Any]) -> Plot | None:
    """The nodes where they are, or as their edges place them, coloured by their error."""
    nodes, edges = model.node_names, model.edges_
    places = read_places(record["places"], nodes) if record.get("places") else None
    if places is None and edges is None:
        return None
    if places is None:
        places, where = placed_by_edges(edges, len(nodes)), "as the edges place them"
    else:
        where = "at their coordinates"
    error = np.array([np.nan if size is None else size for size in tested["sizes"]])
    shown = np.flatnonzero(np.isfinite(places).all(1))
    data: list[dict[str, Any]] = []
    if edges is not None and edges.shape[1] <= MOST_EDGES:
        both = [places[edges[0]], places[edges[1]], np.full((edges.shape[1], 2), np.nan)]
        line = np.stack(both, axis=1).reshape(-1, 2)
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": rounded(line[:, 0]),
                "y": rounded(line[:, 1]),
                "line": {"color": "rgba(128,128,128,0.35)", "width": 1},
                "hoverinfo": "skip",
                "showlegend": False,
            }
        )
    names = [plain(nodes[j]) for j in shown]
    data.append(
        {
            "type": "scatter",
            "mode": "markers+text" if len(shown) <= NAMED else "markers",
            "x": rounded(places[shown, 0]),
            "y": rounded(places[shown, 1]),
            "text": names,
            "textposition": "top center",
            "customdata": rounded(error[shown]),
            "hovertemplate": "%{text}: %{customdata}<extra></extra>",
            "marker": {
                "size": 12 if len(shown) <= 100 else 7,
                "color": rounded(error[shown]),
                "colorscale": "YlOrRd",
                "reversescale": True,  # light is small
                "showscale": True,
                "colorbar": {"title": {"text": "error"}, "thickness": 12},
                "line": {"width": 1, "color": "rgba(128,128,128,0.8)"},
            },
            "showlegend": False,
        }
    )
    order = [int(j) for j in np.argsort(-np.nan_to_num(error), kind="stable")]
    bare = {"showgrid": False, "zeroline": False}
    ticks = {} if record.get("places") else {"showticklabels": False}
    return Plot(
        name="map",
        caption=f"The nodes {where}, coloured by mean absolute error in the backtest.",
        alt="Scatter plot of the nodes, coloured by their error.",
        data=data,
        layout={
            "xaxis": {**bare, **ticks},
            "yaxis": {**bare, **ticks, "scaleanchor": "x"},
            "hovermode": "closest",
        },
        table=Table(
            "The same in numbers, largest first.",
            ["node", "mean absolute error"],
            [[nodes[j], number(float(error[j]), 3)] for j in order[:MOST_NODES]],
        ),
    )


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
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": steps,
            "y": rounded(np.sqrt(np.array(told["mse_by_step"], float))),
            "name": name,
            "line": {"color": COLOURS[i % len(COLOURS)], "width": 3 if i == 0 else 1.5},
        }
        for i, (name, told) in enumerate((name, methods[name]) for name in drawn)
    ]
    rows = [[n, *(number(v**0.5) for v in told["mse_by_step"])] for n, told in methods.items()]
    return Plot(
        name="by-step",
        caption="Root mean squared error by step ahead, in the units of the series: ours and the "
        f"{len(drawn) - 1} best of the others.",
        alt="Line plot of the error of every forecast by step ahead.",
        data=data,
        layout={
            "xaxis": {"title": {"text": "steps ahead"}, "dtick": max(1, len(steps) // 12)},
            "yaxis": {"title": {"text": "root mean squared error"}, "rangemode": "tozero"},
        },
        table=Table("The same in numbers.", ["forecast", *map(str, steps)], rows),
    )

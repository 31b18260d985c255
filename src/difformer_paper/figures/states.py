"""Figures 6 and 7: the states of the first and last layer, and the strongest diffusivities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from difformer.blocks import colour
from difformer.data.dataset import Dataset
from difformer.nn.model import DIFFormer
from difformer.report.inside import flow_between, layer_weights, sample_rows, spread, strongest
from difformer.report.states import project
from difformer.runs.open import LoadedRun
from difformer_paper.figures.drawing import MARKERS, Drawn, Row, Work, axes, style

MOST_POINTS, EDGES = 800, 300
KINDS: dict[str, Any] = {
    "points": {"layer": str, "class": str, "row": int},
    "edges": {"layer": str, "target": int, "source": int},
    "layers": {"layer": str, "dataset": str, "rows": int},
}


def make(work: Work) -> Drawn:
    """Draw the first and last layer of the first dataset that was measured."""
    tables = replace(work, runs=work.runs[:1]).look(_look, KINDS)
    layers = list(dict.fromkeys(row["layer"] for row in tables["points"]))
    with style() as new:
        figure = new(7.0, 3.6)
        for ax, layer in zip(axes(figure, 1, 2), layers, strict=True):
            _panel(ax, layer, tables)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, markerscale=1.5)
    return Drawn(figure, _says(tables["layers"]), tables, [_note(tables)])


def _look(run: LoadedRun) -> dict[str, list[Row]]:
    model, data = run.model, run.dataset
    assert isinstance(model, DIFFormer)
    with torch.no_grad():
        states = model.states(data.x)
    layers = layer_weights(model, data.x)
    accuracy = run.result.metrics["test"]["accuracy"]
    rows = sample_rows(data.num_rows, MOST_POINTS)
    tables: dict[str, list[Row]] = {name: [] for name in KINDS}
    for title, k in (("first layer", 0), ("last layer", len(states) - 2)):
        weights = layers[k]
        xy = project(states[k + 1][rows], "tsne")
        tables["points"] += [
            {"layer": title, "row": row, "class": _name(data, row), "x": _few(x), "y": _few(y)}
            for row, (x, y) in zip(rows.tolist(), xy.tolist(), strict=True)
        ]
        pairs = strongest(weights, k=EDGES, rows=rows)
        strength = (pairs.weight / pairs.uniform).tolist()
        tables["edges"] += [
            {"layer": title, "target": i, "source": j, "strength": _few(s)}
            for i, j, s in zip(pairs.target.tolist(), pairs.source.tolist(), strength, strict=True)
        ]
        flow, each = flow_between(weights, data.y), spread(weights, rows)
        same = (data.y[pairs.target] == data.y[pairs.source]).float().mean()
        tables["layers"].append(
            {
                "layer": title,
                "dataset": data.name,
                "rows": data.num_rows,
                "test_accuracy": _few(accuracy),
                "share_within_class": _few(flow.within),
                "share_if_uniform": _few(flow.expected),
                "strongest_within_class": _few(float(same)),
                "effective_neighbours": _few(float(each.median())),
            }
        )
    return tables


def _name(data: Dataset, row: int) -> str:
    label = int(data.y[row])
    return data.class_names[label] if data.class_names else str(label)


def _few(value: float) -> float:
    return float(f"{value:.5g}")


def _panel(ax: Any, layer: str, tables: dict[str, list[Row]]) -> None:
    points = {int(r["row"]): r for r in tables["points"] if r["layer"] == layer}
    for edge in tables["edges"]:
        if edge["layer"] == layer:
            a, b = points[int(edge["target"])], points[int(edge["source"])]
            ax.plot([a["x"], b["x"]], [a["y"], b["y"]], color="#444", lw=0.3, alpha=0.5, zorder=1)
    for i, name in enumerate(sorted({r["class"] for r in points.values()})):
        mine = [r for r in points.values() if r["class"] == name]
        ax.scatter(
            [r["x"] for r in mine],
            [r["y"] for r in mine],
            s=7,
            marker=MARKERS[i % len(MARKERS)],
            color=colour(i),
            linewidths=0,
            label=name,
            zorder=2,
        )
    ax.set_title(f"After the {layer}")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)


def _says(layers: list[Row]) -> list[str]:
    found: list[str] = []
    for row in layers:
        lift = row["strongest_within_class"] / row["share_if_uniform"]
        found.append(
            f"{str(row['layer']).capitalize()}: {100 * row['strongest_within_class']:.0f} % of the "
            f"{EDGES} strongest diffusivities join rows of one class ({lift:.1f} times chance); of "
            f"all diffusivity {100 * row['share_within_class']:.1f} % stays within a class, "
            f"{100 * row['share_if_uniform']:.1f} % if all pairs were alike."
        )
    last = layers[-1]
    across = last["strongest_within_class"] < 0.5
    found.append(
        "Most of the strongest join different classes, as the paper observes."
        if across
        else "The paper observes that strong diffusivities tend to join different classes; here "
        "the strongest stay within one."
    )
    return found


def _note(tables: dict[str, list[Row]]) -> str:
    row = tables["layers"][0]
    return (
        f"{row['dataset']}, {int(row['rows']):,} rows, DIFFormer-s of two layers with learned "
        f"queries and keys, 20 labels per class (split random:0, seed 0), test accuracy "
        f"{100 * row['test_accuracy']:.1f} %; {MOST_POINTS} rows are drawn, by t-SNE, with the "
        f"{EDGES} strongest diffusivities among them."
    )

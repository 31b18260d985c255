"""Figures 6, 7 and 8: what trained models show of themselves, their states and diffusivities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from difformer.blocks import colour
from difformer.data.snapshots import TemporalDataset
from difformer.nn.model import DIFFormer
from difformer.report.inside import (
    flow_between,
    layer_weights,
    project,
    sample_rows,
    spread,
    strongest,
)
from difformer.runs.open import LoadedRun
from difformer_paper.figures.drawing import (
    MARKERS,
    Drawn,
    Row,
    Tables,
    Work,
    axes,
    few,
    style,
    table,
)

MOST_POINTS, EDGES = 800, 300
TITLES = {"simple": "DIFFormer-s", "sigmoid": "DIFFormer-a"}
SNAPSHOTS = 5  # the first of the test weeks


def states(work: Work) -> Drawn:
    """Figures 6 and 7: the first and last layer, and the strongest diffusivities of each."""
    first = replace(work, runs=work.runs[:1])  # of the first dataset that was measured
    tables = first.look(_look_at_states, ("points", "edges", "layers"))
    with style() as new:
        figure = new(7.0, 3.6)
        for ax, row in zip(axes(figure, 1, 2), tables["layers"], strict=True):
            _panel(ax, row["layer"], tables)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, markerscale=1.5)
    row = tables["layers"][0]
    note = (
        f"{row['dataset']}, {row['rows']:,} rows, DIFFormer-s of two layers with learned "
        f"queries and keys, 20 labels per class (split random:0, seed 0), test accuracy "
        f"{100 * row['test_accuracy']:.1f} %; {MOST_POINTS} rows are drawn, by t-SNE, with the "
        f"{EDGES} strongest diffusivities among them."
    )
    return Drawn(figure, _say_states(tables["layers"]), tables, note)


def _look_at_states(run: LoadedRun) -> Tables:
    model, data = run.model, run.dataset
    assert isinstance(model, DIFFormer)
    with torch.no_grad():
        after = model.states(data.x)[1:]
    rows, layers = sample_rows(data.num_rows, MOST_POINTS), layer_weights(model, data.x)
    names = [data.class_names[y] if data.class_names else str(y) for y in data.y[rows].tolist()]
    tables: Tables = {"points": [], "edges": [], "layers": []}
    for layer, k in (("first layer", 0), ("last layer", -1)):
        weights, (x, y) = layers[k], project(after[k][rows], "tsne").T.tolist()
        title = [layer] * len(rows)
        tables["points"] += table(
            {"layer": title, "row": rows.tolist(), "class": names, "x": x, "y": y}
        )
        target, source, weight = strongest(weights, k=EDGES, rows=rows)
        ends = {"target": target.tolist(), "source": source.tolist()}
        strength = (weight * weights.n).tolist()
        tables["edges"] += table({"layer": [layer] * len(strength), **ends, "strength": strength})
        _, within, alike = flow_between(weights, data.y)
        same = (data.y[target] == data.y[source]).float().mean()
        tables["layers"].append(
            {
                "layer": layer,
                "dataset": data.name,
                "rows": data.num_rows,
                "test_accuracy": few(run.result.metrics["test"]["accuracy"]),
                "share_within_class": few(within),
                "share_if_uniform": few(alike),
                "strongest_within_class": few(float(same)),
                "effective_neighbours": few(float(spread(weights, rows).median())),
            }
        )
    return tables


def _panel(ax: Any, layer: str, tables: Tables) -> None:
    points = {row["row"]: row for row in tables["points"] if row["layer"] == layer}
    for edge in tables["edges"]:
        if edge["layer"] == layer:
            a, b = points[edge["target"]], points[edge["source"]]
            ax.plot([a["x"], b["x"]], [a["y"], b["y"]], color="#444", lw=0.3, alpha=0.5, zorder=1)
    for i, name in enumerate(sorted({row["class"] for row in points.values()}, key=str)):
        mine = [row for row in points.values() if row["class"] == name]
        ax.scatter(
            [row["x"] for row in mine],
            [row["y"] for row in mine],
            s=7,
            marker=MARKERS[i % len(MARKERS)],
            color=colour(i),
            linewidths=0,
            label=name,
            zorder=2,
        )
    ax.set(title=f"After the {layer}", xticks=[], yticks=[])
    ax.grid(False)


def _say_states(layers: list[Row]) -> list[str]:
    found = [
        f"{row['layer'].capitalize()}: {100 * row['strongest_within_class']:.0f} % of the "
        f"{EDGES} strongest diffusivities join rows of one class "
        f"({row['strongest_within_class'] / row['share_if_uniform']:.1f} times chance); of "
        f"all diffusivity {100 * row['share_within_class']:.1f} % stays within a class, "
        f"{100 * row['share_if_uniform']:.1f} % if all pairs were alike."
        for row in layers
    ]
    across = layers[-1]["strongest_within_class"] < 0.5
    found.append(
        "Most of the strongest join different classes, as the paper observes."
        if across
        else "The paper observes that strong diffusivities tend to join different classes; here "
        "the strongest stay within one."
    )
    return found


def chickenpox(work: Work) -> Drawn:
    """Figure 8: the mean Ŝ of both layers of both models over five test weeks, (n, n) each."""
    tables = work.look(_look_at_counties, ("layers", "weights"))
    layers, pairs = tables["layers"], [row["weight"] for row in tables["weights"]]
    n = round((len(pairs) / len(layers)) ** 0.5)
    with style() as new:
        figure = new(6.4, 5.4)
        every = torch.tensor(pairs).view(-1, n, n)
        for ax, row, weights in zip(axes(figure, 2, 2), layers, every, strict=True):
            shown = ax.imshow((weights * n).numpy(), cmap="Blues")
            ax.grid(False)
            ax.set(
                title=f"{row['system']}, layer {row['layer']}",
                xticks=range(0, n, 5),
                yticks=range(0, n, 5),
                xlabel="from county",
                ylabel="to county",
            )
            figure.colorbar(shown, ax=ax, shrink=0.8, label="times uniform")
    says = [
        f"{row['system']}, layer {row['layer']}: a county listens to "
        f"{row['effective_neighbours']:.1f} of {n} in effect, the largest weight is "
        f"{row['largest_over_uniform']:.2f} times uniform, and weights correlate with the "
        f"closeness of targets by {row['correlation_with_closeness_of_targets']:+.2f}."
        for row in layers
    ]
    closer = all(row["correlation_with_closeness_of_targets"] > 0 for row in layers)
    says.append(
        "Large diffusivities go with close targets in every layer, as the paper says."
        if closer
        else "The paper's finding that large diffusivities go with similar targets does not hold "
        "in every layer here."
    )
    note = (
        "Width 4, two layers, no graph, no layer-wise transformation, learning rate 0.01, seed 0, "
        f"2:2:6 in time order; Ŝ averaged over the first {SNAPSHOTS} test weeks. Squared error, "
        "not the released code's broadcast cost."
    )
    return Drawn(figure, says, tables, note)


def _look_at_counties(run: LoadedRun) -> Tables:
    model, data = run.model, run.dataset
    assert isinstance(model, DIFFormer)
    assert isinstance(data, TemporalDataset)
    n, tables = data.num_nodes, Tables(layers=[], weights=[])
    names = data.node_names or tuple(map(str, range(n)))
    first = int(run.split.test[0]) // n
    for layer in range(2):
        weights, agree = _weights(model, data, first, layer)
        top = weights.flatten().topk(20).values.sum() / weights.sum()
        which = {"system": TITLES[model.config.kernel], "layer": layer + 1}
        tables["layers"].append(
            {
                **which,
                "test_mse": round(run.result.metrics["test"]["mse"], 4),
                "effective_neighbours": round(float((1 / weights.square().sum(1)).mean()), 3),
                "largest_over_uniform": round(float(weights.max() * n), 3),
                "share_of_20_strongest": round(float(top), 4),
                "correlation_with_closeness_of_targets": round(agree, 3),
            }
        )
        tables["weights"] += [
            {**which, "to": to, "from": source, "weight": round(w, 6)}
            for to, row in zip(names, weights.tolist(), strict=True)
            for source, w in zip(names, row, strict=True)
        ]
    return tables


def _weights(
    model: DIFFormer, data: TemporalDataset, first: int, layer: int
) -> tuple[Tensor, float]:
    """Mean Ŝ (n, n), and how it goes with the closeness of the counties' targets."""
    n = data.num_nodes
    total, scores, off = torch.zeros(n, n), list[Tensor](), ~torch.eye(n, dtype=torch.bool)
    for week in range(first, first + SNAPSHOTS):
        rows = slice(week * n, (week + 1) * n)
        weights = layer_weights(model, data.x[rows])[layer].rows(torch.arange(n))
        y = data.y[rows].flatten()
        apart = (y.unsqueeze(0) - y.unsqueeze(1)).abs()
        scores.append(torch.corrcoef(torch.stack([weights[off], -apart[off]]))[0, 1].nan_to_num())
        total += weights / SNAPSHOTS
    return total, float(torch.stack(scores).mean())

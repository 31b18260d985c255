"""Figures 3, 6, 7 and 8: penalties, and what trained models show of themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from difformer.blocks import COLOURS, colour
from difformer.core.diffusivity import Diffusivity, Sharp, Sigmoid, Simple
from difformer.core.rows import squared_distances
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
        places = {"row": rows.tolist(), "class": names, "x": x, "y": y}
        tables["points"] += table(places, layer=layer)
        target, source, weight = strongest(weights, k=EDGES, rows=rows)
        ends = {"target": target.tolist(), "source": source.tolist()}
        strength = (weight * weights.n).tolist()
        tables["edges"] += table({**ends, "strength": strength}, layer=layer)
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


# An offset at which a state half a unit away has half the largest weight.
OFFSET = 1 - 0.5**2 / 2
KINDS: dict[str, Diffusivity] = {
    "DIFFormer-s": Simple(),
    "DIFFormer-a": Sigmoid(),
    "sharp, s = 20": Sharp(20.0, offset=OFFSET),
    "sharp, s = 80": Sharp(80.0, offset=OFFSET),
}
POINTS, GRID, SEED = 10, 41, 0


def penalties(_: Work) -> Drawn:
    """Figure 3: δ and f, the flow of ten random points, and the energy of one more point.

    Beside the paper's two rows, the sharp form at two sharpnesses: it cuts off far pairs, so the
    energy has a basin per cluster where the paper's has one for all. No training: everything
    follows from the diffusivities.
    """
    points = random_points()
    side = torch.linspace(-1, 1, GRID, dtype=torch.float64)
    y, x = torch.meshgrid(side, side, indexing="ij")
    grid = torch.stack([x.flatten(), y.flatten()], 1)  # (GRID², 2)
    z2 = torch.linspace(0, 4, 81, dtype=torch.float64)
    fields = {name: field_of(kind, grid, points) for name, kind in KINDS.items()}
    with style() as new:
        figure = new(7.0, 2.2 * len(KINDS))
        every = iter(axes(figure, len(KINDS), 3))
        for name, kind in KINDS.items():
            _curves(next(every), name, kind, z2)
            _flow(next(every), side.numpy(), fields[name]["flow"], points)
            _energy(next(every), side.numpy(), fields[name]["energy"], points)
    curves, field = {"z2": z2}, {"x": grid[:, 0], "y": grid[:, 1]}
    for name, kind in KINDS.items():
        curves |= {f"f {name}": kind.f(z2), f"delta {name}": kind.delta(z2)}
        flow = fields[name]["flow"]
        field |= {f"flow x {name}": flow[:, 0], f"flow y {name}": flow[:, 1]}
        field[f"energy {name}"] = fields[name]["energy"]
    columns = {"curves": curves, "field": field, "points": {"x": points[:, 0], "y": points[:, 1]}}
    tables = {
        name: table({title: column.tolist() for title, column in each.items()}, digits=6)
        for name, each in columns.items()
    }
    return Drawn(figure, _say_penalties([field["energy"] for field in fields.values()]), tables)


def random_points() -> Tensor:
    """Ten points of the unit disc: close enough to each other that f is non-negative."""
    generator = torch.Generator().manual_seed(SEED)
    angle = 2 * torch.pi * torch.rand(POINTS, generator=generator, dtype=torch.float64)
    radius = torch.rand(POINTS, generator=generator, dtype=torch.float64).sqrt() * 0.9
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


def field_of(kind: Diffusivity, grid: Tensor, points: Tensor) -> dict[str, Tensor]:
    """At each place: the flow Σ_j ω_j (z_j − z) / Σ_j ω_j, the energy Σ_j δ(‖z − z_j‖²) − δ(0)."""
    z2 = squared_distances(grid, points)
    omega = kind.f(z2).clamp_min(0)
    flow = omega @ points / omega.sum(1, keepdim=True) - grid
    return {"flow": flow, "energy": (kind.delta(z2) - kind.delta(z2.new_zeros(()))).sum(1)}


def _curves(ax: Any, name: str, kind: Diffusivity, z2: Tensor) -> None:
    ax.plot(z2, kind.delta(z2) - kind.delta(torch.zeros_like(z2[:1])), label="δ(z²) − δ(0)")
    ax.plot(z2, kind.f(z2), "--", label="f(z²) = δ′(z²)")
    ax.set(title=name, xlabel="z², squared distance of two states", xlim=(0, 4), ylim=(0, None))
    ax.legend()


def _flow(ax: Any, s: Any, flow: Tensor, points: Tensor) -> None:
    u, v, speed = (
        part.reshape(GRID, GRID).numpy() for part in (flow[:, 0], flow[:, 1], flow.norm(dim=1))
    )
    look: Any = {"cmap": "cividis", "density": 0.6, "linewidth": 0.7, "arrowsize": 0.6}
    ax.streamplot(s, s, u, v, color=speed, **look)
    _stars(ax, points)
    ax.set_title("flow of ten random states")


def _energy(ax: Any, s: Any, energy: Tensor, points: Tensor) -> None:
    values = energy.reshape(GRID, GRID).numpy()
    shown = ax.contourf(s, s, values, levels=9, cmap="Blues_r")
    ax.contour(s, s, values, levels=9, colors="#333", linewidths=0.3)
    _stars(ax, points)
    ax.set_title("energy of one more state")
    ax.figure.colorbar(shown, ax=ax, shrink=0.85)


def _stars(ax: Any, points: Tensor) -> None:
    ax.plot(points[:, 0], points[:, 1], "*", color=COLOURS[1], ms=7, mec="white", mew=0.4)
    ax.set(aspect="equal", xlim=(-1, 1), ylim=(-1, 1))
    ax.grid(False)


def basins(energy: Tensor) -> int:
    """The number of places of the grid whose energy is below that of all their neighbours."""
    energy = energy.reshape(1, 1, GRID, GRID)
    lowest = -torch.nn.functional.max_pool2d(-energy, 3, stride=1, padding=1)
    return int((energy == lowest)[..., 1:-1, 1:-1].sum())


def _say_penalties(energies: list[Tensor]) -> list[str]:
    rims = [float(energy.max() / energy.min()) for energy in energies]
    wells = [basins(energy) for energy in energies]
    return [
        "All penalties δ grow and flatten with distance, so f, the diffusivity, falls: near states "
        "pull harder than far ones, as in the paper. For -s f falls along a straight line to 0 at "
        "z² = 4 (unit vectors reach 4, not 2 as the text says); for -a it stays above "
        f"{float(Sigmoid().f(torch.tensor(4.0))):.2f} and bends most near z² = 2.",
        f"The energy of -s has {wells[0]} basin and that of -a {wells[1]}, among the ten states: "
        f"its rim is {rims[0]:.1f} times as high as its floor for -s and {rims[1]:.1f} times "
        "for -a, so the flow of both leads to the middle.",
        f"The sharp form has {wells[2]} basins at s = 20 and {wells[3]} at s = 80, one for each "
        "cluster of states: what is further away than half a unit is cut off, and a state flows "
        "to its own cluster.",
    ]

"""Figure 8: the strongest diffusivities of a layer on a few snapshots, nodes coloured by target."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from difformer.data.snapshots import TemporalDataset
from difformer.nn.model import DIFFormer

__all__ = ["SnapshotEdges", "draw_snapshots", "snapshot_edges"]


@dataclass(frozen=True)
class SnapshotEdges:
    """The strongest pairs of one snapshot: weight[k] is Ŝ between query[k] and key[k]."""

    snapshot: int
    query: tuple[int, ...]
    key: tuple[int, ...]
    weight: tuple[float, ...]
    target: tuple[float, ...]  # of every node


def snapshot_edges(
    model: DIFFormer,
    dataset: TemporalDataset,
    *,
    snapshots: Sequence[int] = (0, 1, 2),
    layer: int = 0,
    top: int = 100,
) -> list[SnapshotEdges]:
    """The `top` largest Ŝ_ij, i ≠ j, of each snapshot; every row of Ŝ sums to one. O(n²) each."""
    n = dataset.num_nodes
    model.eval()
    found: list[SnapshotEdges] = []
    for snapshot in snapshots:
        if not 0 <= snapshot < dataset.num_snapshots:
            last = dataset.num_snapshots - 1
            raise ValueError(f"snapshots must lie in 0 to {last}, got {snapshot}")
        rows = slice(snapshot * n, (snapshot + 1) * n)
        edges = dataset.edges_at(snapshot)
        given = (None, None) if edges is None else edges
        weights = model.diffusivity(dataset.x[rows], given[0], given[1], layer=layer)
        assert isinstance(weights, torch.Tensor)
        apart = weights.clone().fill_diagonal_(-math.inf).flatten()
        best = apart.topk(min(top, n * (n - 1)))
        found.append(
            SnapshotEdges(
                snapshot,
                tuple((best.indices // n).tolist()),
                tuple((best.indices % n).tolist()),
                tuple(best.values.tolist()),
                tuple(dataset.y[rows, 0].tolist()),
            )
        )
    return found


def draw_snapshots(
    panels: Mapping[str, Sequence[SnapshotEdges]],
    folder: Path,
    *,
    name: str = "fig8",
    node_names: Sequence[str] = (),
) -> list[Path]:
    """A row of circles for each model, a column a snapshot: PNG, SVG, and the data as CSV.

    Nodes go from red to blue as their target grows, edges from blue to red as Ŝ does.
    """
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "difformer", "font.size": 8}):
        figure = _figure(panels, node_names)
        folder.mkdir(parents=True, exist_ok=True)
        images = [folder / f"{name}.png", folder / f"{name}.svg"]
        figure.savefig(images[0], dpi=150, metadata={"Software": None})
        figure.savefig(images[1], metadata={"Date": None, "Creator": None})
    return [*images, _write_csv(panels, folder / f"{name}.csv", node_names)]


def _figure(panels: Mapping[str, Sequence[SnapshotEdges]], node_names: Sequence[str]) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    columns = max(len(row) for row in panels.values())
    figure = Figure(figsize=(3.2 * columns, 3.3 * len(panels)), layout="constrained")
    axes: Any = figure.subplots(len(panels), columns, squeeze=False)
    for row, (title, snapshots) in zip(axes, panels.items(), strict=True):
        for axis, found in zip(row, snapshots, strict=True):
            n = len(found.target)
            place = [
                (math.cos(2 * math.pi * i / n), math.sin(2 * math.pi * i / n)) for i in range(n)
            ]
            strength = Normalize(min(found.weight), max(found.weight))
            # The strongest last, so that nothing hides it.
            pairs = zip(found.weight[::-1], found.query[::-1], found.key[::-1], strict=True)
            for weight, i, j in pairs:
                ends = ((place[i][0], place[j][0]), (place[i][1], place[j][1]))
                axis.plot(*ends, color=colormaps["coolwarm"](strength(weight)), lw=0.8, zorder=1)
            xs, ys = zip(*place, strict=True)
            axis.scatter(
                xs, ys, c=found.target, cmap="coolwarm_r", s=45, zorder=2, ec="black", lw=0.4
            )
            for i, label in enumerate(node_names):
                x, y = 1.12 * place[i][0], 1.12 * place[i][1]
                turn = math.degrees(math.atan2(y, x))
                flip = abs(turn) > 90
                axis.text(
                    x, y, label.title(), rotation=turn + 180 * flip, fontsize=4.5,
                    ha="right" if flip else "left", va="center", rotation_mode="anchor",
                )  # fmt: skip
            axis.set(xlim=(-1.55, 1.55), ylim=(-1.55, 1.55), aspect="equal")
            axis.set_title(f"{title}, snapshot {found.snapshot + 1}")
            axis.axis("off")
    return figure


def _write_csv(
    panels: Mapping[str, Sequence[SnapshotEdges]], path: Path, node_names: Sequence[str]
) -> Path:
    def called(node: int) -> str:
        return node_names[node] if node_names else str(node)

    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "snapshot", "query", "key", "diffusivity", "query target"])
        for title, snapshots in panels.items():
            for found in snapshots:
                for i, j, weight in zip(found.query, found.key, found.weight, strict=True):
                    line = [title, found.snapshot + 1, called(i), called(j), f"{weight:.6g}"]
                    writer.writerow([*line, f"{found.target[i]:.6g}"])
    return path

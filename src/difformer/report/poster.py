"""What diffusion does to the rows of a trained model: their states before and after, the energy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import DifformerError
from difformer.report.blocks import (
    Note,
    Plot,
    Section,
    Table,
    axis,
    colour,
    number,
    plain,
    rounded,
    scatter,
)

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset

__all__ = ["Poster", "draw_poster", "poster_of", "poster_section"]

ROWS = 1000  # rows drawn: t-SNE of more would take longer than the training


@dataclass(frozen=True)
class Poster:
    """States of some rows in two dimensions, before and after diffusion, and the energies."""

    before: list[list[float]]  # (rows, 2)
    after: list[list[float]]
    classes: list[int]
    names: list[str]
    energies: list[float]  # of Z⁽⁰⁾, then after each layer

    @property
    def fall(self) -> float:
        """The share of the first energy that the layers take away."""
        return 1 - self.energies[-1] / self.energies[0]


def poster_of(folder: Path, dataset: Dataset) -> Poster:
    """The poster of a run's DIFFormer: two t-SNE projections and one energy per layer."""
    from difformer.experiments.loaded import load_run
    from difformer.report.embedding import project, sample_rows
    from difformer.report.energy import check_energy
    from difformer.report.inspection import inspect_run

    found = inspect_run(load_run(folder, dataset=dataset))
    if found.difformer is None:
        raise DifformerError(f"{folder} has no DIFFormer to look into")
    shown = sample_rows(dataset.num_rows, ROWS)
    before, after = (project(found.states[i][shown], "tsne") for i in (0, -1))
    layers = check_energy(found.difformer, dataset.x, found.graph).layers
    return Poster(
        before=before.tolist(),
        after=after.tolist(),
        classes=dataset.y[shown].tolist(),
        names=[name.replace("_", " ") for name in found.class_names],
        energies=[layers[0].start, *(layer.end for layer in layers)],
    )


def poster_section(poster: Poster) -> Section:
    """The three pictures for a page."""
    about = (
        "Every point is a row, coloured by its true class, which the model was told for few of "
        "them. Before diffusion its place comes from its own features. Each layer then moves every "
        "row towards a weighted average of all rows and of its neighbours, and the energy falls."
    )
    blocks = [
        Note(about),
        _states("before", "Before diffusion: each row by itself", poster.before, poster),
        _states("after", "After diffusion: what the last layer sees", poster.after, poster),
        _energy(poster),
    ]
    return Section("diffusion", "What diffusion does", blocks)


def draw_poster(poster: Poster, path: Path) -> Path:
    """The three pictures side by side in one file; its suffix (svg, png) decides the format."""
    from difformer.report.figures.drawing import axes, save_image, style

    with style() as make:
        figure = make(12.0, 3.8)
        shown = axes(figure, 1, 3)
        both = {"Before diffusion": poster.before, "After diffusion": poster.after}
        for axis, (title, points) in zip(shown, both.items(), strict=False):
            for label, name in enumerate(poster.names):
                x, y = _of_class(points, poster, label)
                axis.scatter(x, y, s=5, color=colour(label), label=name)
            axis.set(title=title, xticks=[], yticks=[])
        figure.legend(*shown[0].get_legend_handles_labels(), loc="outside lower left", ncols=7)
        shown[2].plot(poster.energies, marker="o", color=colour(0))
        shown[2].set(title="The energy falls", xlabel="layer", ylim=(0, None))
        return save_image(figure, path)


def _of_class(points: list[list[float]], poster: Poster, label: int) -> tuple[list[Any], list[Any]]:
    found = [p for p, c in zip(points, poster.classes, strict=True) if c == label]
    return rounded(p[0] for p in found), rounded(p[1] for p in found)


def _states(name: str, caption: str, points: list[list[float]], poster: Poster) -> Plot:
    data: list[dict[str, Any]] = []
    for label, title in enumerate(poster.names):
        x, y = _of_class(points, poster, label)
        data.append(
            scatter(
                x,
                y,
                "markers",
                name=plain(title),
                marker={"color": colour(label), "size": 5, "opacity": 0.8},
                hovertemplate=f"{plain(title)}<extra></extra>",
            )
        )
    hidden = {"visible": False}
    return Plot(
        name=f"states-{name}",
        caption=f"{caption} ({len(poster.classes):,} rows, t-SNE).",
        alt=f"Scatter plot of the rows' states {name} diffusion, one colour per class.",
        data=data,
        layout={
            "xaxis": hidden,
            "yaxis": hidden,
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "legend": {"orientation": "h", "x": 0, "y": -0.02, "yanchor": "top"},
        },
    )


def _energy(poster: Poster) -> Plot:
    layers = list(range(len(poster.energies)))
    rows = [[str(k), number(e)] for k, e in zip(layers, poster.energies, strict=True)]
    return Plot(
        name="energy",
        caption=f"The energy of the states by layer: {100 * poster.fall:.0f} % less at the end.",
        alt=f"Line plot of the energy, from {number(poster.energies[0])} to "
        f"{number(poster.energies[-1])}.",
        data=[
            scatter(
                layers,
                rounded(poster.energies),
                "lines+markers",
                line={"color": colour(0), "width": 3},
                marker={"size": 9},
                hovertemplate="layer %{x}: %{y:,.4g}<extra></extra>",
            )
        ],
        layout={
            "xaxis": axis("layer", dtick=1),
            "yaxis": axis("energy", rangemode="tozero"),
        },
        table=Table("Energy by layer.", ["layer", "energy"], rows),
    )

"""The figures of the paper, drawn from what was measured: `make_figure("fig3", "results")`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

__all__ = ["FIGURES", "make_figure"]


class Entry(NamedTuple):
    """The module and function that draw a figure, and what the figure is."""

    module: str
    draw: str
    title: str
    looks: bool = False  # whether it needs the models of its runs, not only their metrics


STATES = "States and diffusivities of the first and last layer: "
FIGURES: dict[str, Entry] = {
    "fig2a": Entry(
        "measured", "ablation", "Ablation of diffusivities: CIFAR-10 features and digits"
    ),
    "fig2b": Entry("measured", "depth", "Depth and step size on Cora"),
    "fig3": Entry("looked", "penalties", "Penalties, flow and energy of -s, -a and the sharp form"),
    "fig4": Entry("measured", "ablation", "Ablation of diffusivities: STL-10 and 20News"),
    "fig5": Entry("measured", "depth", "Depth and step size on Citeseer and Pubmed"),
    "fig6": Entry("looked", "states", f"{STATES}20News", looks=True),
    "fig7": Entry("looked", "states", f"{STATES}images", looks=True),
    "fig8": Entry(
        "looked", "chickenpox", "Diffusivities between the counties of Chickenpox", looks=True
    ),
}


def make_figure(
    name: str,
    out: Path | str = "results",
    *,
    runs: Sequence[Path] = (),
    data_dir: Path | str | None = None,
) -> list[Path]:
    """Draw a figure and return the files written.

    PNG, SVG, the numbers as CSV and a README.md that says what the figure shows, all in
    `out`/`name`. `difformer reproduce` measures a figure by its spec, cell by cell like a table.

    Args:
        runs: folders of the spec's runs, for a figure that looks into their models; without them
            it is drawn from the numbers kept in `out`/`name`.
    """
    if name not in FIGURES:
        raise ValueError(f"figure must be one of {', '.join(FIGURES)}, got {name!r}")
    from difformer_paper.figures.drawing import Work, save

    work = Work(name, FIGURES[name].title, Path(out) / name, tuple(runs), data_dir)
    work.folder.mkdir(parents=True, exist_ok=True)
    module = import_module(f"{__name__}.{FIGURES[name].module}")
    return save(work, getattr(module, FIGURES[name].draw)(work))

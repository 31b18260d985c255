"""Where our rows of a measured table are below the published figure or behind another system.

In a page, `losses` in a marker of tables.py lists them.
"""

from __future__ import annotations

from difformer.baselines.registry import get_system
from difformer.experiments.reproduce import CellResult
from difformer.experiments.tables import ERRORS, Line, View

__all__ = ["losses"]

OURS = "difformer"  # the file of the model that all of our systems share


def losses(view: View) -> str:
    """One list item per row of ours: per column the published figure and the best system ahead."""
    lines = list(view.lines())
    ours = [line for line in lines if get_system(line.system).module == OURS]
    others = [line for line in lines if line not in ours]
    return "\n".join(f"- {_told(view, line, others)}" for line in ours if any(line.cells))


def _told(view: View, line: Line, others: list[Line]) -> str:
    found: list[str] = []
    for place, (title, cell) in enumerate(zip(view.titles, line.cells, strict=True)):
        if cell is None or not cell.runs:
            continue
        own, told = _figure(view, cell), list[str]()
        published = view.published(line.system)[place]
        if isinstance(published, tuple) and _below(view, cell, own, published[0]):
            told.append(f"the published {published[0]:g}")
        there = [(other.title, other.cells[place]) for other in others]
        figures = [(_figure(view, theirs), who) for who, theirs in there if theirs and theirs.runs]
        ahead = sorted((f for f in figures if _below(view, cell, own, f[0])), reverse=True)
        if ahead:
            more = f" and {len(ahead) - 1} more" if ahead[1:] else ""
            told.append(f"{ahead[0][1]} {_shown(view, ahead[0][0])}{more}")
        if told:
            found.append(f"{title} {_shown(view, own)}, behind {' and '.join(told)}")
    return f"{line.title}, {line.variant.title}: {'; '.join(found) or 'nowhere'}."


def _figure(view: View, cell: CellResult) -> float:
    return (100 if view.spec.percent else 1) * cell.mean(view.spec.metric_of(cell.column))


def _below(view: View, cell: CellResult, ours: float, theirs: float) -> bool:
    """Whether ours is worse, in the digits that are shown."""
    sign = -1 if view.spec.metric_of(cell.column) in ERRORS else 1
    digits = 1 if view.spec.percent else 3
    return sign * round(ours, digits) < sign * round(theirs, digits)


def _shown(view: View, figure: float) -> str:
    return f"{figure:.1f}" if view.spec.percent else f"{figure:.3f}"

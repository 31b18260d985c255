"""Mean ranks of the rows of a measured table over its columns, and which of them differ.

In a page, `ranks` in a marker of tables.py shows them (Demšar 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from difformer.experiments.statistics import CONFIDENCE
from difformer.experiments.tables import ERRORS, Line, Table, View

__all__ = ["Ranks", "rank", "ranks_table"]


@dataclass(frozen=True)
class Ranks:
    """Friedman's test and Nemenyi's critical difference for k systems on b blocks.

    Args:
        ranks: one tuple per system, its rank on every block; equal figures share their mean rank.
        p: how likely ranks this unlike are if all systems were equal.
        critical: mean ranks further apart than this differ at 95 %, all pairs together.
    """

    ranks: tuple[tuple[float, ...], ...]
    p: float
    critical: float

    @property
    def means(self) -> tuple[float, ...]:
        """The mean rank of each system."""
        return tuple(sum(each) / len(each) for each in self.ranks)


def rank(figures: Sequence[Sequence[float]]) -> Ranks:
    """Rank systems on every block, 1 for the highest figure.

        χ² = 12 b / (k (k + 1)) · Σ (r̄_i − (k + 1) / 2)²,  CD = q √(k (k + 1) / 6 b)

    with q the studentised range of k groups over √2; χ² is corrected for ties.

    Args:
        figures: one row per system, one figure per block; higher is better.
    """
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    k, blocks = len(figures), len(figures[0])
    if k < 3 or blocks < 2:
        raise ValueError(f"ranks need three systems on two columns, got {k} on {blocks}")
    columns = [rankdata([-row[b] for row in figures]) for b in range(blocks)]
    ranks = tuple(tuple(float(column[i]) for column in columns) for i in range(k))
    p = float(friedmanchisquare(*figures).pvalue)
    q = float(studentized_range.ppf(CONFIDENCE, k, float("inf"))) / sqrt(2)
    return Ranks(ranks, p, q * sqrt(k * (k + 1) / (6 * blocks)))


def ranks_table(view: View) -> Table:
    """The rows that have a figure in every column, best mean rank first."""
    lines = [line for line in view.lines() if all(cell and cell.runs for cell in line.cells)]
    found = rank([_figures(view, line) for line in lines])
    order = sorted(range(len(lines)), key=lambda i: found.means[i])
    best = found.means[order[0]]
    rows = tuple(
        (
            lines[i].title,
            lines[i].variant.title,
            f"{found.means[i]:.1f}",
            *(f"{value:g}" for value in found.ranks[i]),
            "yes" if found.means[i] - best > found.critical else "",
        )
        for i in order
    )
    note = (
        f"Ranks by the mean of each cell: {len(lines)} rows on {len(view.names)} columns. "
        f"Friedman's test: p = {found.p:.2g}. Mean ranks that differ by more than "
        f"{found.critical:.1f} differ at 95 % (Nemenyi's test of all pairs)."
    )
    header = ("Model", "Settings", "Mean rank", *view.titles, "Behind the first beyond chance")
    return Table(header, rows, (note,))


def _figures(view: View, line: Line) -> list[float]:
    metrics = [view.spec.metric_of(name) for name in view.names]
    pairs = zip(metrics, line.cells, strict=True)
    return [(-1 if m in ERRORS else 1) * cell.mean(m) for m, cell in pairs if cell is not None]

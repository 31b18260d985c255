"""What a measured table says: settings that differ, paired differences, ranks and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from difformer.blocks import EMPTY, Table
from difformer.metrics import METRICS
from difformer.statistics import CONFIDENCE, Difference, paired_difference
from difformer.systems.registry import get_system
from difformer.systems.system import OURS
from difformer_paper.measure import CellResult
from difformer_paper.specs import Cell, Spec
from difformer_paper.tables import Line, View


def differing_settings(view: View, base: str) -> str:
    """One list item per system and variant that was measured: its settings where they differ."""
    if base not in view.spec.variants:
        raise ValueError(f"settings must be one of {', '.join(view.spec.variants)}, got {base!r}")
    items: dict[str, dict[str, dict[str, str]]] = {}
    for line in view.lines():
        if line.variant.name == base or not any(line.cells):
            continue
        item = items.setdefault(f"{line.title}, {line.variant.title}", {})
        for name, title in zip(view.names, view.titles, strict=True):
            ours, other = (
                view.spec.cells(
                    systems=[line.system],
                    columns=[name],
                    variants=[variant],
                    protocols=[line.protocol.name],
                )[0]
                for variant in (line.variant.name, base)
            )
            item.setdefault(title, {})[line.protocol.title] = _changes(ours, other)
    return "\n".join(
        f"- {who}: {'; '.join(_told_setting(*column) for column in columns.items())}."
        for who, columns in items.items()
    )


def _told_setting(title: str, by_protocol: dict[str, str]) -> str:
    """The settings of one column, and where they are not the same, those of each kind of split."""
    first, *others = dict.fromkeys(by_protocol.values())
    if not others:
        return f"{title} {first}"
    return f"{title} " + ", ".join(f"{words} ({how})" for how, words in by_protocol.items())


def _changes(cell: Cell, other: Cell) -> str:
    ours, theirs = _settings(cell), _settings(other)
    changed = [f"`{key}` {value}" for key, value in ours.items() if theirs.get(key) != value]
    return ", ".join(changed) or "the same"


def _settings(cell: Cell) -> dict[str, Any]:
    experiment = cell.experiments()[0]
    return {**experiment.data, **experiment.model, **vars(experiment.train)}


SAME = "*"


def paired_table(view: View, reference: str) -> Table:
    """Each measured row minus the reference on the runs both have, with a 95 % interval.

    Args:
        reference: "SYSTEM:VARIANT", or "*:VARIANT" for each system's own.
    """
    spec = view.spec
    system, _, variant = reference.partition(":")
    if system not in (*spec.systems, SAME) or variant not in spec.variants:
        raise ValueError(f"paired must be SYSTEM:VARIANT of {spec.name}, got {reference!r}")
    rows: list[tuple[str, ...]] = []
    for line in view.lines():
        against = line.system if system == SAME else system
        if (line.system, line.variant.name) == (against, variant):
            continue
        other = view.line(against, spec.variants[variant], line.protocol)
        trios = zip(view.names, line.cells, other.cells, strict=True)
        found = [difference(ours, theirs, spec.metric_of(name)) for name, ours, theirs in trios]
        if any(found):
            rows.append((line.title, line.variant.title, *(_shown(spec, d) for d in found)))
    whom = "the same system" if system == SAME else get_system(system).title
    note = (
        f"Minus {whom}, {spec.variants[variant].title}: mean of the differences run by run and its "
        "95 % interval (runs); in bold where the interval excludes zero."
    )
    return Table("", ("Model", "Settings", *view.titles), rows, notes=(note,))


def difference(
    ours: CellResult | None, theirs: CellResult | None, metric: str
) -> Difference | None:
    """ours − theirs over the splits and seeds that both have; None where there are none."""
    if ours is None or theirs is None:
        return None
    a, b = _by_run(ours, metric), _by_run(theirs, metric)
    both = [key for key in a if key in b]
    return paired_difference([a[k] for k in both], [b[k] for k in both]) if both else None


def _by_run(result: CellResult, metric: str) -> dict[tuple[str, int], float]:
    return {(r["split"], r["seed"]): r["metrics"]["test"][metric] for r in result.runs}


def _shown(spec: Spec, found: Difference | None) -> str:
    if found is None:
        return EMPTY
    text = found.shown(100, 1) if spec.percent else found.shown(1, 3)
    bold = f"**{text}**" if found.certain else text
    return f"{bold} ({found.pairs})"


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
    return Table("", header, rows, notes=(note,))


def _figures(view: View, line: Line) -> list[float]:
    metrics = [view.spec.metric_of(name) for name in view.names]
    pairs = zip(metrics, line.cells, strict=True)
    return [METRICS[m].better * cell.mean(m) for m, cell in pairs if cell is not None]


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
            told.append(f"{ahead[0][1]} {_shown_loss(view, ahead[0][0])}{more}")
        if told:
            found.append(f"{title} {_shown_loss(view, own)}, behind {' and '.join(told)}")
    return f"{line.title}, {line.variant.title}: {'; '.join(found) or 'nowhere'}."


def _figure(view: View, cell: CellResult) -> float:
    return (100 if view.spec.percent else 1) * cell.mean(view.spec.metric_of(cell.column))


def _below(view: View, cell: CellResult, ours: float, theirs: float) -> bool:
    """Whether ours is worse, in the digits that are shown."""
    sign = METRICS[view.spec.metric_of(cell.column)].better
    digits = 1 if view.spec.percent else 3
    return sign * round(ours, digits) < sign * round(theirs, digits)


def _shown_loss(view: View, figure: float) -> str:
    return f"{figure:.1f}" if view.spec.percent else f"{figure:.3f}"

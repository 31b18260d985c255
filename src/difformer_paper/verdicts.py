"""What a measured table says: settings that differ, paired differences, ranks and losses."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, NamedTuple

from difformer.blocks import EMPTY, Table
from difformer.statistics import CONFIDENCE, Difference, matched
from difformer.systems.registry import get_system
from difformer.systems.system import OURS
from difformer_paper.measure import CellResult
from difformer_paper.specs import Cell, Spec
from difformer_paper.tables import Line, View


def differing_settings(view: View, base: str) -> str:
    """One list item per system and variant that was measured: its settings where they differ."""
    spec = view.spec
    if base not in spec.variants:
        raise ValueError(f"settings must be one of {', '.join(spec.variants)}, got {base!r}")
    items: dict[str, dict[str, dict[str, str]]] = {}
    for line in view.lines():
        if line.variant == base or not any(line.cells):
            continue
        item = items.setdefault(f"{line.title}, {line.settings}", {})
        how = spec.protocols[line.protocol]["title"]
        chosen = {"systems": [line.system], "protocols": [line.protocol]}
        ours, others = (
            {cell.column: _settings(cell) for cell in spec.cells(variants=[variant], **chosen)}
            for variant in (line.variant, base)
        )
        for name, title in zip(view.names, view.titles, strict=True):
            theirs = others[name]
            changed = [f"`{k}` {v}" for k, v in ours[name].items() if theirs.get(k) != v]
            item.setdefault(title, {})[how] = ", ".join(changed) or "the same"
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
        if (line.system, line.variant) == (against, variant):
            continue
        other = view.line(against, variant, line.protocol)
        trios = zip(view.names, line.cells, other.cells, strict=True)
        found = [difference(ours, theirs, spec.metric_of(name)) for name, ours, theirs in trios]
        if any(found):
            rows.append((line.title, line.settings, *(_shown(spec, d) for d in found)))
    whom = "the same system" if system == SAME else get_system(system).title
    note = (
        f"Minus {whom}, {spec.variants[variant]['title']}: mean of the differences run by run and "
        "its 95 % interval (runs); in bold where the interval excludes zero."
    )
    return Table("", ("Model", "Settings", *view.titles), rows, notes=(note,))


def difference(
    ours: CellResult | None, theirs: CellResult | None, metric: str
) -> Difference | None:
    """ours − theirs over the splits and seeds that both have; None where there are none."""
    if ours is None or theirs is None:
        return None
    return matched(ours.by_run("test", metric), theirs.by_run("test", metric))


def _shown(spec: Spec, found: Difference | None) -> str:
    if found is None:
        return EMPTY
    text = found.shown(*spec.unit)
    bold = f"**{text}**" if found.certain else text
    return f"{bold} ({found.pairs})"


class Ranks(NamedTuple):
    """Friedman's test and Nemenyi's critical difference for k systems on b blocks."""

    ranks: list[list[float]]  # of each system on every block; equal figures share their mean rank
    means: list[float]
    p: float  # how likely ranks this unlike are if all systems were equal
    critical: float  # mean ranks further apart differ at 95 %, all pairs together


def rank(figures: Sequence[Sequence[float]]) -> Ranks:
    """Rank systems on every block, 1 for the highest figure.

        χ² = 12 b / (k (k + 1)) · Σ (r̄_i − (k + 1) / 2)²,  CD = q √(k (k + 1) / 6 b)

    with q the studentised range of k groups over √2; χ² is corrected for ties.

    Args:
        figures: one row per system, one figure per block; higher is better.
    """
    import numpy as np
    from scipy.stats import friedmanchisquare, rankdata, studentized_range

    k, blocks = len(figures), len(figures[0])
    if k < 3 or blocks < 2:
        raise ValueError(f"ranks need three systems on two columns, got {k} on {blocks}")
    ranks: Any = rankdata(-np.asarray(figures), axis=0)
    q = float(studentized_range.ppf(CONFIDENCE, k, float("inf"))) / sqrt(2)
    critical = q * sqrt(k * (k + 1) / (6 * blocks))
    p = float(friedmanchisquare(*figures).pvalue)
    return Ranks(ranks.tolist(), ranks.mean(1).tolist(), p, critical)


def ranks_table(view: View) -> Table:
    """The rows that have a figure in every column, best mean rank first."""
    spec = view.spec
    lines = [line for line in view.lines() if all(cell and cell.runs for cell in line.cells)]
    found = rank(
        [
            [spec.sign(cell.column) * _mean(spec, cell) for cell in line.cells if cell]
            for line in lines
        ]
    )
    best = min(found.means)
    rows = [
        (
            line.title,
            line.settings,
            f"{mean:.1f}",
            *(f"{value:g}" for value in ranks),
            "yes" if mean - best > found.critical else "",
        )
        for mean, ranks, line in sorted(
            zip(found.means, found.ranks, lines, strict=True), key=lambda row: row[0]
        )
    ]
    note = (
        f"Ranks by the mean of each cell: {len(lines)} rows on {len(view.names)} columns. "
        f"Friedman's test: p = {found.p:.2g}. Mean ranks that differ by more than "
        f"{found.critical:.1f} differ at 95 % (Nemenyi's test of all pairs)."
    )
    header = ("Model", "Settings", "Mean rank", *view.titles, "Behind the first beyond chance")
    return Table("", header, rows, notes=(note,))


def _mean(spec: Spec, cell: CellResult) -> float:
    return cell.mean(spec.metric_of(cell.column))


def losses(view: View) -> str:
    """One list item per row of ours: per column the published figure and the best system ahead."""
    lines = list(view.lines())
    ours = [line for line in lines if get_system(line.system).module == OURS]
    others = [line for line in lines if line not in ours]
    return "\n".join(f"- {_told(view, line, others)}" for line in ours if any(line.cells))


def _told(view: View, line: Line, others: list[Line]) -> str:
    spec, found = view.spec, list[str]()
    (scale, digits), published = spec.unit, view.published(line.system)
    for place, (title, cell) in enumerate(zip(view.titles, line.cells, strict=True)):
        if cell is None or not cell.runs:
            continue
        sign, told = spec.sign(cell.column), list[str]()
        own = sign * round(scale * _mean(spec, cell), digits)  # in the digits that are shown
        figure = published[place]
        if isinstance(figure, tuple) and own < sign * round(figure[0], digits):
            told.append(f"the published {figure[0]:g}")
        there = [(other.cells[place], other.title) for other in others]
        figures = [(_mean(spec, theirs), who) for theirs, who in there if theirs and theirs.runs]
        ahead = [f for f in figures if own < sign * round(scale * f[0], digits)]
        if ahead:
            best, who = max(ahead, key=lambda f: (sign * f[0], f[1]))
            more = f" and {len(ahead) - 1} more" if ahead[1:] else ""
            told.append(f"{who} {spec.shown(best)}{more}")
        if told:
            shown = spec.shown(_mean(spec, cell))
            found.append(f"{title} {shown}, behind {' and '.join(told)}")
    return f"{line.title}, {line.settings}: {'; '.join(found) or 'nowhere'}."

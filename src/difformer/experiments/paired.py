"""Paired differences between the cells of a measured table: the same splits and seeds, run by run.

In a page, `paired=SYSTEM:VARIANT` in a marker of tables.py shows every other row minus that one;
with `*` as the system, every system minus itself under that variant.
"""

from __future__ import annotations

from collections.abc import Sequence

from difformer.baselines.registry import get_system
from difformer.experiments.reproduce import CellResult
from difformer.experiments.specs import Spec
from difformer.experiments.statistics import Difference, paired_difference
from difformer.experiments.tables import EMPTY, Table, is_asked

__all__ = ["difference", "paired_table"]

SAME = "*"


def paired_table(
    spec: Spec,
    results: Sequence[CellResult],
    reference: str,
    *,
    systems: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    protocols: Sequence[str] | None = None,
) -> Table:
    """Each measured row minus the reference on the runs both have, with a 95 % interval.

    Args:
        reference: "SYSTEM:VARIANT", or "*:VARIANT" for each system's own.
        systems, columns, variants, protocols: which to show; all where None.
    """
    system, _, variant = reference.partition(":")
    known = (*spec.systems, SAME)
    if system not in known or variant not in spec.variants:
        raise ValueError(f"paired must be SYSTEM:VARIANT of {spec.name}, got {reference!r}")
    names = [name for name in spec.columns if is_asked(name, columns)]
    ways = [name for name in spec.protocols if is_asked(name, protocols)]
    by_cell = {(r.column, r.system, r.variant, r.protocol): r for r in results}
    rows: list[tuple[str, ...]] = []
    for other in spec.systems:
        if not is_asked(other, systems):
            continue
        against = other if system == SAME else system
        for kind in spec.variants.values():
            if not is_asked(kind.name, variants) or other not in kind.systems:
                continue
            if (other, kind.name) == (against, variant):
                continue
            for protocol in ways:
                found = [
                    difference(
                        by_cell.get((name, other, kind.name, protocol)),
                        by_cell.get((name, against, variant, protocol)),
                        spec.metric_of(name),
                    )
                    for name in names
                ]
                if any(found):
                    cells = [_shown(spec, d) for d in found]
                    rows.append((get_system(other).title, kind.title, *cells))
    whom = "the same system" if system == SAME else get_system(system).title
    note = (
        f"Minus {whom}, {spec.variants[variant].title}: mean of the differences run by run and its "
        "95 % interval; in bold where the interval leaves zero out."
    )
    titles = [spec.columns[name].title for name in names]
    return Table(("Model", "Settings", *titles), tuple(rows), (note,))


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
    return f"**{text}**" if found.certain else text

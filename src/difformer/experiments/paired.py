"""Paired differences between the cells of a measured table: the same splits and seeds, run by run.

In a page, `paired=SYSTEM:VARIANT` in a marker of tables.py shows every other row minus that one;
with `*` as the system, every system minus itself under that variant.
"""

from __future__ import annotations

from difformer.baselines.registry import get_system
from difformer.experiments.reproduce import CellResult
from difformer.experiments.specs import Spec
from difformer.experiments.statistics import Difference, paired_difference
from difformer.experiments.tables import EMPTY, Table, View

__all__ = ["difference", "paired_table"]

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
    return Table(("Model", "Settings", *view.titles), tuple(rows), (note,))


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

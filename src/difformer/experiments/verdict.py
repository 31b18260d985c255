"""The verdict of a comparison in plain words, also if DIFFormer loses. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from difformer.baselines.registry import get_system
from difformer.experiments.statistics import Difference
from difformer.files import counted

if TYPE_CHECKING:
    from difformer.experiments.comparisons import Comparison, Row

__all__ = ["verdict"]


def verdict(comparison: Comparison) -> list[str]:
    """Four plain lines: who is best, all pairs or not, the graph or not, is a GCN enough.

    If a question is about a group of systems, the one with the best validation represents it, so
    that no line is selected by test figures. A question is answered if the 95 % interval of the
    paired differences excludes zero; otherwise the line says how many splits would answer it.
    """
    rows = comparison.ranked()
    if len(rows) < 2:
        return ["Nothing to say: fewer than two systems ran on every split."]
    return [
        _best(comparison, rows),
        _all_pairs(comparison, rows),
        _graph(comparison, rows),
        _gcn(comparison, rows),
    ]


def _best(comparison: Comparison, rows: Sequence[Row]) -> str:
    ours = _speaker(comparison, [r for r in rows if _is_ours(r)])
    theirs = _speaker(comparison, [r for r in rows if not _is_difformer(r)])
    if ours is None or theirs is None:
        return f"Best: {rows[0].title}."
    gap, told = _gap(comparison, ours, theirs)
    if not gap.certain:
        other = f"{theirs.title}, the best other by validation,"
        return f"Is DIFFormer better? {_answer(gap)} {ours.title} against {other} {told}."
    if gap.mean > 0:
        return f"DIFFormer wins: {ours.title} is better than {theirs.title}, {told}."
    return f"DIFFormer loses: {theirs.title} is better than {ours.title}, {told}."


def _all_pairs(comparison: Comparison, rows: Sequence[Row]) -> str:
    """The same model with and without its all-pair term; else against the best without one."""
    question = "Does all-pair diffusion help on this data?"
    ours = _speaker(comparison, [r for r in rows if _is_ours(r)])
    if ours is None:
        return f"{question} Not asked: no DIFFormer ran."
    alone = next((r for r in rows if _is_difformer(r) and not _has_all_pairs(r)), None)
    other = alone or _speaker(comparison, [r for r in rows if not _has_all_pairs(r)])
    if other is None:
        return f"{question} Not asked: every system has all pairs."
    gap, told = _gap(comparison, ours, other)
    if alone is None:  # another model altogether: it may be better for other reasons
        answer = _answer(gap) if gap.mean > 0 or not gap.certain else "Not enough:"
        return f"{question} {answer} {ours.title} against {other.title}, which has none, {told}."
    return f"{question} {_answer(gap)} {ours.title} against the same model without it {told}."


def _graph(comparison: Comparison, rows: Sequence[Row]) -> str:
    question = "Does the graph help?"
    if not comparison.has_graph:
        return f"{question} The data has none."
    with_graph = _speaker(comparison, [r for r in rows if get_system(r.system).graph == "given"])
    without = _speaker(comparison, [r for r in rows if get_system(r.system).graph != "given"])
    if with_graph is None or without is None:
        return f"{question} Not asked: it needs a system with the graph and one without."
    gap, told = _gap(comparison, with_graph, without)
    return f"{question} {_answer(gap)} {with_graph.title} against {without.title} {told}."


def _gcn(comparison: Comparison, rows: Sequence[Row]) -> str:
    question = "Is a GCN enough?"
    graph = "given" if comparison.has_graph else "knn"
    convolutions = [r for r in rows if _model(r) == "gcn" and get_system(r.system).graph == graph]
    gcn = _speaker(comparison, convolutions)
    if gcn is None:
        return f"{question} Not asked: no GCN ran."
    best = _speaker(comparison, [r for r in rows if r not in convolutions])
    if best is None:
        return f"{question} Not asked: nothing else ran."
    gap, told = _gap(comparison, best, gcn)
    if not gap.certain:
        return f"{question} {_answer(gap)} {best.title} against {gcn.title} {told}."
    if gap.mean > 0:
        return f"{question} No: {best.title} is better than {gcn.title}, {told}."
    return (
        f"{question} Yes: {gcn.title} is better than {best.title}, the best other by validation, "
        f"{_gap(comparison, gcn, best)[1]}."
    )


def _model(row: Row) -> str:
    """The model that systems share which differ only in graph or defaults."""
    return get_system(row.system).module


def _is_difformer(row: Row) -> bool:
    return _model(row) == "difformer"


def _has_all_pairs(row: Row) -> bool:
    return get_system(row.system).all_pairs


def _is_ours(row: Row) -> bool:
    return _is_difformer(row) and _has_all_pairs(row)


def _speaker(comparison: Comparison, rows: Sequence[Row]) -> Row | None:
    """The system of a group with the best mean validation; None if none was validated."""
    judged = [r for r in rows if r.values("val")]
    return max(judged, key=lambda r: comparison.sign * r.mean_std("val")[0], default=None)


def _answer(gap: Difference) -> str:
    if gap.certain:
        return "Yes:" if gap.mean > 0 else "No, it hurts:"
    enough = "" if gap.needed is None else f"; about {gap.needed} would"
    return f"Cannot tell from {counted(gap.pairs, 'split')}{enough}:"


def _gap(comparison: Comparison, ours: Row, theirs: Row) -> tuple[Difference, str]:
    """How much better ours is than theirs, and the same in words."""
    gap = comparison.difference(ours, theirs)
    unit = " points" if comparison.unit[0] == 100 else ""
    shown = gap.shown(*comparison.unit)
    return gap, f"{shown}{unit} of {comparison.metric} over {counted(gap.pairs, 'split')}"

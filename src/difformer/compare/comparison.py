"""A comparison of systems on the same splits: its record, file and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from difformer.blocks import EMPTY, Table, markdown, mean_std
from difformer.files import counted, read_json, reading
from difformer.machine import commit_of
from difformer.metrics import METRICS
from difformer.statistics import Difference, matched, spread
from difformer.systems.registry import get_system
from difformer.systems.system import OURS, System

ALSO = ("log_loss", "ece")  # of classes only


@dataclass(frozen=True)
class Row:
    """One system: a record for each split that was run, and what it took."""

    system: str
    runs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    memory: int | None = None  # bytes above an idle process
    cannot: str | None = None  # why it cannot run here
    errors: Mapping[str, str] = field(default_factory=dict[str, str])  # split -> what happened

    @property
    def kind(self) -> System:
        """The entry of the system."""
        return get_system(self.system)

    @property
    def title(self) -> str:
        return self.kind.title

    def values(self, part: str) -> dict[str, float]:
        """The metric of one part, by split."""
        return {name: run[part] for name, run in self.runs.items() if run.get(part) is not None}

    def mean_std(self, part: str) -> tuple[float, float | None]:
        """Mean and sample deviation of the metric of one part over splits."""
        return spread(list(self.values(part).values()))

    @property
    def seconds(self) -> float | None:
        """Mean training time of a run."""
        times = [run["seconds"] for run in self.runs.values()]
        return sum(times) / len(times) if times else None


@dataclass(frozen=True)
class Comparison:
    """The rows of all systems, on the same splits."""

    dataset: str
    metric: str
    splits: tuple[str, ...]
    trials: int
    rows: tuple[Row, ...]
    has_graph: bool

    @property
    def unit(self) -> tuple[float, int]:
        """What figures are multiplied by, and their decimals: shares are shown in per cent."""
        return METRICS[self.metric].unit

    @property
    def sign(self) -> int:
        """1 if a larger metric is better, else -1."""
        return METRICS[self.metric].better

    def ranked(self) -> list[Row]:
        """The systems that ran on every split, best mean test first."""
        whole = [row for row in self.rows if set(row.values("test")) >= set(self.splits)]
        return sorted(whole, key=lambda row: -self.sign * row.mean_std("test")[0])

    def listed(self) -> list[Row]:
        """All systems; the ranked ones come first."""
        ranked = self.ranked()
        return [*ranked, *(row for row in self.rows if row not in ranked)]

    def difference(self, ours: Row, theirs: Row) -> Difference:
        """How much better ours is, over the splits both have; positive is better."""
        a, b = ({s: self.sign * v for s, v in r.values("test").items()} for r in (ours, theirs))
        found = matched(a, b)
        assert found is not None  # both ran on some split
        return found

    def figure(self, row: Row) -> str:
        """The test metric of a system as text: mean ± deviation over splits."""
        if not row.values("test"):
            return EMPTY
        scale, digits = self.unit
        return mean_std(*row.mean_std("test"), lambda value: f"{value * scale:.{digits}f}")

    def behind(self, row: Row) -> Difference | None:
        """The paired difference to the best; None for a row without figures, or with no best."""
        ranked = self.ranked()
        return self.difference(row, ranked[0]) if ranked and row.values("test") else None

    def behind_text(self, row: Row) -> str:
        """The paired difference to the best, as text."""
        found = self.behind(row)
        if found is None:
            return EMPTY
        return "best" if row is self.ranked()[0] else found.shown(*self.unit)

    def remark(self, row: Row) -> str:
        """Why a system has no figure, or fewer than the others."""
        if row.cannot is not None or not row.errors:
            return row.cannot or ""
        split, what = next(iter(row.errors.items()))
        return f"failed on {len(row.errors)} of {len(self.splits)} splits; {split}: {what}"

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured, and the verdict."""
        rows: list[dict[str, Any]] = []
        for row in self.rows:
            record: dict[str, Any] = {**asdict(row), "title": row.title, "seconds": row.seconds}
            ran = bool(row.values("test"))
            record["mean"], record["std"] = row.mean_std("test") if ran else (None, None)
            if (gap := self.behind(row)) is not None:
                record["behind_best"] = asdict(gap)
            rows.append(record)
        return {
            "dataset": self.dataset,
            "metric": self.metric,
            "direction": METRICS[self.metric].direction,
            "has_graph": self.has_graph,
            "splits": list(self.splits),
            "trials": self.trials,
            "rows": rows,
            "verdict": verdict(self),
        }


def comparison_table(result: Comparison) -> Table:
    """The systems, best first; those that did not run on every split below, with the reason."""
    also = [key for key in ALSO if any(row.values(key) for row in result.rows)]
    rows: list[tuple[str, ...]] = []
    for row in result.listed():
        seconds = EMPTY if row.seconds is None else f"{row.seconds:.1f}"
        memory = EMPTY if row.memory is None else f"{row.memory / 2**20:.0f}"
        more = (f"{row.mean_std(key)[0]:.3f}" if row.values(key) else EMPTY for key in also)
        figures = (row.title, result.figure(row), result.behind_text(row), *more)
        rows.append((*figures, seconds, memory, result.remark(row)))
    titles = (METRICS[key].title.capitalize() for key in also)
    header = ("Model", "Test", "Paired difference to the best", *titles, "s per run", "MB", "")
    notes = (
        "Differences are over the same splits, with a 95 % interval; MB is the most memory "
        "above an idle process.",
    )
    return Table("", header, rows, notes=notes)


def comparison_block(path: Path) -> str:
    """What a page shows of a comparison.json: its table, its verdict, and how it was made."""
    result, record = read_comparison(path)
    machine = record["machine"]
    how = (
        f"`{record['command']}`: {counted(len(result.splits), 'split')}, the same for all systems, "
        f"{machine['cores']} cores, {machine['memory_gb']} GB, torch {machine['torch']}, "
        f"{record['date']}, {commit_of(record)}."
    )
    told = "\n".join(f"- {line}" for line in verdict(result))
    return f"{markdown(comparison_table(result))}\n\n{told}\n\n{how}"


def read_comparison(path: Path) -> tuple[Comparison, Mapping[str, Any]]:
    """The comparison in a comparison.json, and everything in the file."""
    with reading(path):
        record = read_json(path)
        rows = tuple(Row(**{f.name: row[f.name] for f in fields(Row)}) for row in record["rows"])
        kept: dict[str, Any] = {f.name: record[f.name] for f in fields(Comparison)}
        kept |= {"splits": tuple(kept["splits"]), "rows": rows}
        return Comparison(**kept), record


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
    alone = next((r for r in rows if _is_difformer(r) and not r.kind.all_pairs), None)
    other = alone or _speaker(comparison, [r for r in rows if not r.kind.all_pairs])
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
    with_graph = _speaker(comparison, [r for r in rows if r.kind.graph == "given"])
    without = _speaker(comparison, [r for r in rows if r.kind.graph != "given"])
    if with_graph is None or without is None:
        return f"{question} Not asked: it needs a system with the graph and one without."
    gap, told = _gap(comparison, with_graph, without)
    return f"{question} {_answer(gap)} {with_graph.title} against {without.title} {told}."


def _gcn(comparison: Comparison, rows: Sequence[Row]) -> str:
    question = "Is a GCN enough?"
    graph, model = "given" if comparison.has_graph else "knn", get_system("gcn").model
    convolutions = [r for r in rows if r.kind.model == model and r.kind.graph == graph]
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


def _is_difformer(row: Row) -> bool:
    return row.kind.module == OURS


def _is_ours(row: Row) -> bool:
    return _is_difformer(row) and row.kind.all_pairs


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

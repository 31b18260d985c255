"""A comparison of systems on the same splits: its record, file and table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


BEST = (
    "Best: {best}.",
    "Best: {best}.",
    "Is DIFFormer better? {answer} {ours} against {theirs}, the best other by validation, {told}.",
    "DIFFormer wins: {ours} is better than {theirs}, {told}.",
    "DIFFormer loses: {theirs} is better than {ours}, {told}.",
)
PAIRS = (
    "Does all-pair diffusion help on this data? Not asked: no DIFFormer ran.",
    "Does all-pair diffusion help on this data? Not asked: every system has all pairs.",
    "Does all-pair diffusion help on this data? {answer} {ours} against ",
)
ALONE = (*PAIRS[:2], f"{PAIRS[2]}the same model without it {{told}}.")
WHICH = f"{PAIRS[2]}{{theirs}}, which has none, {{told}}."
# Another model without all pairs may be better for other reasons: all pairs do not hurt.
OTHERS = (*PAIRS[:2], WHICH, WHICH, WHICH.replace("{answer}", "Not enough:"))
GRAPH = (
    "Does the graph help? Not asked: it needs a system with the graph and one without.",
    "Does the graph help? Not asked: it needs a system with the graph and one without.",
    "Does the graph help? {answer} {ours} against {theirs} {told}.",
)
GCN = (
    "Is a GCN enough? Not asked: no GCN ran.",
    "Is a GCN enough? Not asked: nothing else ran.",
    "Is a GCN enough? {answer} {theirs} against {ours} {back}.",
    "Is a GCN enough? Yes: {ours} is better than {theirs}, the best other by validation, {told}.",
    "Is a GCN enough? No: {theirs} is better than {ours}, {back}.",
)
"""What is said without a system of ours, without one of theirs, if the splits do not tell, and if
ours is better or worse; a third text alone is for every answer."""


def verdict(comparison: Comparison) -> list[str]:
    """Four plain lines: who is best, all pairs or not, the graph or not, is a GCN enough.

    If a question is about a group of systems, the one with the best validation represents it, so
    that no line is selected by test figures. A question is answered if the 95 % interval of the
    paired differences excludes zero; otherwise the line says how many splits would answer it.
    """
    rows = comparison.ranked()
    if len(rows) < 2:
        return ["Nothing to say: fewer than two systems ran on every split."]

    def speaker(group: Callable[[System], bool]) -> Row | None:
        """The system of a group with the best mean validation; None if none was validated."""
        judged = [row for row in rows if group(row.kind) and row.values("val")]
        return max(judged, key=lambda r: comparison.sign * r.mean_std("val")[0], default=None)

    graph, model = "given" if comparison.has_graph else "knn", get_system("gcn").model
    ours = speaker(lambda kind: kind.module == OURS and kind.all_pairs)
    alone = next((r for r in rows if r.kind.module == OURS and not r.kind.all_pairs), None)
    local = alone or speaker(lambda kind: not kind.all_pairs)
    given = speaker(lambda kind: kind.graph == "given")
    rest = speaker(lambda kind: kind.graph != "given")
    gcn = speaker(lambda kind: (kind.model, kind.graph) == (model, graph))
    other = speaker(lambda kind: (kind.model, kind.graph) != (model, graph))
    about_graph = "Does the graph help? The data has none."
    if comparison.has_graph:
        about_graph = _judged(comparison, given, rest, GRAPH)
    return [
        _judged(comparison, ours, speaker(lambda kind: kind.module != OURS), BEST),
        _judged(comparison, ours, local, ALONE if alone else OTHERS),
        about_graph,
        _judged(comparison, gcn, other, GCN),
    ]


def _judged(
    comparison: Comparison, ours: Row | None, theirs: Row | None, texts: tuple[str, ...]
) -> str:
    """One line of the verdict, with titles, answer and differences filled in."""
    if ours is None or theirs is None:
        return texts[ours is not None].format(best=comparison.ranked()[0].title)
    gap = comparison.difference(ours, theirs)
    splits, points = counted(gap.pairs, "split"), " points" if comparison.unit[0] == 100 else ""
    unclear, better, worse = (texts[2:] * 3)[:3]
    text, answer = (better, "Yes:") if gap.mean > 0 else (worse, "No, it hurts:")
    if not gap.certain:
        enough = "" if gap.needed is None else f"; about {gap.needed} would"
        text, answer = unclear, f"Cannot tell from {splits}{enough}:"
    told, back = (
        f"{each.shown(*comparison.unit)}{points} of {comparison.metric} over {splits}"
        for each in (gap, comparison.difference(theirs, ours))
    )
    titles = {"ours": ours.title, "theirs": theirs.title}
    return text.format(answer=answer, told=told, back=back, **titles)

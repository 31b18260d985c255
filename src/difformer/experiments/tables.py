"""Tables of measured figures beside the published ones, for the terminal, README and docs.

A page asks for a table between two markers, and `fill_page` writes it there:

    <!-- results: table2 variants=stable protocols=released,random -->
    <!-- end of results -->

`details` in place of the filters gives a row for each result file: how it was measured. `verdicts`
beside the filters says of each figure whether it reaches the published one, and if not, why;
`paired=SYSTEM:VARIANT` shows differences run by run (paired.py).
`compare/NAME` in place of a table's name shows results/compare/NAME.json, the comparison.json of a
`difformer compare`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from difformer.baselines.registry import get_system
from difformer.errors import RunError
from difformer.experiments.reproduce import CellResult, read_results
from difformer.experiments.specs import Published, Spec, load_spec

__all__ = [
    "Table",
    "details_table",
    "figures_table",
    "fill_page",
    "is_asked",
    "markdown",
    "verdicts_table",
]

BEGIN = re.compile(r"<!-- results: (\S+)((?: [^>]*?)?) -->\n")
END = "<!-- end of results -->"
EMPTY = "—"
CANNOT = "cannot run here"
ERRORS = ("mse",)  # metrics that are better when they are lower


@dataclass(frozen=True)
class Table:
    """A header, rows of the same length, and lines that belong below it."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()


def figures_table(
    spec: Spec,
    results: Sequence[CellResult],
    *,
    systems: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    protocols: Sequence[str] | None = None,
) -> Table:
    """A row for each system, settings and kind of split that was measured, the published one first.

    Figures are mean ± standard deviation over the runs of a cell.
    """
    names = [name for name in spec.columns if columns is None or name in columns]
    by_cell = {result.cell: result for result in results}
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for system in spec.systems:
        asked = [v for v in spec.variants.values() if is_asked(v.name, variants)]
        if not is_asked(system, systems) or not any(system in v.systems for v in asked):
            continue
        title = get_system(system).title
        published = spec.published.get(system, {})
        if any(name in published for name in names):
            figures = [_published(published.get(name)) for name in names]
            rows.append((title, "published", "", *figures))
        for variant in asked:
            for protocol in spec.protocols.values():
                if not is_asked(protocol.name, protocols):
                    continue
                keys = [f"{n}.{system}.{variant.name}.{protocol.name}" for n in names]
                found = [by_cell.get(key) for key in keys]
                if any(found):
                    cells = [_measured(spec, r, notes) for r in found]
                    rows.append((title, variant.title, protocol.title, *cells))
    titles = [spec.columns[name].title for name in names]
    marked = tuple(f"{_raised(i)} {note}" for i, note in enumerate(notes, 1))
    return Table(("Model", "Settings", "Runs", *titles), tuple(rows), marked)


def verdicts_table(
    spec: Spec,
    results: Sequence[CellResult],
    *,
    systems: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    protocols: Sequence[str] | None = None,
) -> Table:
    """For each system and settings: within two published deviations, better, or the reason."""
    names = [name for name in spec.columns if columns is None or name in columns]
    by_cell = {result.cell: result for result in results}
    rows: list[tuple[str, ...]] = []
    for system in (s for s in spec.systems if s in spec.published and is_asked(s, systems)):
        for variant in spec.variants.values():
            if system not in variant.systems or not is_asked(variant.name, variants):
                continue
            for protocol in (p for p in spec.protocols if is_asked(p, protocols)):
                keys = [f"{name}.{system}.{variant.name}.{protocol}" for name in names]
                published = [spec.published[system].get(name) for name in names]
                cells = [
                    _compared(spec, by_cell.get(key), figure)
                    for key, figure in zip(keys, published, strict=True)
                ]
                short = any(c.startswith(("worse", EMPTY, CANNOT)) for c in cells)
                reason = spec.reasons.get(system, "") if short else ""
                rows.append((get_system(system).title, *cells, reason))
    titles = [spec.columns[name].title for name in names]
    note = (
        "*within*: no further than two published deviations from the published mean, or two of "
        "ours where none is published or it is zero; *better* and *worse*: by how much."
    )
    return Table(("Model", *titles, "Why not"), tuple(rows), (note,))


def details_table(spec: Spec, results: Sequence[CellResult]) -> Table:
    """A row for each result: the spread of its runs, what they took, and how to make it again."""
    header = ("Cell", "Mean ± std", "Lowest", "Highest", "Splits × seeds", "s a run", "Measured on")
    rows: list[tuple[str, ...]] = []
    commands: list[str] = []
    for result in results:
        if result.command not in commands:
            commands.append(result.command)
        name = f"{result.column} {result.system} {result.variant} {result.protocol}"
        if not result.runs:
            rows.append((name, result.cannot or EMPTY, *[EMPTY] * 5))
            continue
        values = result.values("test", spec.metric_of(result.column))
        machine = result.machine
        rows.append(
            (
                name,
                _whole(spec, result),
                _number(spec, min(values)),
                _number(spec, max(values)),
                _short_runs(result),
                f"{median(run['seconds'] for run in result.runs):.0f}",
                f"{machine['cores']} cores, {machine['memory_gb']} GB, torch {machine['torch']}, "
                f"{result.date}",
            )
        )
    return Table(header, tuple(rows), tuple(f"`{command}`" for command in commands))


def markdown(table: Table) -> str:
    """A table as GitHub shows it, with its notes below."""
    lines = [table.header, tuple("---" for _ in table.header), *table.rows]
    text = "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )
    return text + "".join(f"\n\n{note}" for note in table.notes)


def fill_page(text: str, results: Path) -> str:
    """A page with every marked table written anew from the results folder and the specs."""
    parts: list[str] = []
    position = 0
    for match in BEGIN.finditer(text):
        end = text.find(END, match.end())
        if end < 0:
            raise RunError(f"the page has {match[0].strip()!r} without {END!r} after it")
        parts += [text[position : match.end()], _block(match[1], match[2].split(), results), "\n"]
        position = end
    return "".join([*parts, text[position:]])


def _block(name: str, words: Sequence[str], results: Path) -> str:
    if name.startswith("compare/"):
        from difformer.experiments.comparisons import comparison_block

        return comparison_block(results / f"{name}.json")
    spec = load_spec(name)
    found = read_results(results, name)
    if "details" in words:
        return markdown(details_table(spec, found))
    build = verdicts_table if "verdicts" in words else figures_table
    words = [word for word in words if word != "verdicts"]
    filters: dict[str, list[str]] = {}
    for word in words:
        key, _, values = word.partition("=")
        if key not in ("systems", "columns", "variants", "protocols", "paired") or not values:
            raise ValueError(f"results: {name}: {word!r} must be systems=, columns=, variants= ...")
        filters[key] = values.split(",")
    if "paired" in filters:
        from difformer.experiments.paired import paired_table

        (reference,) = filters.pop("paired")
        return markdown(paired_table(spec, found, reference, **filters))
    return markdown(build(spec, found, **filters))


def is_asked(name: str, names: Sequence[str] | None) -> bool:
    """Whether a name is among those chosen, by itself or by what stands before its colon."""
    return names is None or name in names or name.split(":")[0] in names


def _published(value: Published | None) -> str:
    if value is None:
        return EMPTY
    if isinstance(value, str):
        return value
    mean, std = value
    return f"{mean:g}" if std is None else f"{mean:g} ± {std:g}"


def _measured(spec: Spec, result: CellResult | None, notes: list[str]) -> str:
    if result is None:
        return EMPTY
    if result.cannot is not None:
        return result.cannot
    if not result.runs:
        return EMPTY
    text = _whole(spec, result)
    if spec.beside is not None and result.values("test", spec.beside):
        text += f" [{_number(spec, result.mean(spec.beside))}]"
    if result.missing:
        text += f" ({len(result.runs)} of {len(result.wanted)} runs)"
    if result.note:
        if result.note not in notes:
            notes.append(result.note)
        text += _raised(notes.index(result.note) + 1)
    return text


def _raised(number: int) -> str:
    """The number as a mark that leads from a figure to its note."""
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))


def _whole(spec: Spec, result: CellResult) -> str:
    metric = spec.metric_of(result.column)
    return _figure(spec, result.mean(metric), result.std(metric))


def _compared(spec: Spec, result: CellResult | None, published: Published | None) -> str:
    if result is not None and result.cannot is not None:
        same = isinstance(published, str)
        return f"{CANNOT}, nor in the paper" if same else CANNOT
    if result is None or not result.runs or published is None:
        return EMPTY
    if isinstance(published, str):
        return f"better ({published})"
    scale = 100 if spec.percent else 1
    metric = spec.metric_of(result.column)
    ours, std = scale * result.mean(metric), scale * (result.std(metric) or 0.0)
    gap = ours - published[0]
    if abs(gap) <= 2 * (published[1] or std) + 1e-9:
        return "within"
    good = (gap > 0) is not (metric in ERRORS)
    return f"{'better' if good else 'worse'} ({gap:+.{1 if spec.percent else 3}f})"


def _figure(spec: Spec, mean: float, std: float | None) -> str:
    return _number(spec, mean) + ("" if std is None else f" ± {_number(spec, std)}")


def _number(spec: Spec, value: float) -> str:
    if spec.percent:
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if value < 100 else f"{value:,.0f}"


def _short_runs(result: CellResult) -> str:
    splits = dict.fromkeys(str(run["split"]) for run in result.runs)
    seeds = dict.fromkeys(str(run["seed"]) for run in result.runs)
    return f"{_short(list(splits))} × {_short(list(seeds))}"


def _short(names: list[str]) -> str:
    """random:0, …, random:9 as 'random:0–9', and so for seeds."""
    ends = [re.fullmatch(r"(\D*)(\d+)", name) for name in names]
    pairs = [(end[1], int(end[2])) for end in ends if end]
    first = pairs[0] if pairs else ("", 0)
    if len(names) < 3 or pairs != [(first[0], first[1] + i) for i in range(len(names))]:
        return ", ".join(names)
    return f"{names[0]}–{pairs[-1][1]}"

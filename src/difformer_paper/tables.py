"""Tables of measured figures beside the published ones, for the terminal, README and docs.

A page asks for a table between two markers, and `fill_page` writes it there:

    <!-- results: table2 variants=stable protocols=released,random -->
    <!-- end of results -->

`verdicts` beside the filters says for each figure whether it reaches the published one, and if not,
why. The others are in verdicts.py: `paired=SYSTEM:VARIANT` shows differences run by run, `ranks`
mean ranks over the columns, `losses` where ours are behind, `settings=VARIANT` in which settings
the rows differ from that variant.
`compare/NAME` in place of a table's name shows results/compare/NAME.json, the comparison.json of a
`difformer compare`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from difformer.blocks import EMPTY, Table, markdown, mean_std
from difformer.errors import RunError
from difformer.systems.registry import get_system
from difformer_paper.measure import CellResult, read_results
from difformer_paper.specs import SELECTORS, Published, Spec, load_spec

BEGIN = re.compile(r"<!-- results: (\S+)((?: [^>]*?)?) -->\n")
END = "<!-- end of results -->"
KINDS = ("verdicts", "ranks", "losses")  # of tables, beside that of figures
CANNOT = "cannot run here"


class Line(NamedTuple):
    """A system with one variant and one protocol, and what a table calls them."""

    system: str
    variant: str
    protocol: str
    title: str
    settings: str
    cells: list[CellResult | None]  # one per column, None if it was not measured


@dataclass(frozen=True)
class View:
    """The part of a spec's results that a table shows; None for all systems, columns and so on.

    A variant is chosen by its name or by the part of its name before the colon.
    """

    spec: Spec
    results: Sequence[CellResult]
    systems: Sequence[str] | None = None
    columns: Sequence[str] | None = None
    variants: Sequence[str] | None = None
    protocols: Sequence[str] | None = None

    @property
    def names(self) -> list[str]:
        """The names of the columns shown."""
        return [name for name in self.spec.columns if self._shows("columns", name)]

    @property
    def titles(self) -> list[str]:
        """The titles of the columns shown."""
        return [self.spec.columns[name]["title"] for name in self.names]

    def line(self, system: str, variant: str, protocol: str) -> Line:
        """What was measured for one system, variant and protocol."""
        spec, found = self.spec, {result.cell: result for result in self.results}
        cells = spec.cells(systems=[system], variants=[variant], protocols=[protocol])
        # It may have been measured when fewer runs were asked for.
        asked = {c.column: found[c.name].asked(c) for c in cells if c.name in found}
        title, settings = get_system(system).title, spec.variants[variant]["title"]
        measured = [asked.get(name) for name in self.names]
        return Line(system, variant, protocol, title, settings, measured)

    def lines(self) -> Iterator[Line]:
        """The lines of the table, measured or not, in the order of the spec."""
        for system in filter(lambda name: self._shows("systems", name), self.spec.systems):
            for variant, form in self.spec.variants.items():
                for protocol in self.spec.protocols:
                    shown = self._shows("variants", variant) and self._shows("protocols", protocol)
                    if shown and system in form["systems"]:
                        yield self.line(system, variant, protocol)

    def published(self, system: str) -> list[Published | None]:
        """The published figures of a system, one per column."""
        return [self.spec.published.get(system, {}).get(name) for name in self.names]

    def _shows(self, what: str, name: str) -> bool:
        """Whether a name is chosen, in full or by the part before its colon."""
        names = getattr(self, what)
        return names is None or name in names or name.split(":")[0] in names


def figures_table(view: View) -> Table:
    """One row per system, settings and kind of split that was measured, the published one first.

    Figures are mean ± standard deviation over the runs of a cell, their number in brackets. Where
    all have runs of one kind, a note says so in place of a column.
    """
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    commits: set[str] = set()
    system = None
    for line in view.lines():
        if line.system != system:
            system, published = line.system, view.published(line.system)
            if any(figure is not None for figure in published):
                rows.append((line.title, "published", "", *map(published_text, published)))
        if any(cell is not None and not cell.absent for cell in line.cells):
            cells = [measured_text(view.spec, cell, notes) for cell in line.cells]
            how = view.spec.protocols[line.protocol]["title"]
            rows.append((line.title, line.settings, how, *cells))
            commits |= {name for cell in line.cells if cell for name in cell.commits}
    marked = tuple(f"{_raised(i)} {note}" for i, note in enumerate(notes, 1))
    header = ("Model", "Settings", "Runs", *view.titles)
    kinds, how = {row[2] for row in rows} - {""}, "mean ± standard deviation (runs)"
    if len(kinds) == 1:
        how = f"{kinds.pop()}; {how}"
        header, rows = (*header[:2], *header[3:]), [(*row[:2], *row[3:]) for row in rows]
    how = "; ".join([how, *([", ".join(sorted(commits))] if commits else [])])
    below = (*marked, f"Measured: {how}.", *_not_measured(view))
    return Table("", header, rows, notes=below)


def verdicts_table(view: View) -> Table:
    """For each system and settings: within two published deviations, better, or why not."""
    spec = view.spec
    rows: list[tuple[str, ...]] = []
    for line in view.lines():
        if line.system not in spec.published:
            continue
        pairs = zip(line.cells, view.published(line.system), strict=True)
        cells = [_compared(spec, cell, figure) for cell, figure in pairs]
        short = any(cell.startswith(("worse", EMPTY, CANNOT)) for cell in cells)
        rows.append((line.title, *cells, spec.reasons.get(line.system, "") if short else ""))
    note = (
        "*within*: no further than two published deviations from the published mean, or two of "
        "ours where none is published or it is zero; *better* and *worse*: by how much."
    )
    reached = [sum(cell.startswith(("within", "better")) for cell in row[1:-1]) for row in rows]
    enough = sum(count >= 2 for count in reached)
    count = f"{enough} of {len(rows)} rows are *within* or *better* in two columns or more."
    return Table("", ("Model", *view.titles, "Why not"), rows, notes=(note, count))


def fill_page(text: str, results: Path) -> str:
    """The page with every marked table rewritten from the results folder and the specs."""
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
        from difformer.compare.comparison import comparison_block

        return comparison_block(results / f"{name}.json")
    from difformer_paper import verdicts

    filters: dict[str, list[str]] = {}
    for word in (word for word in words if word not in KINDS):
        key, _, values = word.partition("=")
        if key not in (*SELECTORS, "paired", "settings") or not values:
            raise ValueError(f"results: {name}: {word!r} must be systems=, columns=, variants= ...")
        filters[key] = values.split(",")
    paired, settings = filters.pop("paired", None), filters.pop("settings", None)
    view = View(load_spec(name), read_results(results, name), **filters)
    if paired is not None:
        return markdown(verdicts.paired_table(view, ",".join(paired)))
    if settings is not None:
        return verdicts.differing_settings(view, settings[0])
    if "losses" in words:
        return verdicts.losses(view)
    if "ranks" in words:
        return markdown(verdicts.ranks_table(view))
    return markdown(verdicts_table(view) if "verdicts" in words else figures_table(view))


def published_text(value: Published | None) -> str:
    """A published figure: mean ± standard deviation, or what the paper says instead."""
    if value is None or isinstance(value, str):
        return value or EMPTY
    return mean_std(*value, "{:g}".format)


def measured_text(spec: Spec, result: CellResult | None, notes: list[str]) -> str:
    """Mean ± standard deviation of a cell, or why there is none; its note is added to `notes`."""
    if result is None or result.absent:
        return EMPTY
    if result.cannot is not None or not result.runs:
        return result.cannot or EMPTY
    text = mean_std(*result.spread(spec.metric_of(result.column)), spec.shown)
    if spec.beside is not None and result.by_run("test", spec.beside):
        text += f" [{spec.shown(result.mean(spec.beside))}]"
    done, wanted = len(result.runs), len(result.wanted)
    text += f" ({done} of {wanted} runs)" if result.missing else f" ({done})"
    if result.note:
        if result.note not in notes:
            notes.append(result.note)
        text += _raised(notes.index(result.note) + 1)
    return text


def _not_measured(view: View) -> list[str]:
    """One sentence that names the datasets that are not available."""
    cells = [cell for line in view.lines() for cell in line.cells if cell is not None]
    absent = dict.fromkeys(cell.dataset for cell in cells if cell.absent)
    why = "Not measured, because the data is not here and cannot be fetched"
    return [f"{why}: {', '.join(absent)}."] if absent else []


def _raised(number: int) -> str:
    """The number as a mark that leads from a figure to its note."""
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))


def _compared(spec: Spec, result: CellResult | None, published: Published | None) -> str:
    if result is not None and result.cannot is not None:
        return f"{CANNOT}, nor in the paper" if isinstance(published, str) else CANNOT
    if result is None or not result.runs or published is None:
        return EMPTY
    if isinstance(published, str):
        return f"better ({published})"
    (scale, digits), (mean, std) = spec.unit, result.spread(spec.metric_of(result.column))
    gap = scale * mean - published[0]
    if abs(gap) <= 2 * (published[1] or scale * (std or 0.0)) + 1e-9:
        return "within"
    good = gap * spec.sign(result.column) > 0
    return f"{'better' if good else 'worse'} ({gap:+.{digits}f})"

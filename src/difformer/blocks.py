"""What a page is made of: sections of notes, tables and plots. No torch here."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

EMPTY = "—"  # in place of a figure that there is none of

# Ten colours that are distinct with any colour vision (Paul Tol's bright and muted) and on white.
COLOURS = (
    "#4477aa", "#cc6677", "#228833", "#aa7700", "#882255",
    "#117799", "#aa3377", "#666633", "#332288", "#777777",
)  # fmt: skip


@dataclass(frozen=True)
class Note:
    """A paragraph; `missing` marks it as something the page should have shown and cannot."""

    text: str
    missing: bool = False
    kind: ClassVar[str] = "note"


def _is_words(cell: str) -> bool:
    """More letters than digits: '5 columns', and not '0.5 to 0.9'."""
    return sum(c.isalpha() for c in cell) > sum(c.isdigit() for c in cell)


@dataclass(frozen=True)
class Table:
    """Cells of text under a caption; the first cell of a row is its heading.

    `shades` colours the cells after the first from white (0) to blue (1), as in a heat map.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    shades: Sequence[Sequence[float]] | None = None
    notes: Sequence[str] = ()  # sentences below it
    kind: ClassVar[str] = "table"

    @property
    def texts(self) -> list[bool]:
        """Which columns hold mostly words; these are aligned left, numbers right."""
        columns = [
            [row[i] for row in self.rows if i < len(row) and row[i] not in ("", "–")]
            for i in range(len(self.header))
        ]
        return [2 * sum(map(_is_words, cells)) > len(cells) for cells in columns]

    def shade(self, row: int, column: int) -> str:
        """The CSS colours of a cell after the first."""
        if self.shades is None:
            return ""
        s = min(1.0, max(0.0, self.shades[row][column]))
        ink = ";color:#fff" if s > 0.55 else ""  # transparent: readable on white and on black
        return f"background:rgba(24,77,140,{s:.3g}){ink}"


@dataclass(frozen=True)
class Plot:
    """A figure drawn by plotly, with a description and its numbers for those who cannot see it.

    `name` is its id in the page; texts in `data` and `layout` go through `plain` first, because
    plotly reads a few HTML tags. `notes` are folded away with the table.
    """

    name: str
    caption: str
    alt: str
    data: Sequence[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict[str, Any])
    table: Table | None = None
    notes: Sequence[str] = ()
    kind: ClassVar[str] = "plot"


@dataclass(frozen=True)
class Explorer:
    """The states of the rows in two dimensions, the strongest diffusivities over them."""

    data: dict[str, Any]
    kind: ClassVar[str] = "explorer"


@dataclass(frozen=True)
class Finder:
    """Records that are looked up by their first cell; a record may name others near it.

    Args:
        rows: cells of text; the first is the record's name.
        near: for each record the names of others with their weights; None if there are none.
        curves: for each record a plot of its own (data, layout), drawn when it is chosen.
    """

    name: str
    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    near: Sequence[Sequence[Sequence[Any]]] | None = None
    near_caption: str = ""
    orders: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    curves: Sequence[dict[str, Any]] | None = None
    kind: ClassVar[str] = "finder"


Block = Note | Table | Plot | Explorer | Finder


@dataclass(frozen=True)
class Section:
    """A heading with its blocks; `name` is its anchor. A folded section opens on a click."""

    name: str
    title: str
    blocks: Sequence[Block]
    folded: bool = False


def markdown(table: Table) -> str:
    """A table as GitHub shows it, with its notes below."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    text = "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines
    )
    return text + "".join(f"\n\n{note}" for note in table.notes)


def plain(text: object) -> str:
    """Text with its tags escaped, so that plotly shows it literally."""
    return html.escape(str(text), quote=False)


def colour(index: int) -> str:
    """The colour of the line, class or system at this place; after ten they repeat."""
    return COLOURS[index % len(COLOURS)]


def axis(title: object, **more: Any) -> dict[str, Any]:
    """An axis of a plot, for its layout."""
    return {"title": {"text": plain(title)}, **more}


def scatter(x: Sequence[Any], y: Sequence[Any], mode: str = "lines", **more: Any) -> dict[str, Any]:
    """Points of a plot, drawn as lines, markers or both."""
    return {"type": "scatter", "mode": mode, "x": x, "y": y, **more}


def guide(x: Sequence[float], y: Sequence[float], name: str) -> dict[str, Any]:
    """A dashed line to compare the points of a plot with, such as chance."""
    line = {"color": "#777777", "dash": "dash"}
    return scatter(rounded(x), rounded(y), name=name, line=line, hoverinfo="skip")


def number(value: Any, digits: int = 4) -> str:
    """A number for people: '0.9123', '12,345', '1.2e-07'; '–' where there is none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value and not 1e-3 <= abs(value) < (1e6 if digits < 6 else 1e17):
        return f"{value:.{digits - 1}g}"
    if abs(value) < 10 ** min(3, digits):
        return f"{value:.{digits}g}"
    # From a thousand on `g` would write 14,670 as 1.467e+04.
    return f"{value:,.{max(0, digits - 1 - _exponent(value))}f}"


def digits_for(values: Any, digits: int = 4) -> int:
    """How many significant digits tell numbers apart as far as `digits` of their range do.

    >>> digits_for([1.7e9, 1.7e9 + 5])
    13
    """
    known = [v for v in map(float, values) if math.isfinite(v)]
    spread = max(known) - min(known) if known else 0.0
    if not 0 < spread < math.inf:
        return digits
    most = _exponent(max(map(abs, known)))
    return min(17, digits + max(0, most - _exponent(spread)))


def _exponent(value: float) -> int:
    return math.floor(math.log10(abs(value)))


def mean_std(
    mean: float | None, std: float | None, shown: Callable[[float], str] | None = None
) -> str:
    """'0.9123 ± 0.0045', without the deviation where there is none; `shown` writes both."""
    first = number(mean) if mean is None or shown is None else shown(mean)
    if mean is None or std is None:
        return first
    return f"{first} ± {number(std, 2) if shown is None else shown(std)}"


def first_few(names: Sequence[str], most: int) -> str:
    """The first names of a list, for a sentence."""
    return ", ".join(names[:most]) + (" and others" if len(names) > most else "")


def rounded(values: Any, digits: int = 4) -> list[Any]:
    """Numbers with a few digits of their range, to keep the page small; nan becomes None."""
    numbers = [float(v) for v in values]
    digits = digits_for(numbers, digits)
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in numbers]

"""What a page shows: its headings, its anchors, and the cells of its tables."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from doors import is_machines

# Times, sizes, days, commits and versions among the words of a page.
VARYING = re.compile(
    r"\b\d[\d.,]* ?(s|ms|min|h|seconds?|minutes?|kB|MB|GB|GiB|MiB)\b"
    r"|\b\d{4}-\d\d-\d\d \d\d:\d\d\b|\b[0-9a-f]{12}\b|\b\d+\.\d+\.\d+\b"
)
HEADINGS = ("h1", "h2", "h3", "h4", "caption", "figcaption", "summary")


class Page(HTMLParser):
    """Headings, ids and tables of a page; scripts, styles and drawings are passed over."""

    def __init__(self) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.ids: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.into: list[str] | None = None
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.ids += [value for key, value in attrs if key == "id" and not self.hidden]
        self.hidden += tag in ("script", "style", "svg")
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.into = self.tables[-1][-1]
            self.into.append("")
        elif tag in HEADINGS:
            self.into = self.headings
            self.into.append("")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "svg")
        if tag in ("td", "th", *HEADINGS):
            self.into = None

    def handle_data(self, data: str) -> None:
        if self.into is not None and not self.hidden:
            self.into[-1] += data


def steady(text: str) -> str:
    """A text without times, sizes and days."""
    return VARYING.sub("~", " ".join(text.split()))


def without_costs(table: list[list[str]]) -> list[list[str]]:
    """A table without the columns that say times and memory."""
    costs = [i for i, head in enumerate(table[0]) if is_machines(head)] if table else []
    return [[cell for i, cell in enumerate(row) if i not in costs] for row in table]


def read_page(path: str) -> dict[str, Any]:
    """The headings, anchors and tables of a page, without what is the machine's."""
    page = Page()
    page.feed(Path(path).read_text(encoding="utf-8"))
    kept = [
        [[steady(cell) for cell in row] for row in table if row and not is_machines(row[0])]
        for table in map(without_costs, page.tables)
    ]
    return {"headings": [steady(each) for each in page.headings], "ids": page.ids, "tables": kept}

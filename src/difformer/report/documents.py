"""The pages of the project that show results: their tables are written from the result files."""

from __future__ import annotations

from pathlib import Path

from difformer.experiments.tables import fill_page
from difformer.files import write_atomic
from difformer.report import demo

__all__ = ["PAGES", "write_pages"]

PAGES = ("README.md", "docs/reproduce.md", "docs/temporal.md", "docs/scale.md")
DEMO = f"src/difformer/report/{demo.MEASURED}"


def write_pages(root: Path, results: Path) -> list[str]:
    """Fill the marked tables of the pages, and the demo's; the names of those that changed."""
    written: list[str] = []
    for name in (*PAGES, DEMO):
        page = root / name
        if not page.exists():
            raise ValueError(f"{page} must be there: run it in the project's folder")
        before = page.read_text(encoding="utf-8")
        after = demo.measured(results) if name == DEMO else fill_page(before, results)
        if after != before:
            write_atomic(page, after)
            written.append(name)
    return written

"""What a command prints: tables for people on stdout, or one JSON document for machines."""

from __future__ import annotations

import json
import sys
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from difformer.experiments.tables import Table

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset

__all__ = [
    "DataDir",
    "Json",
    "Quiet",
    "interrupted",
    "print_json",
    "print_table",
    "say",
    "write_page",
]

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout, and nothing else.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", metavar="DIR", help="Where datasets are; before $DIFFORMER_DATA."),
]


def print_json(value: Any) -> None:
    """One JSON document; a number that is none is null."""
    print(json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(table: Table, title: str | None = None) -> None:
    """A table on stdout, as wide as the terminal; a row of a new group has a line above it."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Rich
    from rich.text import Text

    shown = Rich(
        title=None if title is None else Text(title), box=SIMPLE_HEAD, title_justify="left"
    )
    for name in table.header:
        shown.add_column(Text(name))
    for row in table.rows:
        shown.add_row(*[Text(cell) for cell in row])
    # A pipe has no width; a table cut to 80 columns there would lose figures.
    Console(width=None if sys.stdout.isatty() else 200).print(shown)
    for note in table.notes:
        print(note)


def say(message: str, *, quiet: bool = False) -> None:
    """A line for people on stderr, beside the progress bar."""
    if not quiet:
        print(message, file=sys.stderr)


def write_page(folder: Path, data: Dataset) -> Path:
    """Write a run's report.html."""
    from difformer.report import write_report

    return write_report(folder, dataset=data)


def interrupted(message: str) -> typer.Exit:
    """To raise where Ctrl-C ended a run that is kept: says how to go on, exit code 130."""
    print(f"interrupted: {message}", file=sys.stderr)
    return typer.Exit(130)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)

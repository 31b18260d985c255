"""What a command prints: tables for people on stdout, or one JSON document for machines."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from difformer.errors import RunError
from difformer.experiments.tables import Table
from difformer.files import finite
from difformer.train.launch import is_lead, launched, restarted

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset
    from difformer.experiments.loaded import LoadedRun

__all__ = [
    "interrupted",
    "print_json",
    "print_table",
    "run_folder",
    "say",
    "search_stopped",
    "stopped",
    "write_page",
]


def print_json(value: Any) -> None:
    """Print one JSON document; a number that is not finite becomes null."""
    print(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False))


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


def write_page(
    folder: Path, data: Dataset | None = None, *, loaded: LoadedRun | None = None
) -> Path:
    """Write a run's report.html."""
    from difformer.report.run_page import write_report

    return write_report(folder, dataset=data, loaded=loaded)


def run_folder(stem: str, out: Path | None, *, resume: bool) -> Path:
    """The folder of a run: --out, or the next runs/STEM-number; with `resume` one that is there."""
    # A restarted job goes on with its run; of several processes rank 0 makes the folder.
    resume = resume or restarted() or not is_lead()
    if launched() and out is None:
        raise ValueError("--out must be given to torchrun: every process needs the same folder")
    if out is not None:
        # A series has its record before what is tried for it has left a configuration.
        there = any((out / name).exists() for name in ("config.toml", "series.json"))
        if there and not resume:
            raise RunError(
                f"{out} holds a run already: add --resume to go on with it, or give another folder"
            )
        if out.exists() and not out.is_dir():
            raise RunError(f"{out} is a file: give --out a folder")
        return out
    there = [p for p in Path("runs").glob(f"{stem}-*") if p.name[len(stem) + 1 :].isdecimal()]
    number = max((int(p.name[len(stem) + 1 :]) for p in there), default=0)
    if resume and number == 0:
        raise RunError(f"there is no run runs/{stem}-* to resume: leave --resume out")
    return Path("runs") / f"{stem}-{number if resume else number + 1}"


def stopped(folder: Path, what: str = "the best epoch so far") -> typer.Exit:
    """To raise where Ctrl-C ended a run of `train`: says how to resume it, exit code 130."""
    words = sys.argv[1:]
    if not {"--out", "-o"} & {word.split("=")[0] for word in words}:
        words += ["--out", str(folder)]
    again = shlex.join(["difformer", *words, *([] if "--resume" in words else ["--resume"])])
    return interrupted(f"{what} is kept in {folder}; go on with: {again}")


def search_stopped(option: str, kept: Path | None) -> typer.Exit:
    """To raise where Ctrl-C ended a search, which resumes only where an option kept it."""
    nothing = f"nothing is kept without {option}"
    return interrupted(nothing if kept is None else "the same command resumes it")


def interrupted(message: str) -> typer.Exit:
    """To raise where Ctrl-C ended a run that is kept: says how to go on, exit code 130."""
    print(f"interrupted: {message}", file=sys.stderr)
    return typer.Exit(130)

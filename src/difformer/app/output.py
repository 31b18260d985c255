"""What commands print: tables and sentences on stdout, or one JSON document."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from difformer.blocks import Note, Plot, Table
from difformer.errors import RunError
from difformer.files import alone_in, json_text
from difformer.train.interrupts import exit_code
from difformer.train.settings import is_lead, launched, restarted

if TYPE_CHECKING:
    from difformer.blocks import Block


def print_json(value: Any) -> None:
    """Print one JSON document; a number that is not finite becomes null."""
    print(json_text(value, indent=2, ensure_ascii=False))


def print_table(table: Table, title: str | None = None) -> None:
    """Print a table on stdout, as wide as the terminal."""
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
    """Print a line on stderr."""
    if not quiet:
        print(message, file=sys.stderr)


def print_blocks(blocks: Sequence[Block]) -> None:
    """Print what a page shows: its sentences, its tables, and the numbers of its figures."""
    for block in blocks:
        shown = block.table if isinstance(block, Plot) else block
        if isinstance(shown, Note):
            print(shown.text)
        elif isinstance(shown, Table):
            print(f"\n{shown.caption}")
            notes = block.notes if isinstance(block, Plot) else ()
            print_table(replace(shown, caption="", notes=notes))


def finish_run(
    folder: Path,
    record: Mapping[str, Any],
    blocks: Callable[[], Sequence[Block]],
    *,
    page: bool,
    json: bool,
    more: str = "",
    **data: Any,
) -> None:
    """Write the page of a run where it is wanted, and say how good the run is and where it is.

    Args:
        record: what --json prints.
        blocks: makes what is printed otherwise.
        more: what else the folder holds.
        data: the run or its dataset, if in memory; see `write_report`.
    """
    from difformer.report.run_page import write_report

    path = write_report(folder, **data) if page else None
    if json:
        print_json({**record, "folder": str(folder)})
    else:
        print_blocks(blocks())
        print(f"kept in {folder}{more}" + ("" if path is None else f"; look at {path}"))


@contextmanager
def run_folder(stem: str, out: Path | None, *, resume: bool) -> Generator[Path, None, None]:
    """The folder of a run, closed to other runs in the block; removed if nothing is written to it.

    It is --out, or the next runs/STEM-number; with `resume` the last one.
    """
    # A restarted job resumes its run; of several processes rank 0 makes the folder.
    resume = resume or restarted() or not is_lead()
    if launched() and out is None:
        raise ValueError("--out must be given to torchrun: every process needs the same folder")
    folder = out or _numbered(stem, resume=resume)
    new = not folder.exists()
    if not new and not folder.is_dir():
        raise RunError(f"{folder} is a file: give --out a folder")
    try:
        with alone_in(folder, wait=False) if is_lead() else nullcontext():
            # A run on a series has its record before its config.toml.
            there = any((folder / name).exists() for name in ("config.toml", "series.json"))
            if there and not resume:
                raise RunError(
                    f"{folder} holds a run already: add --resume to continue it, or give another "
                    "folder"
                )
            yield folder
    finally:
        if new:
            with suppress(OSError):
                folder.rmdir()


def _numbered(stem: str, *, resume: bool) -> Path:
    there = [p for p in Path("runs").glob(f"{stem}-*") if p.name[len(stem) + 1 :].isdecimal()]
    number = max((int(p.name[len(stem) + 1 :]) for p in there), default=0)
    if resume and number == 0:
        raise RunError(f"there is no run runs/{stem}-* to resume: leave --resume out")
    return Path("runs") / f"{stem}-{number if resume else number + 1}"


def stopped(folder: Path, what: str = "the best epoch so far") -> typer.Exit:
    """To raise where Ctrl-C ended a run of `train`: says how to resume it; see `exit_code`."""
    words = sys.argv[1:]
    if not {"--out", "-o"} & {word.split("=")[0] for word in words}:
        words += ["--out", str(folder)]
    again = shlex.join(["difformer", *words, *([] if "--resume" in words else ["--resume"])])
    return interrupted(f"{what} is kept in {folder}; go on with: {again}")


def interrupted(message: str) -> typer.Exit:
    """To raise where Ctrl-C ended a command: prints the message; see `exit_code`."""
    print(f"interrupted: {message}", file=sys.stderr)
    return typer.Exit(exit_code())

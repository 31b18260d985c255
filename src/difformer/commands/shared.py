"""Options that several commands take, each declared once. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "TABLE",
    "TASKS",
    "Address",
    "DataDir",
    "DatasetName",
    "EdgesFile",
    "Epochs",
    "Id",
    "Json",
    "Kinds",
    "Label",
    "Overwrite",
    "Patience",
    "Quiet",
    "RunFolder",
    "Task",
    "argument",
    "option",
]

TABLE = "Your own table"  # the heading of its options in --help
TASKS = ("multiclass", "multilabel", "regression")


def option(*names: str, help: str, default: str = "", panel: str | None = None, **more: Any) -> Any:
    """An option whose help ends with its default, in words, where one is given here.

    Args:
        panel: its heading in --help.
        more: what `typer.Option` takes, such as metavar and min.
    """
    text = f"{help} [{default}]" if default else help
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument by its place."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


Json = Annotated[
    bool, option("--json", help="Print one JSON document on stdout, and nothing else.")
]
Quiet = Annotated[bool, option("--quiet", "-q", help="No progress bar.")]
DataDir = Annotated[
    str | None,
    option("--data-dir", metavar="DIR", help="Where datasets are; before $DIFFORMER_DATA."),
]
Overwrite = Annotated[bool, option("--overwrite", help="Replace FILE where it is there.")]
RunFolder = Annotated[Path, argument("RUN", "The folder of a run of `train`.")]
DatasetName = Annotated[str, argument("DATASET", "See `difformer datasets`.")]
Address = Annotated[
    str | None,
    option(
        "--address",
        metavar="HOST:PORT",
        help="With --engine ray: the cluster. Without it, one of this machine alone.",
    ),
]
Epochs = Annotated[int, typer.Option("--epochs", metavar="N", help="The most epochs.")]
Patience = Annotated[
    int, typer.Option("--patience", metavar="N", help="Stop without progress after.")
]

Label = Annotated[
    list[str] | None,
    option(
        "--label",
        metavar="COLUMN",
        help="What to predict; empty cells are predicted. Repeat it for several columns of yes or "
        "no, or of numbers.",
        panel=TABLE,
    ),
]
Id = Annotated[
    str | None,
    option(
        "--id",
        metavar="COLUMN",
        help="The name of each row, for answers, page and --edges.",
        panel=TABLE,
    ),
]
EdgesFile = Annotated[
    Path | None,
    option(
        "--edges",
        metavar="FILE",
        help="With --nodes or --series: source, target, maybe weight.",
        panel=TABLE,
    ),
]
Kinds = Annotated[
    list[str] | None,
    option(
        "--kind",
        metavar="COLUMN=KIND",
        help="What a column is: number, date, category, text or skip. May be repeated.",
        panel=TABLE,
    ),
]
Task = Annotated[
    str | None,
    option(
        "--task",
        metavar="|".join(TASKS),
        help="What the label is, where its values mislead; multilabel is for several labels.",
        panel=TABLE,
    ),
]

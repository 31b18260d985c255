"""Options that several commands take, each declared once. No torch here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.experiments.values import options_of
from difformer.train.settings import TrainSettings

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
    "NoHeader",
    "Overwrite",
    "Patience",
    "Quiet",
    "RunFolder",
    "Task",
    "argument",
    "flag_of",
    "option",
    "out",
    "setting",
]

TABLE = "Your own table"  # the heading of its options in --help
TASKS = ("multiclass", "multilabel", "regression")


def option(*names: str, help: str, default: str = "", panel: str | None = None, **more: Any) -> Any:
    """An option; its help ends with its default in words, if one is given here.

    Args:
        panel: its heading in --help.
        more: what `typer.Option` takes, such as metavar and min.
    """
    text = f"{help} [{default}]" if default else help
    return typer.Option(*names, help=text, show_default=False, rich_help_panel=panel, **more)


def argument(metavar: str, help: str) -> Any:
    """An argument by its place."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def out(metavar: str, help: str, default: str = "") -> Any:
    """--out: where a command puts what it makes."""
    return option("--out", "-o", metavar=metavar, help=help, default=default)


def setting(settings: type[Any], name: str) -> Any:
    """An option with the name and the help of a field of a settings dataclass; never None."""
    found = options_of(settings)[name]
    text = found.help.partition("; none:")[0]
    metavar = found.metavar.removesuffix("|none")
    return typer.Option(found.flag, metavar=metavar, help=f"{text[0].upper()}{text[1:]}.")


def flag_of(name: str) -> str:
    """How an option is spelled on the command line."""
    return f"--{name.replace('_', '-')}"


Json = Annotated[
    bool, option("--json", help="Print one JSON document on stdout, and nothing else.")
]
Quiet = Annotated[bool, option("--quiet", "-q", help="No progress bar.")]
DataDir = Annotated[
    str | None,
    option(
        "--data-dir", metavar="DIR", help="The folder of the datasets; used before $DIFFORMER_DATA."
    ),
]
Overwrite = Annotated[bool, option("--overwrite", help="Replace FILE if it exists.")]
RunFolder = Annotated[Path, argument("RUN", "The folder of a run of `train`.")]
DatasetName = Annotated[str, argument("DATASET", "A name of `difformer datasets`, or a table.")]
Address = Annotated[
    str | None,
    option(
        "--address",
        metavar="HOST:PORT",
        help="With --engine ray: the address of the cluster; without it, this machine alone.",
    ),
]
Epochs = Annotated[int, setting(TrainSettings, "epochs")]
Patience = Annotated[int, setting(TrainSettings, "patience")]

Label = Annotated[
    list[str] | None,
    option(
        "--label",
        metavar="COLUMN",
        help="The column to predict; its empty cells are predicted. May be repeated, for several "
        "columns of yes or no, or of numbers.",
        panel=TABLE,
    ),
]
Id = Annotated[
    str | None,
    option(
        "--id",
        metavar="COLUMN",
        help="The column that names each row, for predictions, the page and --edges.",
        panel=TABLE,
    ),
]
EdgesFile = Annotated[
    Path | None,
    option(
        "--edges",
        metavar="FILE",
        help="The edges of the rows, or of the nodes of --series: source, target and, if wanted, "
        "weight.",
        panel=TABLE,
    ),
]
NoHeader = Annotated[
    bool,
    option(
        "--no-header",
        help="The first line of .csv files, also of --edges, is a row already: the columns are "
        "column1, column2, ...",
        panel=TABLE,
    ),
]
Kinds = Annotated[
    list[str] | None,
    option(
        "--kind",
        metavar="COLUMN=KIND",
        help="The kind of a column: number, date, category, text or skip. May be repeated.",
        panel=TABLE,
    ),
]
Task = Annotated[
    str | None,
    option(
        "--task",
        metavar="|".join(TASKS),
        help="The task, if it cannot be told from the label; multilabel is for several labels.",
        panel=TABLE,
    ),
]

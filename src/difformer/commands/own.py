"""Own tables on the command line: the options of `train --nodes`, and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from difformer.commands.options import Given
from difformer.commands.output import (
    how_to_resume,
    interrupted,
    print_json,
    print_table,
    run_folder,
    say,
    write_page,
)
from difformer.estimators.settings import FitSettings
from difformer.experiments.own.table import OwnTable
from difformer.experiments.tables import Table
from difformer.train.settings import TrainSettings

__all__ = [
    "EdgesFile",
    "Id",
    "Kinds",
    "Label",
    "Nodes",
    "Task",
    "Told",
    "check_own",
    "own_dataset",
    "own_options",
    "own_params",
    "own_table",
    "parse_kinds",
    "table_named",
    "train_table",
]


TASKS = ("multiclass", "multilabel", "regression")


def _option(flag: str, metavar: str, help: str) -> Any:
    return typer.Option(
        flag, metavar=metavar, help=help, show_default=False, rich_help_panel="Your own table"
    )


LOOP = {
    **{name: name for name in TrainSettings.names() if name in FitSettings.__dataclass_fields__},
    "seed": "random_state",
}
"""The options of the loop that the estimators take, and what they call them."""

ONE_FORM = ("lr", "weight_decay", "patience", "consistency")
"""Those that recipe auto sets for each of its forms."""


def _own_defaults() -> str:
    """The options of the loop whose defaults are others with a table."""
    loop = {each.name: each.default for each in fields(TrainSettings)}
    own = {each.name: each.default for each in fields(FitSettings)}
    named = ((name, own[param]) for name, param in LOOP.items() if name != "seed")
    return ", ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in named if value != loop[name]
    )


Nodes = Annotated[
    Path | None,
    _option(
        "--nodes",
        "FILE",
        "A table: .csv, .tsv, .jsonl, .parquet or .npz, one line per row. Its defaults are those "
        f"of the estimators: {_own_defaults()}.",
    ),
]
Label = Annotated[
    list[str] | None,
    _option(
        "--label",
        "COLUMN",
        "What to predict; empty cells are predicted. Repeat it for several columns of yes or no, "
        "or of numbers.",
    ),
]
Id = Annotated[str | None, _option("--id", "COLUMN", "The name of each row, for --edges.")]
EdgesFile = Annotated[
    Path | None,
    _option(
        "--edges",
        "FILE",
        "With --nodes or --series: source, target, maybe weight.",
    ),
]

Kinds = Annotated[
    list[str] | None,
    _option(
        "--kind",
        "COLUMN=KIND",
        "What a column is: number, date, category, text or skip. May be repeated.",
    ),
]
Task = Annotated[
    str | None,
    _option(
        "--task",
        "|".join(TASKS),
        "What the label is, where its values mislead; multilabel is for several labels.",
    ),
]

SYSTEMS = {
    "difformer": None,
    "difformer-s": "simple",
    "difformer-a": "sigmoid",
    "auto": "auto",
}


def own_table(
    nodes: Path,
    label: list[str] | None,
    *,
    id: str | None = None,
    edges: Path | None = None,
    task: str | None = None,
    kinds: list[str] | None = None,
) -> OwnTable:
    """The table that the options name."""
    if not label:
        raise ValueError("--label COLUMN must be given with --nodes: what to predict")
    if nodes.suffix.lower() == ".pt":
        raise ValueError(f"--nodes must be a table: give {nodes} in place of NAME")
    if task not in (None, *TASKS):
        raise ValueError(f"--task must be one of {', '.join(TASKS)}, got {task!r}")
    for path in (nodes, edges):
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: no such file")
    return OwnTable(
        nodes=str(nodes),
        label=_one_or_several(label),
        id=id,
        edges=None if edges is None else str(edges),
        task=task,
        kinds=parse_kinds(kinds),
    )


def parse_kinds(pairs: list[str] | None) -> dict[str, str]:
    """What `--kind COLUMN=KIND` says, by column."""
    from difformer.data.columns import KINDS

    named: dict[str, str] = {}
    for pair in pairs or []:
        column, equals, kind = pair.rpartition("=")
        if not equals or not column:
            raise ValueError(f"--kind must be COLUMN=KIND, got {pair!r}")
        if kind not in KINDS:
            raise ValueError(f"kind of {column!r} must be one of {', '.join(KINDS)}, got {kind!r}")
        named[column] = kind
    return named


def check_own(**given: Any) -> None:
    """An option of own tables without a table is an error."""
    for name, value in given.items():
        if value:
            if name == "edges":
                raise ValueError("--edges must come with --series or --nodes: it names their rows")
            raise ValueError(f"--{name} needs --nodes FILE: the table it is of")


def table_named(name: str | None) -> Path | None:
    """The file, where what stands in a dataset's place is a table by its ending."""
    from difformer.data.rawtable import ENDINGS

    return Path(name) if name is not None and Path(name).suffix.lower() in ENDINGS else None


def _one_or_several(label: list[str]) -> str | list[str]:
    return label[0] if len(label) == 1 else label


def own_options(
    name: str, label: list[str] | None, id: str | None, edges: Path | None
) -> dict[str, Any]:
    """The options of `read_table` where a dataset is named by a file; none for the others."""
    if table_named(name) is None:
        for option, value in (("label", label), ("id", id), ("edges", edges)):
            if value:
                raise ValueError(f"--{option} needs a table in place of the dataset's name: {name}")
        return {}
    if not label:
        raise ValueError(f"--label COLUMN must be given with {name}: what to predict")
    found: dict[str, Any] = {
        "label": _one_or_several(label),
        "id": id,
        "edges": None if edges is None else str(edges),
    }
    return {key: value for key, value in found.items() if value is not None}


def own_dataset(name: str, label: list[str] | None, id: str | None, edges: Path | None) -> Any:
    """The Dataset of a file of one's own, or the name as it is."""
    options = own_options(name, label, id, edges)
    if not options:
        return name
    from difformer.data.tables import read_table

    return read_table(name, **options)


@dataclass(frozen=True)
class Told:
    """How a run is kept and shown, as the command line says."""

    resume: bool
    report: bool
    json: bool
    quiet: bool


def train_table(table: OwnTable, params: Mapping[str, Any], out: Path | None, told: Told) -> None:
    """Read the table, show its columns, train, and say where the run is."""
    folder = run_folder(Path(table.nodes).stem, out, resume=told.resume)
    from difformer.experiments.own.train import train_own

    data = table.read()
    assert data.encoder is not None
    if not told.json:
        columns = Table(("column", "is", "becomes"), tuple(data.encoder.describe()))
        print_table(columns, data.describe())
    quiet = told.quiet or told.json
    result = train_own(data, folder, params, table=table, resume=told.resume, quiet=quiet)
    if result["interrupted"]:
        again = how_to_resume(folder)
        raise interrupted(f"what was trained so far is kept in {folder}; go on with: {again}")
    page = write_page(folder, data) if told.report else None
    if told.json:
        print_json({**result, "folder": str(folder)})
        return
    say(f"graph: {result['graph']}", quiet=told.quiet)
    if result.get("choice"):
        say(result["choice"], quiet=told.quiet)
    if result["held_out"]:
        print_table(_scores(result["held_out"]))
    if strongest := result.get("peers", [])[:2]:
        two = ", ".join(f"{p['title']} {p['metric']} {p['value']:.4g}" for p in strongest)
        say(f"the strongest simple peers on held-out labels: {two}", quiet=told.quiet)
    empty = result["rows"] - result["labelled"]
    print(f"kept in {folder}" + (f"; {empty} predictions in predictions.csv" if empty else ""))
    if page is not None:
        print(f"look at {page}")
    print(f"new rows: difformer predict {folder} NEW.csv -o OUT.csv")


def _scores(told: Mapping[str, Any]) -> Table:
    """The metrics of the held-out rows with their intervals, in the table's units."""

    def figure(value: float | None) -> str:
        return "–" if value is None else f"{value:.4g}"

    rows = tuple(
        (
            name.replace("_", " "),
            figure(value),
            " to ".join(figure(end) for end in told["intervals"][name]),
            figure(told["baseline"].get(name)),
        )
        for name, value in told["metrics"].items()
    )
    title = f"on {told['rows']:,} labelled rows held out"
    return Table((title, "DIFFormer", "95 % interval", "knowing no columns"), rows)


def own_params(
    given: Given, model: str | None, recipe: str | None, neighbours: int | None
) -> dict[str, Any]:
    """The options of the model and of the loop as parameters of the estimators."""
    if model is not None and model not in SYSTEMS:
        raise ValueError(f"--model must be one of {', '.join(SYSTEMS)} with --nodes, got {model}")
    found: dict[str, Any] = {"kernel": SYSTEMS[model]} if model else {}
    found |= {"recipe": recipe} if recipe else {}
    found |= {"n_neighbors": neighbours, "graph": "knn"} if neighbours is not None else {}
    for name, value in given.train.items():
        if name not in LOOP:
            raise ValueError(f"--{name.replace('_', '-')} must be left out with --nodes")
        found[LOOP[name]] = value
    chosen = dict(given.model)
    found |= {name: chosen.pop(name) for name in ("hidden_channels", "kernel") if name in chosen}
    found |= {"options": chosen} if chosen else {}
    named = found.get("recipe", "auto") != "auto" or found.get("kernel") is not None
    if named or "options" in found:
        found["early_stopping"] = True  # one form: held-out labels pick its epoch, and score it
    elif one := next((name for name in ONE_FORM if name in given.train), None):
        raise ValueError(
            f"--{one.replace('_', '-')} must come with --recipe or --model: recipe auto, which "
            "trains several forms, sets it for each"
        )
    FitSettings(**found).check_settings()  # before torch is imported and the table read
    return found

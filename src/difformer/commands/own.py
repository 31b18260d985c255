"""Own tables on the command line: what `train --nodes` does, and a table in a dataset's place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from difformer.commands.asked import KERNELS, LOOP, Asked, of_table
from difformer.commands.options import Given
from difformer.commands.output import (
    print_json,
    print_table,
    run_folder,
    say,
    stopped,
    write_page,
)
from difformer.commands.shared import TASKS
from difformer.estimators.settings import FitSettings
from difformer.experiments.own.table import OwnTable
from difformer.experiments.tables import Table

__all__ = ["own_dataset", "own_options", "parse_kinds", "table_named", "train_table"]

ONE_FORM = ("lr", "weight_decay", "patience", "consistency")
"""Those that recipe auto sets for each of its forms."""

SYSTEMS = {"difformer": None, **KERNELS, "auto": "auto"}


def _own_table(nodes: Path, asked: Asked) -> OwnTable:
    """The table that the options name."""
    if not asked.label:
        raise ValueError("--label COLUMN must be given with --nodes: what to predict")
    if nodes.suffix.lower() == ".pt":
        raise ValueError(f"--nodes must be a table: give {nodes} in place of NAME")
    if asked.task not in (None, *TASKS):
        raise ValueError(f"--task must be one of {', '.join(TASKS)}, got {asked.task!r}")
    for path in (nodes, asked.edges):
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: no such file")
    return OwnTable(
        nodes=str(nodes),
        label=_one_or_several(asked.label),
        id=asked.id,
        edges=None if asked.edges is None else str(asked.edges),
        task=asked.task,
        kinds=parse_kinds(asked.kind),
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


def train_table(nodes: Path, asked: Asked, given: Given) -> None:
    """Read the table, show its columns, train, and say where the run is."""
    of_table(asked)
    table, params = _own_table(nodes, asked), _params(asked, given)
    folder = run_folder(nodes.stem, asked.out, resume=asked.resume)
    from difformer.experiments.loaded import open_table
    from difformer.experiments.own.train import train_own

    data = table.read()
    assert data.encoder is not None
    if not asked.json:
        columns = Table(("column", "is", "becomes"), tuple(data.encoder.describe()))
        print_table(columns, data.describe())
    quiet = asked.quiet or asked.json
    result, run = train_own(data, folder, params, table=table, resume=asked.resume, quiet=quiet)
    if run is None:
        raise stopped(folder, "what was trained so far")
    page = write_page(folder, loaded=open_table(folder, run, data)) if asked.report else None
    if asked.json:
        print_json({**result, "folder": str(folder)})
        return
    for line in _said(result):
        say(line, quiet=asked.quiet)
    if result["held_out"]:
        print_table(_scores(result["held_out"]))
    empty = result["rows"] - result["labelled"]
    print(f"kept in {folder}" + (f"; {empty} predictions in predictions.csv" if empty else ""))
    if page is not None:
        print(f"look at {page}")
    print(f"new rows: difformer predict {folder} NEW.csv -o OUT.csv")


def _said(result: Mapping[str, Any]) -> list[str]:
    """What a person should know of the fit: its graph, what was tried, and the strongest peers."""
    lines = [f"graph: {result['graph']}"]
    lines += [result["choice"]] if result.get("choice") else []
    if strongest := result.get("peers", [])[:2]:
        two = ", ".join(f"{p['title']} {p['metric']} {p['value']:.4g}" for p in strongest)
        lines.append(f"the strongest simple peers on held-out labels: {two}")
    return lines


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


def _params(asked: Asked, given: Given) -> dict[str, Any]:
    """The options of the model and of the loop as parameters of the estimators."""
    model, recipe, neighbours = asked.model, asked.recipe, asked.neighbours
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

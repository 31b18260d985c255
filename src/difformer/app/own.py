"""Tables and series of users on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from difformer.app.asked import LOOP, Asked, check_files, chosen
from difformer.app.options import KERNELS, TASKS, Given, flag_of, series_options
from difformer.app.output import finish_run, print_table, run_folder, say, stopped
from difformer.blocks import Table
from difformer.estimators.settings import ONE_FORM, FitSettings
from difformer.jobs.job import OwnTable
from difformer.jobs.series import SeriesSettings
from difformer.jobs.series import train_series as train
from difformer.nn.config import DIFFormerConfig
from difformer.settings import options_of
from difformer.systems.registry import DIFFormerOptions

SYSTEMS = {"difformer": None, **KERNELS, "auto": "auto"}


def parse_kinds(pairs: list[str] | None) -> dict[str, str]:
    """The kinds that `--kind COLUMN=KIND` gives, by column."""
    from difformer.data.table.columns import KINDS

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
    """The path, if a dataset is named by a file that is a table by its ending; else None."""
    from difformer.data.table.files import ENDINGS

    return Path(name) if name is not None and Path(name).suffix.lower() in ENDINGS else None


def own_table(
    name: str,
    label: list[str] | None,
    id: str | None,
    edges: Path | None,
    no_header: bool,
) -> OwnTable | None:
    """The table that takes a dataset's place in `compare` and `tune`; None for a dataset's name."""
    if table_named(name) is not None:
        return _described(Path(name), label, id, edges, no_header)
    named = {"label": label, "id": id, "edges": edges, "no_header": no_header}
    for option, value in named.items():
        if value:
            raise ValueError(
                f"{flag_of(option)} needs a table in place of the dataset's name: {name}"
            )
    return None


def _described(
    nodes: Path,
    label: list[str] | None,
    id: str | None,
    edges: Path | None,
    no_header: bool,
    **more: Any,
) -> OwnTable:
    if not label:
        raise ValueError(f"--label COLUMN must be given with {nodes}: what to predict")
    check_files(nodes, edges)
    return OwnTable(
        nodes=str(nodes),
        label=label[0] if len(label) == 1 else label,
        id=id,
        edges=None if edges is None else str(edges),
        header=False if no_header else None,
        **more,
    )


def train_table(nodes: Path, asked: Asked, given: Given) -> None:
    """Read the table, show its columns, train, and say where the run is."""
    params = _params(asked, given)
    if nodes.suffix.lower() == ".pt":
        raise ValueError(f"--nodes must be a table: give {nodes} in place of NAME")
    if asked.task not in (None, *TASKS):
        raise ValueError(f"--task must be one of {', '.join(TASKS)}, got {asked.task!r}")
    more: Any = {"task": asked.task, "kinds": parse_kinds(asked.kind)}
    table = _described(nodes, asked.label, asked.id, asked.edges, asked.no_header, **more)
    with run_folder(nodes.stem, asked.out, resume=asked.resume) as folder:
        from difformer.jobs.table import train_own
        from difformer.report.table_page import result_blocks
        from difformer.runs.open import open_table

        data = table.read()
        assert data.encoder is not None
        if not asked.json:
            columns = Table("", ("column", "is", "becomes"), data.encoder.describe())
            print_table(columns, data.describe())
        quiet = asked.quiet or asked.json
        result, run = train_own(data, folder, params, table=table, resume=asked.resume, quiet=quiet)
        if run is None:
            raise stopped(folder, "what was trained so far")
        choice = [result["choice"]] if result.get("choice") else []
        for line in (f"graph: {result['graph']}", *choice):
            say(line, quiet=quiet)
        empty = result["rows"] - result["labelled"]
        finish_run(
            folder,
            result,
            lambda: result_blocks(result),
            page=asked.report,
            json=asked.json,
            more=f", {empty} predictions in predictions.csv" if empty else "",
            loaded=open_table(folder, run, data) if asked.report else None,
        )
        if not asked.json:
            print(f"new rows: difformer predict {folder} NEW.csv -o OUT.csv")


def _params(asked: Asked, given: Given) -> dict[str, Any]:
    """The options of the model and of the loop as parameters of the estimators."""
    given = given.with_set(asked.set, options_of(DIFFormerOptions))
    found = chosen(asked, given, "--nodes", systems=SYSTEMS, loop=LOOP)
    if asked.neighbours is not None:
        found |= {"n_neighbors": asked.neighbours, "graph": "knn"}
    model = dict(given.model)
    found |= {name: model.pop(name) for name in ("hidden_channels", "kernel") if name in model}
    found |= {"options": model} if model else {}
    named = found.get("recipe", "auto") != "auto" or found.get("kernel") is not None
    if named or "options" in found:
        found["early_stopping"] = True  # one form: held-out labels pick its epoch, and score it
    elif one := next((name for name in ONE_FORM if name in given.train), None):
        raise ValueError(
            f"{flag_of(one)} must come with --recipe or --model: recipe auto, which "
            "trains several forms, sets it for each"
        )
    FitSettings(**found).check_settings()  # before torch is imported and the table read
    return found


def train_series(series: Path, asked: Asked, given: Given) -> None:
    """Train, test from rolling origins, forecast, and say where the run is."""
    settings = _settings(asked, given)
    check_files(series, asked.edges, asked.known, asked.places)
    with run_folder(f"{series.stem}-forecast", asked.out, resume=asked.resume) as folder:
        record = train(
            series, asked.edges, folder, settings, known=asked.known, places=asked.places
        )
        if record["interrupted"]:
            raise stopped(folder)
        ahead = "step" if settings.steps == 1 else f"{settings.steps} steps"
        from difformer.report.series_page import learned_notes, result_blocks

        finish_run(
            folder,
            record,
            lambda: [*result_blocks(record), *learned_notes(record)],
            page=asked.report,
            json=asked.json,
            more=f", the next {ahead} in forecast.csv",
        )


def _settings(asked: Asked, given: Given) -> SeriesSettings:
    """The settings that the command line gives; ValueError for an option that is not for series."""
    own = series_options()
    given = given.with_set(asked.set, {**own, **options_of(DIFFormerConfig)})
    found = chosen(asked, given, "--series", systems=KERNELS, loop={name: name for name in own})
    found |= {k: v for k, v in given.model.items() if k in own}
    found["options"] = {k: v for k, v in given.model.items() if k not in own}
    return SeriesSettings(**found)

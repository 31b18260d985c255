"""difformer train: a model of a dataset, a table or a series, kept in a run folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.app.asked import (
    DATASET,
    LOOP,
    Asked,
    check_files,
    check_meant_for,
    of_estimator,
    own_table,
    parse_kinds,
    table_named,
)
from difformer.app.options import (
    TASKS,
    Given,
    flag_of,
    parse_seeds,
    series_options,
    set_texts,
    with_options,
)
from difformer.app.output import finish_run, print_table, run_folder, say, stopped
from difformer.blocks import Note, Table
from difformer.estimators.settings import ONE_FORM, FitSettings
from difformer.jobs.job import AUTO_SPLIT, Experiment, read_config_file, recipe_for
from difformer.jobs.series import SeriesSettings
from difformer.nn.config import DIFFormerConfig
from difformer.settings import options_of
from difformer.shards.store import Manifest, is_shards
from difformer.systems.registry import DIFFormerOptions, get_system
from difformer.train.settings import is_lead, launched

if TYPE_CHECKING:
    from difformer.blocks import Block
    from difformer.data.dataset import Dataset
    from difformer.train.folder import Run


def train(asked: Asked, given: Given) -> None:
    """Train a model on a dataset, your own table or series, and keep the run in a folder.

    Example: difformer train cora --model difformer-s --split random:0 --seeds 5

    Your own table: difformer train table.csv --label COLUMN [--id COLUMN --edges edges.csv]
    finds the kind of each column, trains on the rows with a label and predicts the others. --model
    auto tries DIFFormer-a as well, and keeps it if it validates better. --series fits a
    forecaster, tests it from rolling origins beside naive forecasts, and writes forecast.csv.

    Validation picks the epoch; the test rows are used once, at the end. Ctrl-C keeps the best epoch
    so far, and --resume goes on. The folder has the settings, split, metrics, model and a page. A
    folder of `difformer shard` is trained from its parts, by one process, torchrun or Ray.

    Settings: these flags, or --set name=value with any name that `difformer settings` lists.
    """
    named = None if asked.config is not None else table_named(asked.name)
    if named is not None and asked.series is None and asked.nodes is None:
        asked = replace(asked, name=None, nodes=named)
    if asked.series is not None:
        _train_series(asked.series, asked, given)
    elif asked.nodes is not None:
        _train_table(asked.nodes, asked, given)
    else:
        _train_dataset(asked, given)


command = with_options(train, Asked)


def _train_table(nodes: Path, asked: Asked, given: Given) -> None:
    """Read the table, show its columns, train, and say where the run is."""
    params = _table_settings(asked, given)
    if nodes.suffix.lower() == ".pt":
        raise ValueError(f"--nodes must be a table: give {nodes} in place of NAME")
    if asked.task not in (None, *TASKS):
        raise ValueError(f"--task must be one of {', '.join(TASKS)}, got {asked.task!r}")
    more: Any = {"task": asked.task, "kinds": parse_kinds(asked.kind)}
    table = own_table(nodes, asked.label, asked.id, asked.edges, asked.no_header, **more)
    with run_folder(nodes.stem, asked.out, resume=asked.resume) as folder:
        from difformer.data.table.read import read_table
        from difformer.jobs.table import train_own
        from difformer.report.table_page import result_blocks
        from difformer.runs.open import open_table

        data = read_table(**table)
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


def _table_settings(asked: Asked, given: Given) -> dict[str, Any]:
    """The options of the model and of the loop as parameters of the estimators."""
    check_meant_for(asked, "--nodes")
    given = given.with_set(asked.set, options_of(DIFFormerOptions))
    found = of_estimator(asked, given, "--nodes", LOOP)
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


def _train_series(series: Path, asked: Asked, given: Given) -> None:
    """Train, test from rolling origins, forecast, and say where the run is."""
    settings = _series_settings(asked, given)
    check_files(series, asked.edges, asked.known, asked.places)
    from difformer.jobs.series import train_series

    with run_folder(f"{series.stem}-forecast", asked.out, resume=asked.resume) as folder:
        record = train_series(
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


def _series_settings(asked: Asked, given: Given) -> SeriesSettings:
    """The settings that the command line gives; ValueError for an option that is not for series."""
    check_meant_for(asked, "--series")
    own = series_options()
    given = given.with_set(asked.set, {**own, **options_of(DIFFormerConfig)})
    found = of_estimator(asked, given, "--series", {name: name for name in own})
    found |= {k: v for k, v in given.model.items() if k in own}
    found["options"] = {k: v for k, v in given.model.items() if k not in own}
    return SeriesSettings(**found)


def _train_dataset(asked: Asked, given: Given) -> None:
    check_meant_for(asked, DATASET)
    if asked.monitor not in (None, "energy"):
        raise ValueError(f"--monitor must be energy, got {asked.monitor!r}")
    if asked.engine not in (None, "ray"):
        raise ValueError(f"--engine must be ray, got {asked.engine!r}")
    if asked.engine is None and (asked.workers or asked.address):
        raise ValueError("--workers and --address must come with --engine ray")
    experiment = _experiment(asked, given)  # all options are checked before any data is read
    manifest = Manifest.read(experiment.dataset) if is_shards(experiment.dataset) else None
    if asked.engine is not None and manifest is None:
        raise ValueError("--engine ray must be given parts: a folder that `difformer shard` made")
    from difformer.jobs.rows import load_data

    data = None if manifest is not None else load_data(experiment, asked.data_dir)
    graph = manifest.graph if manifest is not None else bool(data and data.edge_index is not None)
    whole = data is not None and _is_whole(data)
    experiment = _experiment(asked, given, graph=graph, whole=whole)
    stem = Path(experiment.dataset).name.removesuffix(".pt")  # a .pt file may be in any folder
    with run_folder(f"{stem}-{experiment.system}", asked.out, resume=asked.resume) as folder:
        result = _run(experiment, folder, data, asked)
        if not is_lead():
            return
        finish_run(
            folder,
            {**experiment.config(), **result.to_json()},
            lambda: _blocks(folder),
            page=asked.report and not result.interrupted,
            json=asked.json,
            more="" if manifest is None else ", predictions of all rows in predictions-*",
            dataset=data,
        )
        if result.interrupted:
            raise stopped(folder)


def _blocks(folder: Path) -> list[Block]:
    """How good the run is and what it cost, as its page shows it."""
    from difformer.report.run_page import cost_section, headline, results_section
    from difformer.runs.run import read_run

    run = read_run(folder)
    sections = (results_section(run), cost_section(run))
    shown = [block for section in sections for block in section.blocks]
    return [Note(f"{run.title}. {headline(run)}"), *shown]


def _is_whole(data: Dataset) -> bool:
    """Whether an estimator can be fitted to the data: one table of rows, in one process."""
    from difformer.data.snapshots import TemporalDataset

    suits = get_system("difformer").needs(data) is None
    return suits and not isinstance(data, TemporalDataset) and not launched()


def _default_system(asked: Asked, given: Given, *, whole: bool) -> str:
    """The estimators' default, unless an option of a single model or of its loop is given."""
    of_one = asked.recipe or asked.config or asked.tensorboard or asked.monitor or given.model
    of_one = of_one or {*given.train, *set_texts(asked.set)} - {"seed"}
    return "difformer" if whole and not of_one else "difformer-s"


def _experiment(
    asked: Asked, given: Given, *, graph: bool = True, whole: bool = True
) -> Experiment:
    """The settings of the config file, overridden by the command line."""
    base: dict[str, Any] = {} if asked.config is None else read_config_file(asked.config)
    dataset = asked.name or base.get("dataset")
    if dataset is None:
        raise ValueError("NAME must be given: a dataset of `difformer datasets`, such as cora")
    default = _default_system(asked, given, whole=whole)
    system = asked.model or base.get("system", default)
    given = given.with_set(asked.set, options_of(get_system(system).config))
    if unused := next((name for name in given.train if not get_system(system).uses(name)), None):
        raise ValueError(
            f"{flag_of(unused)} must be left out with --model {system}: it is of models that the "
            "loop trains, such as difformer-s"
        )
    # Settings of another system or recipe do not apply.
    changed = (asked.model or asked.recipe) is not None and (
        (asked.model or base.get("system")) != base.get("system", "difformer-s")
        or (asked.recipe or base.get("recipe")) != base.get("recipe")
    )
    recipe = asked.recipe or (None if changed else base.get("recipe"))
    options = {} if changed else dict(base.get("model", {}))
    options |= given.model
    loop = {**base.get("train", {}), **given.train}
    data = dict(base.get("data", {}))
    if asked.neighbours is not None:
        data["neighbours"] = asked.neighbours
    return Experiment.make(
        dataset,
        system=system,
        recipe=recipe_for(system, recipe, graph=graph),
        split=asked.split or base.get("split", AUTO_SPLIT),
        seeds=parse_seeds(asked.seeds, loop.get("seed", 0)) or base.get("seeds"),
        data=data,
        model=options,
        train=loop,
    )


def _run(experiment: Experiment, folder: Path, data: Dataset | None, asked: Asked) -> Run:
    """Train on the data in memory, or from shards."""
    from difformer.jobs.rows import run_experiment
    from difformer.jobs.shards import run_shards
    from difformer.train.callbacks import Callback, Energies, Progress, TensorBoard

    def look(seed: int) -> list[Callback]:
        several = len(experiment.seeds) > 1
        title = f"{experiment.title}, seed {seed}" if several else experiment.title
        place = folder / "tensorboard" / (f"seed-{seed}" if several else "")
        # TensorBoard comes last: it writes the columns that others add.
        beside: list[Callback] = [Energies()] if asked.monitor == "energy" else []
        beside += [TensorBoard(place)] if asked.tensorboard else []
        return [Progress(title, quiet=asked.quiet or asked.json), *beside]

    if data is None:
        if asked.monitor is not None:
            raise ValueError("--monitor must be left out with shards")
        if asked.engine is not None:
            from difformer.jobs.shards import train_on_ray

            workers = asked.workers or 1
            return train_on_ray(experiment, folder, workers=workers, address=asked.address)
        return run_shards(experiment, folder=folder, callbacks=look)
    return run_experiment(experiment, dataset=data, folder=folder, callbacks=look)

"""difformer train: a model of a dataset, a table or a series, kept in a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.app.asked import Asked, check_dataset
from difformer.app.options import Given, flag_of, parse_seeds, set_names, with_options
from difformer.app.output import finish_run, run_folder, stopped
from difformer.app.own import table_named, train_series, train_table
from difformer.jobs.job import AUTO_SPLIT, Experiment, read_config_file, recipe_for
from difformer.settings import options_of
from difformer.shards.store import Manifest, is_shards
from difformer.systems.registry import get_system
from difformer.train.settings import is_lead, launched

if TYPE_CHECKING:
    from difformer.blocks import Block
    from difformer.data.dataset import Dataset
    from difformer.train.seeds import SeedsResult


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
    table = asked.nodes or (table_named(asked.name) if asked.config is None else None)
    if asked.series is not None:
        train_series(asked.series, asked, given)
    elif table is not None:
        train_table(table, asked, given)
    else:
        _train_dataset(asked, given)


command = with_options(train, Asked)


def _train_dataset(asked: Asked, given: Given) -> None:
    check_dataset(asked)
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
    from difformer.blocks import Note
    from difformer.report.run_page import cost_section, headline, results_section
    from difformer.runs.run import read_run

    run = read_run(folder)
    sections = (results_section(run), cost_section(run, run.seeds[0]))
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
    of_one = of_one or {*given.train, *set_names(asked.set)} - {"seed"}
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


def _run(experiment: Experiment, folder: Path, data: Dataset | None, asked: Asked) -> SeedsResult:
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

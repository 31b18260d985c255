"""difformer tune: search for a system's settings, by validation only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from difformer.app import options as shared
from difformer.app.asked import named_table
from difformer.app.options import flag, parse_set
from difformer.app.output import interrupted, print_json, print_table, say
from difformer.blocks import Table
from difformer.compare.compare import DEFAULT_TRAIN
from difformer.compare.tune import SEARCHES, Trial, TuneResult, grid_size, tune
from difformer.jobs.job import AUTO_SPLIT, Experiment
from difformer.settings import options_of
from difformer.systems.registry import get_system

SHOWN = 10  # trials in the table


def command(
    dataset: shared.DatasetName,
    model: Annotated[str, flag("NAME", "The system to tune.")] = "difformer-s",
    trials: Annotated[int, flag("N", "Settings to try.")] = 30,
    search: Annotated[
        str,
        flag(
            "|".join(SEARCHES),
            "grid: the paper's grid, in random order; search: guided by earlier trials.",
        ),
    ] = "search",
    split: Annotated[str, flag("SPLIT", "The split; its test rows are never used.")] = AUTO_SPLIT,
    epochs: shared.Epochs = DEFAULT_TRAIN["epochs"],
    patience: shared.Patience = DEFAULT_TRAIN["patience"],
    set_: Annotated[
        list[str] | None, flag("NAME=VALUE", "Fix an option of the system.", "--set")
    ] = None,
    storage: Annotated[
        Path | None, flag("FILE", "An SQLite file to resume the search from.")
    ] = None,
    label: shared.Label = None,
    id: shared.Id = None,
    edges: shared.EdgesFile = None,
    no_header: shared.NoHeader = False,
    data_dir: shared.DataDir = None,
    json: shared.Json = False,
    quiet: shared.Quiet = False,
) -> None:
    """Search for a system's settings by validation only; the first trial is its defaults.

    Example: difformer tune cora --model gcn --trials 50 --storage runs/tune.sqlite

    With your own table: difformer tune table.csv --label COLUMN
    """
    table = named_table(dataset, label, id, edges, no_header)
    given = parse_set(set_, options_of(get_system(model).config))
    experiment = Experiment.make(
        dataset,
        system=model,
        split=split,
        data=table,
        model=given,
        train={"epochs": epochs, "patience": min(patience, epochs)},
    )
    if search == "grid":
        say(f"the grid has {grid_size(model)} settings", quiet=quiet or json)

    def look(trial: Trial, wanted: int) -> None:
        value = trial.error if trial.value is None else f"{trial.value:.4f}"
        say(f"trial {trial.number + 1} of {wanted}: {value}", quiet=quiet or json)

    try:
        result = tune(
            experiment,
            trials=trials,
            search=search,
            data_dir=data_dir,
            storage=storage,
            look=look,
        )
    except KeyboardInterrupt:
        lost = (
            "nothing is kept without --storage"
            if storage is None
            else "the same command resumes it"
        )
        raise interrupted(lost) from None
    if json:
        tuned = result.tuned()
        return print_json(
            {
                "metric": result.metric,
                "best": vars(result.best),
                "experiment": tuned.config(),
                "train": {"lr": tuned.train.lr, "weight_decay": tuned.train.weight_decay},
                "trials": [vars(trial) for trial in result.trials],
            }
        )
    print_table(_table(result), f"{model} on {dataset}: validation {result.metric}")
    print(f"best: {_settings(result.best)}; lr={result.tuned().train.lr:.4g}")


def _settings(trial: Trial) -> str:
    """The settings of a trial, in one line."""
    found = {**trial.train, **trial.model}.items()
    words = [f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in found]
    return ", ".join(words) or "the defaults"


def _table(result: TuneResult) -> Table:
    rows = [
        (str(trial.number), f"{trial.value:.4f}", f"{trial.seconds:.1f}", _settings(trial))
        for trial in result.ranked()[:SHOWN]
    ]
    failed = [t for t in result.trials if t.value is None]
    notes = (f"{len(failed)} trials failed, the first: {failed[0].error}",) if failed else ()
    return Table("", ("Trial", f"val {result.metric}", "s", "settings"), rows, notes=notes)

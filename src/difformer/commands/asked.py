"""What a person asks of `difformer train`: its options besides those of the model and the loop."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

from difformer.baselines.registry import SYSTEMS
from difformer.commands.shared import (
    TABLE,
    Address,
    DataDir,
    EdgesFile,
    Id,
    Json,
    Kinds,
    Label,
    Quiet,
    Task,
    argument,
    option,
)
from difformer.estimators.settings import FitSettings
from difformer.nn.recipes import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES
from difformer.train.settings import TrainSettings

__all__ = ["KERNELS", "LOOP", "Asked", "of_dataset", "of_series", "of_table"]

KERNELS = {"difformer-s": "simple", "difformer-a": "sigmoid"}
"""The systems that own tables and series may name, and their kernels."""

LOOP = {
    **{name: name for name in TrainSettings.names() if name in FitSettings.__dataclass_fields__},
    "seed": "random_state",
}
"""The options of the loop that the estimators take, and what they call them."""


def _own_defaults() -> str:
    """The options of the loop whose defaults are others with a table."""
    loop = {each.name: each.default for each in fields(TrainSettings)}
    own = {each.name: each.default for each in fields(FitSettings)}
    named = ((name, own[param]) for name, param in LOOP.items() if name != "seed")
    return ", ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in named if value != loop[name]
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of `difformer train` besides those of the model and of the loop."""

    name: Annotated[
        str | None,
        argument(
            "NAME",
            "A dataset of `difformer datasets`, a .pt file with a Data of PyG, or a folder that "
            "`difformer shard` made.",
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            "--model",
            "-m",
            metavar="NAME",
            help=f"One of {', '.join(SYSTEMS)}.",
            default="difformer, the best forms by held-out labels; difformer-s where options "
            "of the model or of the loop are given",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        option(
            "--recipe",
            metavar="|".join(RECIPES),
            help="A named form of DIFFormer: sets some model options; those given here win.",
            default=f"{DEFAULT_RECIPE}; {ALONE_RECIPE} without a graph",
        ),
    ] = None
    split: Annotated[
        str | None,
        option(
            "--split",
            metavar="SPLIT",
            help="public, released, random[:SEED], ratio:A/B/C[:SEED] or a JSON file.",
            default="the one that comes with the data, else random:0",
        ),
    ] = None
    seeds: Annotated[
        str | None,
        option(
            "--seeds",
            metavar="N|LIST",
            help="How many initialisations from --seed on, or which: 5, or 0,3,7.",
            default="--seed alone",
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of another system than DIFFormer, or of --series (lags, steps, "
            "origins); may be repeated.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        option(
            "--config",
            metavar="FILE.toml",
            help="Settings from a file, such as a run's config.toml; options here win.",
        ),
    ] = None
    neighbours: Annotated[
        int | None,
        option(
            "--neighbours",
            metavar="K",
            help="Join each row to its K nearest by features, where the data has no graph.",
        ),
    ] = None
    series: Annotated[
        Path | None,
        option(
            "--series",
            metavar="FILE.csv",
            help="In place of NAME: your own series, a column of times and one per node.",
        ),
    ] = None
    known: Annotated[
        Path | None,
        option(
            "--known",
            metavar="FILE.csv",
            help="With --series: what is known ahead, such as holidays. A column of times, those "
            "of the series and of the steps to forecast, and one per thing known.",
        ),
    ] = None
    places: Annotated[
        Path | None,
        option(
            "--places",
            metavar="FILE.csv",
            help="With --series: node, x and y (or longitude, latitude), for a map on the page.",
        ),
    ] = None
    nodes: Annotated[
        Path | None,
        option(
            "--nodes",
            metavar="FILE",
            help="A table: .csv, .tsv, .jsonl, .parquet or .npz, one line per row. Its defaults "
            f"are those of the estimators: {_own_defaults()}.",
            panel=TABLE,
        ),
    ] = None
    label: Label = None
    id: Id = None
    edges: EdgesFile = None
    kind: Kinds = None
    task: Task = None
    data_dir: DataDir = None
    out: Annotated[
        Path | None,
        option(
            "--out",
            "-o",
            metavar="FOLDER",
            help="Where the run is kept.",
            default="runs/NAME-MODEL, numbered",
        ),
    ] = None
    resume: Annotated[
        bool,
        option("--resume", help="Resume the run in --out (without --out: the last one like this)."),
    ] = False
    tensorboard: Annotated[
        bool, option("--tensorboard", help="Also log to FOLDER/tensorboard.")
    ] = False
    monitor: Annotated[
        str | None,
        option("--monitor", metavar="energy", help="Also log each layer's energy to metrics.csv."),
    ] = None
    report: Annotated[
        bool, option("--report/--no-report", help="Write FOLDER/report.html.", default="report")
    ] = True
    engine: Annotated[
        str | None,
        option(
            "--engine",
            metavar="ray",
            help="Train from parts with the workers of a Ray cluster.",
        ),
    ] = None
    workers: Annotated[
        int | None, option("--workers", metavar="N", help="With --engine ray: how many.")
    ] = None
    address: Address = None
    json: Json = False
    quiet: Quiet = False


SHARED = ("edges", "out", "resume", "report", "json", "quiet", "model", "recipe")
OF_SERIES = ("series", "known", "places", "set", *SHARED)
OF_TABLES = ("nodes", "label", "id", "kind", "task", "neighbours", *SHARED)
NOT_ALONE = {
    **dict.fromkeys(("known", "places"), "must come with --series: it is about its steps or nodes"),
    "edges": "must come with --series or --nodes: it names their rows",
    **dict.fromkeys(("label", "id", "kind", "task"), "needs --nodes FILE: the table it is of"),
}


def of_series(asked: Asked) -> None:
    """ValueError for an option that has no meaning with a series."""
    _refuse(asked, OF_SERIES, "--series")


def of_table(asked: Asked) -> None:
    """ValueError for an option that has no meaning with an own table."""
    _refuse(asked, OF_TABLES if asked.nodes is not None else ("name", *OF_TABLES), "--nodes")


def of_dataset(asked: Asked) -> None:
    """ValueError for an option that has no meaning with a dataset."""
    for name, reason in NOT_ALONE.items():
        if getattr(asked, name):
            raise ValueError(f"--{name} {reason}")
    if asked.monitor not in (None, "energy"):
        raise ValueError(f"--monitor must be energy, got {asked.monitor!r}")
    if asked.engine not in (None, "ray"):
        raise ValueError(f"--engine must be ray, got {asked.engine!r}")
    if asked.engine is None and (asked.workers or asked.address):
        raise ValueError("--workers and --address must come with --engine ray")


def _refuse(asked: Asked, allowed: tuple[str, ...], door: str) -> None:
    for each in fields(asked):
        if each.name not in allowed and getattr(asked, each.name) not in (each.default, []):
            flag = "NAME" if each.name == "name" else f"--{each.name.replace('_', '-')}"
            raise ValueError(f"{flag} must be left out with {door}")

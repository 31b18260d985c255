"""The options of `difformer train`, besides those of the model and of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from difformer.app import options as shared
from difformer.app.options import Given, argument, flag_of, option
from difformer.estimators.settings import FitSettings
from difformer.files import not_a_file
from difformer.nn.config import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES
from difformer.systems.registry import SYSTEMS
from difformer.train.settings import TrainSettings

KERNELS = {"difformer-s": "simple", "difformer-a": "sigmoid"}
"""The systems that --model may name with a table or a series, and their kernels."""

LOOP = {
    **{name: name for name in TrainSettings.names() if name in FitSettings.__dataclass_fields__},
    "seed": "random_state",
}
"""The options of the loop that the estimators take, and what they call them."""


def _own_defaults() -> str:
    """The options of the loop that have another default with a table."""
    loop = {each.name: each.default for each in fields(TrainSettings)}
    own = {each.name: each.default for each in fields(FitSettings)}
    named = ((name, own[param]) for name, param in LOOP.items() if name != "seed")
    return ", ".join(f"{flag_of(name)} {value}" for name, value in named if value != loop[name])


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
            default="difformer, which tries several forms; difformer-s if options of the model "
            "or of the loop are given",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        option(
            "--recipe",
            metavar="|".join(RECIPES),
            help="A named set of model options; options given here override it.",
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
            help="How many seeds, from --seed on, or a list of them: 5, or 0,3,7.",
            default="--seed alone",
        ),
    ] = None
    set: Annotated[
        list[str] | None,
        option(
            "--set",
            metavar="KEY=VALUE",
            help="An option of a system other than DIFFormer, or of --series (lags, steps, "
            "origins); may be repeated.",
        ),
    ] = None
    config: Annotated[
        Path | None,
        option(
            "--config",
            metavar="FILE.toml",
            help="Settings from a file, such as the config.toml of a run; options override it.",
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
            help="In place of NAME: a series, with a column of times and one column per node.",
        ),
    ] = None
    known: Annotated[
        Path | None,
        option(
            "--known",
            metavar="FILE.csv",
            help="With --series: values known ahead, such as holidays. A column of times, for the "
            "series and the steps to forecast, and one column per value.",
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
            panel=shared.TABLE,
        ),
    ] = None
    label: shared.Label = None
    id: shared.Id = None
    edges: shared.EdgesFile = None
    no_header: shared.NoHeader = False
    kind: shared.Kinds = None
    task: shared.Task = None
    data_dir: shared.DataDir = None
    out: Annotated[
        Path | None,
        shared.out("FOLDER", "Where the run is kept.", default="runs/NAME-MODEL, numbered"),
    ] = None
    resume: Annotated[
        bool,
        option(
            "--resume", help="Resume the run in --out; without --out, the last run of this name."
        ),
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
        int | None,
        option("--workers", metavar="N", help="With --engine ray: the number of workers."),
    ] = None
    address: shared.Address = None
    json: shared.Json = False
    quiet: shared.Quiet = False


SHARED = ("edges", "out", "resume", "report", "json", "quiet", "model", "recipe")
ALLOWED = {
    "--series": ("series", "known", "places", "set", *SHARED),
    "--nodes": ("nodes", "label", "id", "no_header", "kind", "task", "neighbours", *SHARED),
}
NOT_ALONE = {
    **dict.fromkeys(("known", "places"), "must come with --series: it is about its steps or nodes"),
    "edges": "must come with --series or --nodes: it names their rows",
    **dict.fromkeys(
        ("label", "id", "no_header", "kind", "task"), "needs --nodes FILE: the table it is of"
    ),
}


def check_dataset(asked: Asked) -> None:
    """ValueError for an option that has no meaning with a dataset."""
    for name, reason in NOT_ALONE.items():
        if getattr(asked, name):
            raise ValueError(f"{flag_of(name)} {reason}")
    if asked.monitor not in (None, "energy"):
        raise ValueError(f"--monitor must be energy, got {asked.monitor!r}")
    if asked.engine not in (None, "ray"):
        raise ValueError(f"--engine must be ray, got {asked.engine!r}")
    if asked.engine is None and (asked.workers or asked.address):
        raise ValueError("--workers and --address must come with --engine ray")


def chosen(
    asked: Asked,
    given: Given,
    door: str,
    *,
    systems: Mapping[str, str | None],
    loop: Mapping[str, str],
) -> dict[str, Any]:
    """The system, the recipe and the options of the loop, by the names of their settings.

    ValueError for an option that has no meaning with `door`, which is --series or --nodes.

    Args:
        systems: the kernel of each system that --model may name.
        loop: what each option of the loop is called in the settings.
    """
    allowed = ALLOWED[door] if door != "--nodes" or asked.nodes else ("name", *ALLOWED[door])
    for each in fields(asked):
        if each.name not in allowed and getattr(asked, each.name) not in (each.default, []):
            flag = "NAME" if each.name == "name" else flag_of(each.name)
            raise ValueError(f"{flag} must be left out with {door}")
    if asked.model is not None and asked.model not in systems:
        names = ", ".join(systems)
        raise ValueError(f"--model must be one of {names} with {door}, got {asked.model}")
    found: dict[str, Any] = {"kernel": systems[asked.model]} if asked.model else {}
    found |= {"recipe": asked.recipe} if asked.recipe else {}
    for name, value in given.train.items():
        if name not in loop:
            raise ValueError(f"{flag_of(name)} must be left out with {door}")
        found[loop[name]] = value
    return found


def check_files(*paths: Path | None) -> None:
    """ValueError for a path that is not a file."""
    for path in paths:
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: {not_a_file(path)}")

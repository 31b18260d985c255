"""The options of `difformer train`, besides those of the model and of the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from difformer.app import options as shared
from difformer.app.options import KERNELS, Given, argument, ask, flag_of
from difformer.estimators.settings import FitSettings
from difformer.files import not_a_file
from difformer.nn.config import ALONE_RECIPE, DEFAULT_RECIPE, RECIPES
from difformer.train.settings import TrainSettings

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
            "A dataset, a table, a .pt file with a Data of PyG, or a folder of `difformer shard`.",
        ),
    ] = None
    split: str | None = ask(
        "SPLIT",
        "public, released, random[:SEED], ratio:A/B/C[:SEED] or a JSON file.",
        usual="the data's own, else random:0",
        panel="Data",
    )
    neighbours: int | None = ask(
        "K",
        "Join each row to its K nearest by features, where the data has no graph.",
        panel="Data",
    )
    data_dir: shared.DataDir = None
    nodes: Path | None = ask(
        "FILE",
        "A table: .csv, .tsv, .jsonl, .parquet or .npz, one line per row. Its defaults are those "
        f"of the estimators: {_own_defaults()}.",
        panel=shared.TABLE,
    )
    label: shared.Label = None
    id: shared.Id = None
    edges: shared.EdgesFile = None
    no_header: bool = ask(
        "", shared.HEADLESS, "--no-header", default=False, panel=shared.TABLE, hidden=True
    )
    kind: shared.Kinds = None
    task: shared.Task = None
    series: Path | None = ask(
        "FILE.csv",
        "A series, with a column of times and one column per node.",
        panel=shared.SERIES,
    )
    known: Path | None = ask(
        "FILE.csv",
        "Values known ahead, such as holidays: times of the series and of the steps to forecast, "
        "and one column per value.",
        panel=shared.SERIES,
    )
    places: Path | None = ask(
        "FILE.csv",
        "node, x and y (or longitude, latitude), for a map on the page.",
        panel=shared.SERIES,
        hidden=True,
    )
    model: str | None = ask(
        "NAME",
        "One of the models that `difformer settings` lists, such as difformer-s, mlp or gcn.",
        "--model",
        "-m",
        usual="difformer, which tries several forms; difformer-s if settings of the model or of "
        "the loop are given",
        panel="Model",
    )
    recipe: str | None = ask(
        "NAME",
        f"Named settings, which those given here override: {', '.join(RECIPES)}.",
        usual=f"{DEFAULT_RECIPE}; {ALONE_RECIPE} without a graph",
        panel="Model",
    )
    seeds: str | None = ask(
        "N|LIST",
        "How many seeds, from --seed on, or a list of them: 5, or 0,3,7.",
        usual="--seed alone",
        panel="Training",
    )
    set: list[str] | None = ask(
        "NAME=VALUE", "Any setting that `difformer settings` lists; may be repeated."
    )
    config: Path | None = ask("FILE.toml", "Settings from a file, such as a run's config.toml.")
    out: Annotated[
        Path | None,
        shared.out("FOLDER", "Where the run is kept.", default="runs/NAME-MODEL, numbered"),
    ] = None
    resume: bool = ask(
        "",
        "Resume the run in --out; without --out, the last run of this name.",
        "--resume",
        default=False,
    )
    report: bool = ask("", "Write FOLDER/report.html.", default=True, usual="report", hidden=True)
    tensorboard: bool = ask(
        "", "Also log to FOLDER/tensorboard.", "--tensorboard", default=False, hidden=True
    )
    monitor: str | None = ask("energy", "Also log each layer's energy to metrics.csv.", hidden=True)
    engine: str | None = ask(
        "ray", "Train from parts with the workers of a Ray cluster.", hidden=True
    )
    workers: int | None = ask("N", "With --engine ray: the number of workers.", hidden=True)
    address: str | None = ask("HOST:PORT", shared.ADDRESS, hidden=True)
    json: shared.Json = False
    quiet: shared.Quiet = False


DATASET = "NAME"  # how a dataset is given, where a table has --nodes and a series --series
MEANT_FOR = {
    **dict.fromkeys(
        ("name", "split", "data_dir", "seeds", "config", "tensorboard", "monitor"),
        (DATASET,),
    ),
    **dict.fromkeys(("engine", "workers", "address"), (DATASET,)),
    "nodes": ("--nodes",),
    "neighbours": (DATASET, "--nodes"),
    **dict.fromkeys(("label", "id", "no_header", "kind", "task"), ("--nodes",)),
    **dict.fromkeys(("known", "places"), ("--series",)),
    "edges": ("--series", "--nodes"),
}
"""The kinds of data that an option is for; the others are for all."""
KERNEL_OF = {
    "--nodes": {"difformer": None, **KERNELS, "auto": "auto"},
    "--series": dict(KERNELS),
}
"""The systems that --model may name with a table or a series, and the kernel of each."""


def check_meant_for(asked: Asked, kind: str) -> None:
    """ValueError for an option that has no meaning with a kind of data."""
    for each in fields(asked):
        kinds = MEANT_FOR.get(each.name, (kind,))
        if kind not in kinds and getattr(asked, each.name) not in (each.default, []):
            told = (
                f"be left out with {kind}" if kind != DATASET else f"come with {' or '.join(kinds)}"
            )
            flag = DATASET if each.name == "name" else flag_of(each.name)
            raise ValueError(f"{flag} must {told}")
    if asked.model is not None and asked.model not in KERNEL_OF.get(kind, (asked.model,)):
        names = ", ".join(KERNEL_OF[kind])
        raise ValueError(f"--model must be one of {names} with {kind}, got {asked.model}")


def of_estimator(asked: Asked, given: Given, kind: str, loop: Mapping[str, str]) -> dict[str, Any]:
    """The kernel, the recipe and the options of the loop, as the estimators call them.

    Args:
        loop: what each option of the loop that they take is called there.
    """
    found: dict[str, Any] = {"kernel": KERNEL_OF[kind][asked.model]} if asked.model else {}
    found |= {"recipe": asked.recipe} if asked.recipe else {}
    for name, value in given.train.items():
        if name not in loop:
            raise ValueError(f"{flag_of(name)} must be left out with {kind}")
        found[loop[name]] = value
    return found


def table_named(name: str | None) -> Path | None:
    """The path, if a dataset is named by a file that is a table by its ending; else None."""
    from difformer.data.table.files import ENDINGS

    return Path(name) if name is not None and Path(name).suffix.lower() in ENDINGS else None


def own_table(
    nodes: Path,
    label: list[str] | None,
    id: str | None,
    edges: Path | None,
    no_header: bool,
    **more: Any,
) -> dict[str, Any]:
    """The arguments of `read_table` that options give."""
    if not label:
        raise ValueError(f"--label COLUMN must be given with {nodes}: what to predict")
    check_files(nodes, edges)
    table = {"nodes": str(nodes), "label": label[0] if len(label) == 1 else label, "id": id}
    table |= {"edges": None if edges is None else str(edges), **more}
    table |= {"header": False if no_header else None}  # True is not written to folders of runs
    return {name: value for name, value in table.items() if value is not None}


def named_table(
    name: str, label: list[str] | None, id: str | None, edges: Path | None, no_header: bool
) -> dict[str, Any]:
    """How to read the table that takes a dataset's place; empty for a dataset's name."""
    if table_named(name) is not None:
        table = own_table(Path(name), label, id, edges, no_header)
        return {option: value for option, value in table.items() if option != "nodes"}
    named = {"label": label, "id": id, "edges": edges, "no_header": no_header}
    if option := next((option for option, value in named.items() if value), None):
        raise ValueError(f"{flag_of(option)} needs a table in place of the dataset's name: {name}")
    return {}


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


def check_files(*paths: Path | None) -> None:
    """ValueError for a path that is not a file."""
    for path in paths:
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: {not_a_file(path)}")

"""Command-line options made from dataclass fields: one name, default and help, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from difformer.jobs.job import Experiment
from difformer.jobs.series import SeriesSettings
from difformer.nn.config import ALONE_RECIPE, DEFAULT_RECIPE
from difformer.settings import Option, check_keys, options_of
from difformer.systems.families import DIFFormerOptions
from difformer.train.settings import TrainSettings


@dataclass(frozen=True)
class Given:
    """The options of the model and of the loop that a person gave; others keep their defaults."""

    model: dict[str, Any]
    train: dict[str, Any]


def given_options() -> dict[str, Mapping[str, Option]]:
    """Every generated option, under the heading it has in --help."""
    return {"Model": options_of(DIFFormerOptions), "Training": options_of(TrainSettings)}


def with_options(function: Callable[[Any, Given], None], asked: type[Any]) -> Callable[..., None]:
    """A command whose options are the fields of a dataclass, of the model and of the loop.

    A field's annotation is what typer reads; the function is called with an instance of the
    dataclass and with the options of model and loop that were given.
    """
    groups = given_options()

    @wraps(function)
    def command(**values: Any) -> None:
        found: dict[str, dict[str, Any]] = {}
        for panel, options in groups.items():
            texts = {name: values.pop(name) for name in options}
            given = {name: text for name, text in texts.items() if text is not None}
            found[panel] = {name: options[name].parse(str(text)) for name, text in given.items()}
        function(asked(**values), Given(found["Model"], found["Training"]))

    hints = get_type_hints(asked, include_extras=True)
    own = [_declared(f.name, f.default, hints[f.name]) for f in fields(asked)]
    added = [_parameter(o, panel) for panel, options in groups.items() for o in options.values()]
    command.__signature__ = inspect.Signature(own + added)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in own + added}
    return command


def _declared(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _parameter(asked: Option, panel: str) -> inspect.Parameter:
    """An option that takes text, so that "none" is possible, or a pair of flags."""
    flag = asked.kind is bool and not asked.optional
    names = f"{asked.flag}/--no-{asked.flag[2:]}" if flag else asked.flag
    info = option(
        names,
        metavar=None if flag else asked.metavar,
        help=asked.help,
        default=shown_default(asked.name, panel),
        panel=panel,
    )
    return _declared(asked.name, None, Annotated[bool | None if flag else str | None, info])


def shown_default(name: str, panel: str) -> str:
    """The default of an option, as --help shows it."""
    found: dict[str, str] = {}  # the value on each kind of data
    for kind, recipe in (("", DEFAULT_RECIPE), (" without a graph", ALONE_RECIPE)):
        usual = Experiment.make("digits", recipe=recipe)
        values = {"Model": dict(usual.model), "Training": asdict(usual.train)}[panel]
        found[kind] = _spelled(values[name])
    own = {f.name: f.default for f in fields(SeriesSettings)}
    found[" with --series"] = _spelled(own[name]) if name in own else found[""]
    return "; ".join(v + kind for kind, v in found.items() if not kind or v != found[""])


def _spelled(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_seeds(text: str | None, first: int) -> list[int] | None:
    """The seeds that --seeds asks for: "5" is five, from the first on; "0,3,7" is a list.

    >>> parse_seeds("3", 0), parse_seeds("4,2", 0)
    ([0, 1, 2], [4, 2])
    """
    if text is None:
        return None
    parts = parse_names(text) or []
    if not parts or not all(part.isdecimal() for part in parts):
        raise ValueError(f"seeds must be a number of seeds, or a list such as 0,1,2, got {text!r}")
    numbers = [int(part) for part in parts]
    if len(numbers) > 1 or "," in text:
        return numbers
    if numbers[0] == 0:
        raise ValueError("seeds must be at least one")
    return list(range(first, first + numbers[0]))


def parse_names(text: str | None) -> list[str] | None:
    """The words of a comma-separated list; None for None."""
    return None if text is None else [word.strip() for word in text.split(",") if word.strip()]


def parse_set(pairs: list[str] | None, options: Mapping[str, Option]) -> dict[str, Any]:
    """key=value pairs of `--set`, each in the type of its option."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise ValueError(f"set must be key=value, got {pair!r}")
        check_keys([key], options, "--set")
        found[key] = options[key].parse(text.strip())
    return found


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

"""Command-line options made from dataclass fields: one name, default and help, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from difformer.jobs.job import Experiment, recipe_for
from difformer.jobs.series import SeriesSettings
from difformer.settings import Option, check_keys, options_of
from difformer.systems.registry import DIFFormerOptions
from difformer.train.settings import TrainSettings

PANELS = {"Model": DIFFormerOptions, "Training": TrainSettings}
"""The settings that are flags as well, under the heading they have in --help."""
SHOWN = {
    *("num_layers", "kernel", "tau", "dropout", "hidden_channels"),
    *("epochs", "lr", "weight_decay", "batch_size", "patience", "seed", "device"),
}
"""The settings whose flags --help shows; --help-all and `difformer settings` show the others."""
KERNELS = {"difformer-s": "simple", "difformer-a": "sigmoid"}
"""The systems that --model may name with a table or a series, and their kernels."""
WIDEST = 25  # characters of choices that --help shows


@dataclass(frozen=True)
class Given:
    """The settings of the model and of the loop that a person gave; others keep their defaults."""

    model: dict[str, Any]
    train: dict[str, Any]

    def with_set(self, pairs: list[str] | None, model: Mapping[str, Option]) -> Given:
        """Also those of --set, which names any setting of `model` or of the loop."""
        found = parse_set(pairs, {**model, **options_of(TrainSettings)})
        of_model = {name: value for name, value in found.items() if name in model}
        rest = {name: value for name, value in found.items() if name not in model}
        return Given(self.model | of_model, self.train | rest)


def with_options(function: Callable[[Any, Given], None], asked: type[Any]) -> Callable[..., None]:
    """A command whose options are the fields of a dataclass, of the model and of the loop.

    A field of `asked` is made by `ask`, or its annotation is what typer reads. The function is
    called with an instance of it, and with the settings of model and loop that were given.
    """

    @wraps(function)
    def command(**values: Any) -> None:
        values.pop("help_all")
        given = {
            panel: {
                name: each.parse(str(text))
                for name, each in options_of(settings).items()
                if (text := values.pop(name)) is not None
            }
            for panel, settings in PANELS.items()
        }
        function(asked(**values), Given(given["Model"], given["Training"]))

    hints = get_type_hints(asked, include_extras=True)
    declared = [
        _declared(f.name, f.default, Annotated[hints[f.name], f.metadata["option"]])
        if f.metadata
        else _declared(f.name, f.default, hints[f.name])
        for f in fields(asked)
    ]
    for panel, settings in PANELS.items():
        declared += [_parameter(each, panel) for each in options_of(settings).values()]
    declared.append(_declared("help_all", False, Annotated[bool, HELP_ALL]))
    command.__signature__ = inspect.Signature(declared)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in declared}
    return command


def _declared(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _parameter(asked: Option, panel: str) -> inspect.Parameter:
    """An option that takes text, so that "none" is possible, or a pair of flags."""
    pair = asked.kind is bool and not asked.optional
    info = flag(
        "" if pair else asked.metavar if len(asked.metavar) <= WIDEST else "NAME",
        asked.help,
        f"{asked.flag}/--no-{asked.flag[2:]}" if pair else asked.flag,
        usual=shown_default(asked.name),
        panel=panel,
        hidden=asked.name not in SHOWN,
    )
    return _declared(asked.name, None, Annotated[bool | None if pair else str | None, info])


def shown_default(name: str, system: str = "difformer-s") -> str:
    """The default of a setting of a system or of the loop, as --help shows it."""
    found = {k: spelled(values[name]) for k, values in _defaults(system).items() if name in values}
    return "; ".join(v + kind for kind, v in found.items() if not kind or v != found.get(""))


@cache
def _defaults(system: str) -> dict[str, dict[str, Any]]:
    """The values of the settings, on each kind of data."""
    found: dict[str, dict[str, Any]] = {}
    for kind, graph in (("", True), (" without a graph", False)):
        recipe = recipe_for(system, None, graph=graph)
        usual = Experiment.make("digits", system=system, recipe=recipe)
        found[kind] = {**asdict(usual.train), **usual.model}
    return found | ({" with --series": vars(SeriesSettings())} if system in KERNELS else {})


def series_options() -> dict[str, Option]:
    """The settings of a series that the command line takes."""
    return {name: each for name, each in options_of(SeriesSettings).items() if name != "options"}


def spelled(value: Any) -> str:
    """A value as one writes it on the command line."""
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
    """The settings of `--set`, each in the type of its option."""
    texts = set_texts(pairs)
    check_keys(texts, options, "--set", "`difformer settings` lists them")
    return {name: options[name].parse(text) for name, text in texts.items()}


def set_texts(pairs: list[str] | None) -> dict[str, str]:
    """The texts of the NAME=VALUE pairs of `--set`, by name."""
    if wrong := next((pair for pair in pairs or [] if "=" not in pair), None):
        raise ValueError(f"set must be key=value, got {wrong!r}")
    split = (pair.partition("=") for pair in pairs or [])
    return {name.strip().replace("-", "_"): text.strip() for name, _, text in split}


TABLE, SERIES = "Your own table", "Your own series"  # headings of their options in --help
TASKS = ("multiclass", "multilabel", "regression")


def flag(
    metavar: str, help: str, *names: str, usual: str = "", panel: str | None = None, **more: Any
) -> Any:
    """An option, called as its parameter unless `names` are given.

    Args:
        usual: its default in words, where the value does not say it.
        panel: its heading in --help.
        more: what else `typer.Option` takes.
    """
    text = f"{help} [{usual}]" if usual else help
    more |= {"show_default": not usual, "rich_help_panel": panel}
    return typer.Option(*names, metavar=metavar or None, help=text, **more)


def ask(metavar: str, help: str, *names: str, default: Any = None, **more: Any) -> Any:
    """A field of a dataclass for `with_options`; see `flag`."""
    return field(default=default, metadata={"option": flag(metavar, help, *names, **more)})


def argument(metavar: str, help: str) -> Any:
    """An argument by its place."""
    return typer.Argument(metavar=metavar, help=help, show_default=False)


def out(metavar: str, help: str, default: str = "") -> Any:
    """--out: where a command puts what it makes."""
    return flag(metavar, help, "--out", "-o", usual=default)


def setting(settings: type[Any], name: str) -> Any:
    """An option with the name and the help of a field of a settings dataclass; never None."""
    found = options_of(settings)[name]
    text = found.help.partition("; none:")[0]
    return flag(found.metavar.removesuffix("|none"), f"{text[0].upper()}{text[1:]}.")


def flag_of(name: str) -> str:
    """How an option is spelled on the command line."""
    return f"--{name.replace('_', '-')}"


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        for parameter in ctx.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        typer.echo(ctx.get_help())
        raise typer.Exit


HELP_ALL = flag("", "Show every option and exit.", "--help-all", callback=_show_all, is_eager=True)
ADDRESS = "With --engine ray: the address of the cluster; without it, this machine alone."
HEADLESS = (
    "The first line of .csv files, also of --edges, is a row already: the columns are column1, "
    "column2, ..."
)
Json = Annotated[bool, flag("", "Print one JSON document on stdout, and nothing else.", "--json")]
Quiet = Annotated[bool, flag("", "No progress bar.", "--quiet", "-q")]
DataDir = Annotated[
    str | None, flag("DIR", "The folder of the datasets; used before $DIFFORMER_DATA.")
]
Overwrite = Annotated[bool, flag("", "Replace FILE if it exists.", "--overwrite")]
RunFolder = Annotated[Path, argument("RUN", "The folder of a run of `train`.")]
DatasetName = Annotated[str, argument("DATASET", "A name of `difformer datasets`, or a table.")]
Address = Annotated[str | None, flag("HOST:PORT", ADDRESS)]
Epochs = Annotated[int, setting(TrainSettings, "epochs")]
Patience = Annotated[int, setting(TrainSettings, "patience")]
Label = Annotated[
    list[str] | None,
    flag(
        "COLUMN",
        "The column to predict; its empty cells are predicted. May be repeated, for several "
        "columns of yes or no, or of numbers.",
        panel=TABLE,
    ),
]
Id = Annotated[
    str | None,
    flag(
        "COLUMN",
        "The column that names each row, for predictions, the page and --edges.",
        panel=TABLE,
    ),
]
EdgesFile = Annotated[
    Path | None,
    flag(
        "FILE",
        "The edges of the rows, or of the nodes of --series: source, target and, if wanted, "
        "weight.",
        panel=TABLE,
    ),
]
NoHeader = Annotated[bool, flag("", HEADLESS, "--no-header", panel=TABLE)]
Kinds = Annotated[
    list[str] | None,
    flag(
        "COLUMN=KIND",
        "The kind of a column: number, date, category, text or skip. May be repeated.",
        panel=TABLE,
    ),
]
Task = Annotated[
    str | None,
    flag(
        "TASK",
        f"{', '.join(TASKS[:-1])} or {TASKS[-1]}, if it cannot be told from the label.",
        panel=TABLE,
    ),
]

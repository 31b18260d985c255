"""Command-line options made from dataclass fields: one name, default and help, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

from difformer.baselines.registry.difformer import DIFFormerOptions
from difformer.commands import shared
from difformer.experiments.experiment import Experiment
from difformer.experiments.forecast import SeriesSettings
from difformer.experiments.values import Option, check_keys, options_of
from difformer.nn.recipes import ALONE_RECIPE, DEFAULT_RECIPE
from difformer.train.settings import TrainSettings

__all__ = [
    "Given",
    "given_options",
    "parse_names",
    "parse_seeds",
    "parse_set",
    "shown_default",
    "with_options",
]


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


def _parameter(option: Option, panel: str) -> inspect.Parameter:
    """An option that takes text, so that "none" is possible, or a pair of flags."""
    flag = option.kind is bool and not option.optional
    names = f"{option.flag}/--no-{option.flag[2:]}" if flag else option.flag
    info = shared.option(
        names,
        metavar=None if flag else option.metavar,
        help=option.help,
        default=shown_default(option.name, panel),
        panel=panel,
    )
    return _declared(option.name, None, Annotated[bool | None if flag else str | None, info])


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

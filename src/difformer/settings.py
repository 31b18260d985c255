"""Options as dataclass fields, each with its default, help and rule in one place. No torch here.

    @dataclass(frozen=True, kw_only=True)
    class Settings(Options):
        epochs: int = option(500, "the most epochs to train for", whole(1))

A value that breaks its rule raises a ValueError that names the option, the rule and the value,
whether Python, a file or the command line gave it. Signatures (`takes`), command-line options and
the list of `difformer settings` are made from the same fields (`options_of`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

NONE = "none"  # how TOML and the command line spell None
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

F = TypeVar("F", bound=Callable[..., Any])
Check = Callable[[str, Any], None]
"""Called with an option's name and value; raises a ValueError if the value breaks a rule."""


@dataclass(frozen=True)
class Rule:
    """What a value must do, in words, and whether it does."""

    text: str
    holds: Callable[[Any], bool]

    def __call__(self, name: str, value: Any) -> None:
        if not self.holds(value):
            raise ValueError(f"{name} must {self.text}, got {value!r}")


def whole(at_least: int = 1) -> Rule:
    """A whole number, at least `at_least`."""
    text = f"be a whole number of at least {at_least}"
    return Rule(text, lambda v: isinstance(v, int) and _is_number(v) and v >= at_least)


def number(*, above_zero: bool = False) -> Rule:
    """A finite number, 0 or more."""
    text = "be a finite number above 0" if above_zero else "be a finite number, 0 or more"
    least = 0 if above_zero else -1
    return Rule(text, lambda v: _is_number(v) and 0 <= v < float("inf") and v > least)


def unit_interval(*, zero: bool, one: bool) -> Rule:
    """A number between 0 and 1; `zero` and `one` say whether the ends are allowed."""
    text = f"lie in {'[' if zero else '('}0, 1{']' if one else ')'}"
    return Rule(
        text, lambda v: _is_number(v) and (0 < v < 1 or (v == 0 and zero) or (v == 1 and one))
    )


COUNT = whole(1)
POSITIVE, NOT_NEGATIVE = number(above_zero=True), number()
SHARE, RATE = unit_interval(zero=False, one=False), unit_interval(zero=True, one=False)
"""The rules of most options."""

IMPLIED: dict[type[Any], Rule] = {
    bool: Rule("be true or false", lambda v: isinstance(v, bool)),
    float: Rule("be a number", lambda v: _is_number(v)),
}
"""The rule of an option without one of its own, by its kind."""


def option(default: Any, text: str, allowed: tuple[Any, ...] | Check | None = None) -> Any:
    """A field of an options dataclass.

    Args:
        default: the value if none is given.
        text: the help text, without a full stop.
        allowed: the choices, or a rule such as `whole(1)`. None is always allowed if the field's
            type includes it; an option of type Any also takes objects besides its named choices.
    """
    choices, rule = (allowed, None) if isinstance(allowed, tuple) else ((), allowed)
    return field(default=default, metadata={"help": text, "choices": choices, "rule": rule})


def like(options: type[Any], name: str, default: Any) -> Any:
    """A field with the help and the rule of another dataclass's option, and its own default."""
    return field(default=default, metadata=options.__dataclass_fields__[name].metadata)


class Options:
    """Base of options dataclasses: creating one checks every field by its rule."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for name, each in options_of(type(self)).items():
            object.__setattr__(self, name, each.check(getattr(self, name)))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(options_of(cls))


@dataclass(frozen=True)
class Option:
    """One field of an options dataclass."""

    name: str
    kind: type[Any]  # bool, int, float or str
    optional: bool  # may be None
    default: Any
    help: str
    choices: tuple[str, ...]
    rule: Check | None

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """The placeholder for its value in --help."""
        kind = {int: "N", float: "X", str: "TEXT"}.get(self.kind, "true|false")
        return ("|".join(self.choices) or kind) + (f"|{NONE}" if self.optional else "")

    @property
    def range(self) -> str:
        """The values it takes, in words."""
        kinds = {int: "a whole number", float: "a number", str: "text"}
        text = getattr(self.rule, "text", kinds.get(self.kind, ""))
        text = text.removeprefix("be ").removeprefix("lie ")
        return f"{text} or {NONE}" if self.optional and not self.choices else text

    def check(self, value: Any) -> Any:
        """The value as a plain one; a ValueError if it breaks the option's rule."""
        value = _plain(value)
        if self.rule is not None and not (self.optional and value is None):
            self.rule(self.name, value)
        return value

    def read(self, value: Any) -> Any:
        """The value that one of a file or of the command line stands for, checked."""
        if self.optional and str(value).lower() == NONE and NONE not in self.choices:
            return None
        return self.check(float(value) if self.kind is float and type(value) is int else value)

    def parse(self, text: str) -> Any:
        """The value that a text stands for, checked."""
        try:
            value = _bool(text) if self.kind is bool else self.kind(text)
        except ValueError:
            value = text  # "none", or what its rule refuses
        return self.read(value)


@cache
def options_of(kind: type[Any]) -> Mapping[str, Option]:
    """The options of a dataclass type, by name, in the order of its fields."""
    return MappingProxyType({each.name: _option(each) for each in fields(kind)})


def _option(each: Field[Any]) -> Option:
    words = re.findall(r"\w+", str(each.type))
    kind = next((k for k in (bool, int, float, str) if k.__name__ in words), str)
    optional, choices = "None" in words, each.metadata.get("choices", ())
    rule = each.metadata.get("rule") or IMPLIED.get(kind)
    if choices:
        rule = _one_of(choices, optional=optional, objects="Any" in words)
    text = each.metadata.get("help", "")
    return Option(each.name, kind, optional, each.default, text, choices, rule)


def _one_of(choices: tuple[Any, ...], *, optional: bool, objects: bool) -> Rule:
    """One of some values; with `objects`, also anything that is not a string."""
    text = f"be one of {', '.join(map(str, choices))}{' or None' if optional else ''}"
    return Rule(text, lambda v: v in choices if isinstance(v, str) or not objects else True)


def check_options(kind: type[Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The given values in the types of a dataclass's fields; ValueError for an unknown name."""
    options = options_of(kind)
    check_keys(given, options, where)
    return {name: options[name].read(value) for name, value in given.items()}


def check_keys(
    given: Iterable[str], known: Iterable[str], where: str, listed: str | None = None
) -> None:
    """ValueError that names the first unknown key, the nearest known one, and where all are."""
    known = list(known)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            told = listed or f"known: {', '.join(known)}"
            raise ValueError(f"{where} has no key {key!r}{hint}; {told}")


def check_count(name: str, value: int, at_least: int = 1) -> int:
    """`value` as an int, if it is a whole number of at least `at_least`."""
    value = _plain(value)
    whole(at_least)(name, value)
    return value


def takes(options: type[Options]) -> Callable[[F], F]:
    """Show the options of a dataclass in the signature of a function that takes ``**options``."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [
            inspect.Parameter(each.name, kind, default=each.default, annotation=each.type)
            for each in fields(options)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def _bool(text: str) -> bool:
    if text.lower() not in (*TRUE, *FALSE):
        raise ValueError(text)
    return text.lower() in TRUE


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A NumPy scalar, as searches over options pass them, as a Python one; else the value."""
    scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
    return value.item() if scalar else value

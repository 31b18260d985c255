"""Options as dataclass fields, each with its default, help and rule in one place. No torch here.

    @dataclass(frozen=True, kw_only=True)
    class Settings(Options):
        epochs: int = option(500, "the most epochs to train for", whole(1))

A value that breaks its rule raises a ValueError that names the option, the rule and the value.
Signatures (`takes`), command-line options and reference pages are made from the same fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from numbers import Real
from types import MappingProxyType, NoneType
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

Rule = Callable[[str, Any], None]
"""Called with an option's name and value; raises a ValueError if the value breaks the rule."""

F = TypeVar("F", bound=Callable[..., Any])


def option(default: Any, text: str, allowed: tuple[Any, ...] | Rule | None = None) -> Any:
    """A field of an options dataclass.

    Args:
        default: the value if none is given.
        text: the help text, without a full stop.
        allowed: the choices, or a rule such as `whole(1)`. None is always allowed if the field's
            type includes it; an option of type Any also takes objects besides its named choices.
    """
    choices = allowed if isinstance(allowed, tuple) else ()
    rule = None if isinstance(allowed, tuple) else allowed
    return field(default=default, metadata={"help": text, "choices": choices, "rule": rule})


def like(options: type[Any], name: str, default: Any) -> Any:
    """A field with the help and the rule of another dataclass's option, and its own default."""
    return field(default=default, metadata=options.__dataclass_fields__[name].metadata)


class Options:
    """Base of options dataclasses: creating one checks every field by its rule."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        for each in fields(self):
            value = _plain(getattr(self, each.name))
            object.__setattr__(self, each.name, value)
            optional = "None" in str(each.type)
            rule = each.metadata.get("rule") or _rule_of(each, optional)
            if rule is not None and not (optional and value is None):
                rule(each.name, value)

    def as_dict(self) -> dict[str, Any]:
        """The options as plain values, for saving."""
        return asdict(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of all options."""
        return tuple(each.name for each in fields(cls))


def takes(options: type[Options]) -> Callable[[F], F]:
    """Show the options of a dataclass in the signature of a function that takes ``**options``."""

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        added = [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=each.type,
            )
            for each in fields(options)
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        return function

    return decorate


def check_count(name: str, value: int, at_least: int = 1) -> int:
    """`value` as an int, if it is a whole number of at least `at_least`."""
    value = _plain(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value!r}")
    return value


def whole(at_least: int = 1) -> Rule:
    """A whole number, at least `at_least`."""

    def check(name: str, value: Any) -> None:
        check_count(name, value, at_least)

    return check


def number(*, above_zero: bool = False) -> Rule:
    """A finite number, 0 or more."""
    rule = "a finite number above 0" if above_zero else "a finite number, 0 or more"

    def check(name: str, value: Any) -> None:
        if not _is_number(value) or not 0 <= value < float("inf") or (above_zero and value == 0):
            raise ValueError(f"{name} must be {rule}, got {value!r}")

    return check


def unit_interval(*, zero: bool, one: bool) -> Rule:
    """A number between 0 and 1; `zero` and `one` say whether the ends are allowed."""
    interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"

    def check(name: str, value: Any) -> None:
        good = _is_number(value) and 0 <= value <= 1
        if not good or (value == 0 and not zero) or (value == 1 and not one):
            raise ValueError(f"{name} must lie in {interval}, got {value!r}")

    return check


COUNT = whole(1)
POSITIVE, NOT_NEGATIVE = number(above_zero=True), number()
SHARE, RATE = unit_interval(zero=False, one=False), unit_interval(zero=True, one=False)
"""The rules of most options."""


def one_of(choices: tuple[Any, ...], *, optional: bool = False, objects: bool = False) -> Rule:
    """One of some values; with `objects`, also anything that is not a string."""
    names = ", ".join(str(c) for c in choices if c is not None) + (" or None" if optional else "")

    def check(name: str, value: Any) -> None:
        if value not in choices and (isinstance(value, str) or not objects):
            raise ValueError(f"{name} must be one of {names}, got {value!r}")

    return check


def _rule_of(each: Field[Any], optional: bool) -> Rule | None:
    """The rule that a field's choices or its type imply."""
    choices = each.metadata.get("choices", ())
    if choices:
        return one_of(choices, optional=optional, objects=str(each.type) == "Any")
    return _flag if str(each.type) == "bool" else None


def _flag(name: str, value: Any) -> None:
    if value not in (True, False):
        raise ValueError(f"{name} must be true or false, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """A NumPy scalar, as searches over options pass them, as a Python one; else the value."""
    scalar = type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
    return value.item() if scalar else value


NONE = "none"  # how TOML and the command line spell None


@dataclass(frozen=True)
class Option:
    """One field of an options dataclass, as the command line and the config reader see it."""

    name: str
    kind: type[Any]  # bool, int, float or str
    optional: bool  # may be None
    default: Any
    help: str
    choices: tuple[str, ...]

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def metavar(self) -> str:
        """The placeholder for its value in --help."""
        kind = {int: "N", float: "X", str: "TEXT"}.get(self.kind, "")
        shown = "|".join(self.choices) if self.choices else kind
        return f"{shown}|{NONE}" if self.optional else shown

    def parse(self, text: str) -> Any:
        """The value a text stands for; ValueError names the option, the rule and the text."""
        if self._means_none(text):
            return None
        if self.kind is bool:
            words = {"true": True, "yes": True, "on": True, "1": True}
            words |= {"false": False, "no": False, "off": False, "0": False}
            if text.lower() not in words:
                raise ValueError(f"{self.name} must be true or false, got {text!r}")
            return words[text.lower()]
        if self.kind in (int, float):
            try:
                return self.kind(text)
            except ValueError:
                raise ValueError(self._rule(text)) from None
        return self.check(text)

    def check(self, value: Any) -> Any:
        """The value, from TOML or Python, in this option's type; ValueError if it does not fit."""
        if value is None or self._means_none(value):
            if not self.optional:
                raise ValueError(self._rule(value))
            return None
        if self.kind is float and type(value) is int:
            return float(value)
        if self.choices:
            # A value that is not text may be an object, such as a Diffusivity.
            if isinstance(value, str) and value not in self.choices:
                raise ValueError(self._rule(value))
            return value
        if type(value) is not self.kind:
            raise ValueError(self._rule(value))
        return value

    def _means_none(self, value: Any) -> bool:
        # "none" may also be the name of a choice, which is then text.
        return self.optional and value == NONE and NONE not in self.choices

    def _rule(self, value: Any) -> str:
        kinds = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        rule = f"one of {', '.join(self.choices)}" if self.choices else kinds[self.kind]
        return f"{self.name} must be {rule}{' or none' if self.optional else ''}, got {value!r}"


@cache  # a page of tables asks thousands of times, and evaluating annotations is slow
def options_of(kind: type[Any]) -> Mapping[str, Option]:
    """The options of a dataclass type, by name, in the order of its fields."""
    hints = get_type_hints(kind)
    found: dict[str, Option] = {}
    for each in fields(kind):
        hint = hints[each.name]
        alternatives = get_args(hint) or (hint,)
        plain = [a for a in alternatives if a in (bool, int, float, str)]
        found[each.name] = Option(
            name=each.name,
            kind=plain[0] if plain else str,
            optional=NoneType in alternatives or each.default is None,
            default=each.default,
            help=each.metadata.get("help", ""),
            choices=tuple(c for c in each.metadata.get("choices", ()) if c is not None),
        )
    return MappingProxyType(found)


def check_options(kind: type[Any], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The given values in the types of a dataclass's fields; ValueError for an unknown name."""
    options = options_of(kind)
    check_keys(given, options, where)
    return {name: options[name].check(value) for name, value in given.items()}


def check_keys(given: Iterable[str], known: Iterable[str], where: str) -> None:
    """ValueError that names the first unknown key, the nearest known one, and all of them."""
    known = list(known)
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"{where} has no key {key!r}{hint}; known: {', '.join(known)}")

"""Option values from text and TOML, checked against the dataclass field they are for. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_type_hints

__all__ = ["Option", "check_keys", "check_options", "options_of"]

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
    for field in fields(kind):
        hint = hints[field.name]
        alternatives = get_args(hint) or (hint,)
        plain = [a for a in alternatives if a in (bool, int, float, str)]
        found[field.name] = Option(
            name=field.name,
            kind=plain[0] if plain else str,
            optional=NoneType in alternatives or field.default is None,
            default=field.default,
            help=field.metadata.get("help", ""),
            choices=tuple(c for c in field.metadata.get("choices", ()) if c is not None),
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

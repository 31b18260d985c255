"""Options read from text and TOML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from difformer.settings import check_keys, check_options, options_of


@dataclass(frozen=True, kw_only=True)
class Options:
    count: int = field(default=3, metadata={"help": "how many"})
    rate: float = 0.5
    limit: float | None = None
    on: bool = True
    kind: Any = field(default="a", metadata={"choices": ("a", "b")})
    norm: str = field(default="all", metadata={"choices": ("all", "none")})


def test_each_field_gives_an_option_with_its_type_default_and_help() -> None:
    options = options_of(Options)
    assert list(options) == ["count", "rate", "limit", "on", "kind", "norm"]
    assert (options["count"].kind, options["count"].default) == (int, 3)
    assert options["count"].help == "how many"
    assert options["limit"].optional
    assert not options["rate"].optional
    assert options["kind"].metavar == "a|b"
    assert options["limit"].metavar == "X|none"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("rate", "1e-3", 0.001),
        ("limit", "none", None),
        ("limit", "2", 2.0),
        ("on", "no", False),
        ("kind", "b", "b"),
        ("norm", "none", "none"),  # a choice of that name is text
    ],
)
def test_text_becomes_a_value_of_the_fields_type(name: str, text: str, value: Any) -> None:
    found = options_of(Options)[name].parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "1.5", "count must be a whole number, got '1.5'"),
        ("rate", "none", "rate must be a number, got 'none'"),
        ("on", "perhaps", "on must be true or false, got 'perhaps'"),
        ("kind", "c", "kind must be one of a, b, got 'c'"),
    ],
)
def test_a_wrong_text_names_the_option_the_rule_and_the_text(
    name: str, text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        options_of(Options)[name].parse(text)


def test_toml_values_are_checked_and_whole_numbers_may_stand_for_fractions() -> None:
    assert check_options(Options, {"rate": 1, "limit": "none"}, "x") == {"rate": 1.0, "limit": None}
    with pytest.raises(ValueError, match="on must be true or false, got 1"):
        check_options(Options, {"on": 1}, "x")
    with pytest.raises(ValueError, match="count must be a whole number, got True"):
        check_options(Options, {"count": True}, "x")


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match=r"\[train\] has no key 'epoch' \(did you mean 'epochs'"):
        check_keys(["epoch"], ["epochs", "lr"], "[train]")

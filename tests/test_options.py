"""Options check themselves, say what they are, appear in signatures, and are read from text."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pytest

from difformer.settings import (
    Options,
    check_count,
    check_keys,
    check_options,
    like,
    number,
    option,
    options_of,
    takes,
    unit_interval,
    whole,
)


@dataclass(frozen=True, kw_only=True)
class Example(Options):
    count: int = option(2, "how many", whole(1))
    share: float = option(0.5, "which part", unit_interval(zero=False, one=True))
    rate: float | None = option(None, "how fast; none: not at all", number(above_zero=True))
    colour: str = option("red", "what it looks like", ("red", "blue"))
    shade: str | None = option(None, "how dark", ("light", "dark"))
    maker: Any = option("plain", "a name or an object", ("plain", "rich"))
    loud: bool = option(False, "whether it is heard")
    norm: str = option("all", "what is normalised", ("all", "none"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count must be a whole number of at least 1, got 0"),
        ({"count": None}, "count must be a whole number of at least 1, got None"),
        ({"share": 0.0}, r"share must lie in \(0, 1\], got 0.0"),
        ({"share": "half"}, r"share must lie in \(0, 1\], got 'half'"),
        ({"share": float("nan")}, r"share must lie in \(0, 1\], got nan"),
        ({"rate": -1.0}, "rate must be a finite number above 0, got -1.0"),
        ({"colour": "green"}, "colour must be one of red, blue, got 'green'"),
        ({"colour": None}, "colour must be one of red, blue, got None"),
        ({"shade": "grey"}, "shade must be one of light, dark or None, got 'grey'"),
        ({"maker": "poor"}, "maker must be one of plain, rich, got 'poor'"),
        ({"loud": "no"}, "loud must be true or false, got 'no'"),
        ({"loud": 1}, "loud must be true or false, got 1"),
    ],
    ids=str,
)
def test_a_broken_rule_is_named(given, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Example(**given)


def test_good_values_pass():
    maker = object()
    made = Example(share=np.float32(1.0), rate=3, shade="dark", maker=maker, loud=True)
    assert made.maker is maker
    assert Example(rate=None) == Example()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("count", "7", 7),
        ("share", "1e-3", 0.001),
        ("rate", "none", None),
        ("rate", "2", 2.0),
        ("shade", "None", None),
        ("loud", "Yes", True),
        ("maker", "rich", "rich"),
        ("norm", "none", "none"),  # a choice of that name is text
    ],
)
def test_text_becomes_a_value_of_the_fields_type(name, text, value):
    found = options_of(Example)[name].parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("count", "1.5", "count must be a whole number of at least 1, got '1.5'"),
        ("count", "0", "count must be a whole number of at least 1, got 0"),
        ("share", "none", r"share must lie in \(0, 1\], got 'none'"),
        ("loud", "perhaps", "loud must be true or false, got 'perhaps'"),
        ("maker", "c", "maker must be one of plain, rich, got 'c'"),
    ],
)
def test_a_wrong_text_names_the_option_the_rule_and_the_text(name, text, message):
    with pytest.raises(ValueError, match=message):
        options_of(Example)[name].parse(text)


def test_toml_values_are_checked_and_whole_numbers_may_stand_for_fractions():
    found = check_options(Example, {"share": 1, "rate": "none"}, "x")
    assert [(name, type(value)) for name, value in found.items()] == [
        ("share", float),
        ("rate", type(None)),
    ]
    with pytest.raises(ValueError, match="loud must be true or false, got 1"):
        check_options(Example, {"loud": 1}, "x")
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, got True"):
        check_options(Example, {"count": True}, "x")


def test_an_unknown_key_is_named_with_the_nearest_known_one():
    with pytest.raises(ValueError, match=r"\[train\] has no key 'epoch' \(did you mean 'epochs'"):
        check_keys(["epoch"], ["epochs", "lr"], "[train]")


def test_numbers_of_numpy_are_taken_as_python_s_own():
    """As a search over `scipy.stats.randint` hands them in; they must fit into JSON."""
    made = Example(count=np.int64(3), share=np.float32(0.5), loud=np.bool_(True))
    assert json.dumps(asdict(made)) == json.dumps(asdict(Example(count=3, loud=True)))
    assert type(check_count("count", np.int32(4))) is int


def test_an_option_like_another_has_its_help_and_rule_and_a_default_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class Other(Options):
        count: int = like(Example, "count", 7)

    assert Other().count == 7
    assert Other.__dataclass_fields__["count"].metadata["help"] == "how many"
    with pytest.raises(ValueError, match="^count must be a whole number of at least 1, got 0$"):
        Other(count=0)


def test_a_signature_is_made_from_the_fields():
    @takes(Example)
    def build(size: int, **options: Any) -> Example:
        return Example(**options)

    shown = inspect.signature(build).parameters
    assert list(shown) == ["size", *Example.names()]
    assert shown["share"].default == 0.5
    assert build(3, count=4).count == 4

"""What the API pages show: an option by its default, and a doctest as code. For griffe.

A field such as `epochs: int = option(200, "the most epochs")` is shown as `epochs: int = 200`, and
so is `epochs: int = like(TrainSettings, "epochs", 200)`.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Signatures(griffe.Extension):
    """Changes objects as they are read."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Take the default out of its option."""
        value = attr.value
        place = {"option": 0, "like": -1}  # of the default among the arguments
        if isinstance(value, griffe.ExprCall) and str(value.function) in place:
            attr.value = value.arguments[place[str(value.function)]]

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark the doctests, which Markdown takes for quotations."""
        if obj.docstring is not None:
            fenced = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced

"""What the API pages show: an option by its default, and a doctest as code. For griffe.

A field such as `epochs: int = option(200, "the most epochs")` is shown as `epochs: int = 200`.
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
        if isinstance(value, griffe.ExprCall) and str(value.function) == "option":
            attr.value = value.arguments[0]

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Mark the doctests, which Markdown takes for quotations."""
        if obj.docstring is not None:
            fenced = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
            obj.docstring.value = fenced

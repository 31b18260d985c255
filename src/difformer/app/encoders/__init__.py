"""Every encoder of images or text by name.

To add one: a function of its name with the signature of `pretrained.minilm`, and a line here. No
torch here: `difformer features --help` lists them.
"""

from __future__ import annotations

from typing import NamedTuple

from difformer.data.registry import Raw
from difformer.extensions import added


class Encoder(NamedTuple):
    """The module an encoder lives in, and what it encodes."""

    module: str
    takes: Raw


ENCODERS: dict[str, Encoder] = {
    "effnetlite0": Encoder("difformer.app.encoders.pretrained", "images"),
    "minilm": Encoder("difformer.app.encoders.pretrained", "text"),
} | {name: Encoder(*entry) for name, entry in added("encoders").items()}

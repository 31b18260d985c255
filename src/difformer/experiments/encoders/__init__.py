"""Every encoder of images or text by name.

To add one: a function of its name with the signature of `simclr.simclr`, and a line here. No torch
here: `difformer features --help` lists them.
"""

from __future__ import annotations

from typing import NamedTuple

from difformer.data.registry import Raw

__all__ = ["ENCODERS", "Encoder"]


class Encoder(NamedTuple):
    """The module an encoder lives in, and what it encodes."""

    module: str
    takes: Raw


ENCODERS: dict[str, Encoder] = {
    "simclr": Encoder("simclr", "images"),
    "random": Encoder("simclr", "images"),
    "effnetlite0": Encoder("pretrained", "images"),
    "minilm": Encoder("pretrained", "text"),
}

"""The model: one diffusion step as a layer, DIFFormer, and prediction from a frozen context."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.nn.config import DIFFormerConfig
    from difformer.nn.frozen import FrozenDIFFormer
    from difformer.nn.layer import DiffusionLayer
    from difformer.nn.model import DIFFormer

__all__ = ["DIFFormer", "DIFFormerConfig", "DiffusionLayer", "FrozenDIFFormer"]

_WHERE = {
    "DIFFormer": "difformer.nn.model",
    "DIFFormerConfig": "difformer.nn.config",
    "DiffusionLayer": "difformer.nn.layer",
    "FrozenDIFFormer": "difformer.nn.frozen",
}


def __getattr__(name: str) -> Any:
    # Late, so that the options can be read (for --help) without importing torch.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)

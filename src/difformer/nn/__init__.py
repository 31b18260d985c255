"""The model: one diffusion step as a layer, DIFFormer, and prediction from a frozen context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from difformer.lazy import lazy_names

if TYPE_CHECKING:
    from difformer.nn.config import DIFFormerConfig
    from difformer.nn.conv import DIFFormerConv
    from difformer.nn.frozen import FrozenDIFFormer
    from difformer.nn.layer import DiffusionLayer
    from difformer.nn.model import DIFFormer

__all__ = ["DIFFormer", "DIFFormerConfig", "DIFFormerConv", "DiffusionLayer", "FrozenDIFFormer"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "config": ("DIFFormerConfig",),
        "conv": ("DIFFormerConv",),
        "frozen": ("FrozenDIFFormer",),
        "layer": ("DiffusionLayer",),
        "model": ("DIFFormer",),
    },
)

"""DIFFormer-s and DIFFormer-a, named beside the systems they are compared with."""

from __future__ import annotations

from dataclasses import asdict

from difformer.baselines.registry.difformer import DIFFormerOptions
from difformer.nn.model import DIFFormer

__all__ = ["build"]


def build(in_channels: int, out_channels: int, config: DIFFormerOptions) -> DIFFormer:
    """Build a DIFFormer; its kernel decides whether it is -s or -a."""
    options = asdict(config)
    return DIFFormer(in_channels, options.pop("hidden_channels"), out_channels, **options)

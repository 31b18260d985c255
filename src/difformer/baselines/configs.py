"""Every system's options: the one place where each name, default and meaning stands. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from difformer.baselines.system import option
from difformer.nn.config import DIFFormerConfig

__all__ = ["DIFFormerOptions", "MLPConfig"]


@dataclass(frozen=True, kw_only=True)
class DIFFormerOptions(DIFFormerConfig):
    """DIFFormer's own options, and its width."""

    hidden_channels: int = option(64, "width of the states")


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """A perceptron on each row by itself."""

    hidden_channels: int = option(64, "width of the hidden layers")
    num_layers: int = option(2, "linear layers")
    dropout: float = option(0.5, "dropout on the input of every layer but the features")
    input_dropout: float = option(0.0, "dropout on the input features")
    norm: Any = option(None, "normalisation between layers", ("batch", "layer"))

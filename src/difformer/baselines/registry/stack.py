"""Options that several systems share. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.options import COUNT, RATE, Options, option

__all__ = [
    "CLASSES",
    "KIPF",
    "LABELS",
    "SCALE",
    "Convolutions",
    "NormedStack",
    "Perceptron",
    "Stack",
    "Width",
]

CLASSES = ("multiclass",)
LABELS = ("multiclass", "multilabel")
KIPF = {"lr": 0.01, "weight_decay": 5e-4}  # how Kipf and Welling train a GCN
SCALE = "divide the features by the mean size of their entries that are not zero"


@dataclass(frozen=True, kw_only=True)
class Width(Options):
    """A network on states of one width."""

    hidden_channels: int = option(64, "width of the hidden states", COUNT)
    dropout: float = option(0.5, "dropout on the hidden states", RATE)
    input_dropout: float = option(0.5, "dropout on the input features", RATE)


@dataclass(frozen=True, kw_only=True)
class Stack(Width):
    """Several layers of one width."""

    num_layers: int = option(2, "number of layers", COUNT)


@dataclass(frozen=True, kw_only=True)
class NormedStack(Stack):
    """Layers with a normalisation between them."""

    norm: str | None = option(None, "normalisation between layers", ("batch", "layer"))


@dataclass(frozen=True, kw_only=True)
class Perceptron(NormedStack):
    """A perceptron on each row's features."""

    standardise: bool = option(False, "give dense columns mean 0 and deviation 1, by all rows")


@dataclass(frozen=True, kw_only=True)
class Convolutions(NormedStack):
    """Convolutions, with what makes classic graph networks strong."""

    residual: bool = option(False, "add a linear map of each layer's input to its output")
    head: bool = option(False, "end with a linear layer rather than with a convolution")
    scale_features: bool = option(False, SCALE)

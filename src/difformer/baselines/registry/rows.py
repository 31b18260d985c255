"""Systems that look at each row by itself."""

from __future__ import annotations

from difformer.baselines.registry.memory import linear
from difformer.baselines.registry.stack import NormedStack
from difformer.baselines.system import System

__all__ = ["SYSTEMS"]

SYSTEMS = (
    System(
        name="mlp",
        title="MLP",
        model="mlp.MLP",
        config=NormedStack,
        memory=linear,
        graph="none",
        defaults={"input_dropout": 0.0},
        train={"lr": 0.01, "weight_decay": 5e-3},
        space={"hidden_channels": (16, 64, 256), "dropout": (0.2, 0.5)},
    ),
)

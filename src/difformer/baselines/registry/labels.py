"""Systems that spread labels or smooth predictions along edges."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.baselines.registry.memory import labels, linear
from difformer.baselines.registry.stack import LABELS, NormedStack
from difformer.baselines.system import System, option

__all__ = ["SYSTEMS", "LPConfig", "ManiRegConfig"]


@dataclass(frozen=True, kw_only=True)
class LPConfig:
    """Label propagation."""

    steps: int = option(50, "propagation steps")
    alpha: float = option(0.9, "weight of the neighbours against the labels, in (0, 1)")


_LP = System(
    name="lp",
    title="LP",
    model="lp.LabelPropagation",
    config=LPConfig,
    memory=labels,
    needs_graph=True,
    tasks=LABELS,
    space={"alpha": (0.5, 0.9, 0.99)},
)


@dataclass(frozen=True, kw_only=True)
class ManiRegConfig(NormedStack):
    """A perceptron with a penalty on its roughness along edges."""

    penalty: float = option(1.0, "weight λ of the roughness")
    classes: bool = option(True, "penalise probabilities; off: outputs as they are (regression)")


_MANIREG = System(
    name="manireg",
    title="ManiReg",
    model="manireg.ManiReg",
    config=ManiRegConfig,
    memory=linear,
    needs_graph=True,
    defaults={"input_dropout": 0.0},
    train={"lr": 0.01, "weight_decay": 5e-3},
    space={"penalty": (0.1, 1.0, 10.0), "hidden_channels": (16, 64, 256)},
)
SYSTEMS = (_LP, _LP.on_neighbours("alpha"), _MANIREG, _MANIREG.on_neighbours("penalty"))

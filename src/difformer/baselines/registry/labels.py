"""Systems that spread labels or smooth predictions along edges."""

from __future__ import annotations

from dataclasses import dataclass

from difformer.baselines.registry.memory import labels, linear
from difformer.baselines.registry.stack import CLASSES, KIPF, LABELS, Perceptron
from difformer.baselines.system import System
from difformer.options import COUNT, NOT_NEGATIVE, SHARE, Options, option

__all__ = ["SYSTEMS", "APPNPConfig", "LPConfig", "ManiRegConfig", "SmoothConfig"]


@dataclass(frozen=True, kw_only=True)
class LPConfig(Options):
    """Label propagation."""

    steps: int = option(50, "propagation steps", COUNT)
    alpha: float = option(0.9, "weight of the neighbours against the labels, in (0, 1)", SHARE)


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
class ManiRegConfig(Perceptron):
    """A perceptron with a penalty on its roughness along edges."""

    penalty: float = option(1.0, "weight λ of the roughness", NOT_NEGATIVE)
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


@dataclass(frozen=True, kw_only=True)
class APPNPConfig(Perceptron):
    """A perceptron whose predictions are propagated."""

    steps: int = option(10, "propagation steps K", COUNT)
    alpha: float = option(0.1, "weight α of a row's own prediction, in (0, 1)", SHARE)


_APPNP = System(
    name="appnp",
    title="APPNP",
    model="appnp.APPNP",
    config=APPNPConfig,
    memory=linear,
    needs_graph=True,
    train=KIPF,
    space={"alpha": (0.05, 0.1, 0.2, 0.5), "hidden_channels": (64, 256), "dropout": (0.2, 0.5)},
)


@dataclass(frozen=True, kw_only=True)
class SmoothConfig(Perceptron):
    """A perceptron, corrected and smoothed along edges."""

    steps: int = option(50, "propagation steps, of correcting and of smoothing each", COUNT)
    correct_alpha: float = option(0.9, "how far errors spread, in (0, 1)", SHARE)
    smooth_alpha: float = option(0.8, "how far labels spread, in (0, 1)", SHARE)


_SMOOTHED = System(
    name="correct-smooth",
    title="correct and smooth",
    model="smoothed.CorrectAndSmooth",
    config=SmoothConfig,
    memory=linear,
    needs_graph=True,
    tasks=CLASSES,
    defaults=_MANIREG.defaults,
    train=_MANIREG.train,
    space={
        "correct_alpha": (0.5, 0.9),
        "smooth_alpha": (0.5, 0.8, 0.9),
        "hidden_channels": (64, 256),
    },
)
SYSTEMS = (
    _LP,
    _LP.on_neighbours("alpha"),
    _MANIREG,
    _MANIREG.on_neighbours("penalty"),
    _APPNP,
    _SMOOTHED,
)

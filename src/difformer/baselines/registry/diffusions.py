"""Systems that diffuse features along the graph, in closed form or by a solver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from difformer.baselines.registry.memory import FLOAT, features, linear
from difformer.baselines.registry.stack import KIPF, SCALE, Convolutions, Stack, Width
from difformer.baselines.system import System
from difformer.options import COUNT, POSITIVE, RATE, SHARE, Options, option

__all__ = ["SYSTEMS", "DGCConfig", "GDCConfig", "GRANDConfig", "HeatConfig", "SGCConfig"]


@dataclass(frozen=True, kw_only=True)
class SGCConfig(Options):
    """Simplified graph convolution."""

    steps: int = option(2, "propagation steps K", COUNT)


_SGC = System(
    name="sgc",
    title="SGC",
    model="sgc.SGC",
    config=SGCConfig,
    memory=features,
    needs_graph=True,
    train={"lr": 0.2, "weight_decay": 5e-6},
    space={"steps": (2, 4, 8)},
)


@dataclass(frozen=True, kw_only=True)
class DGCConfig(Options):
    """Decoupled graph convolution by Euler steps."""

    steps: int = option(100, "Euler steps K", COUNT)
    time: float = option(5.3, "terminal time T", POSITIVE)


_DGC = System(
    name="dgc",
    title="DGC-Euler",
    model="dgc.DGC",
    config=DGCConfig,
    memory=features,
    needs_graph=True,
    train={"lr": 0.2, "weight_decay": 1e-5},
    space={"time": (3.8, 5.3, 6.0)},
)


@dataclass(frozen=True, kw_only=True)
class GDCConfig(Convolutions):
    """A GCN on the diffused graph."""

    diffusion: str = option("ppr", "personalised PageRank or heat kernel", ("ppr", "heat"))
    alpha: float = option(0.05, "teleport probability of ppr", SHARE)
    time: float = option(5.0, "diffusion time of heat", POSITIVE)
    top_k: int = option(128, "entries kept in each column", COUNT)


def _largest(n: int, e: int, p: int, c: int, config: GDCConfig) -> float:
    """A block of columns of the diffusion and its work space, and the entries that are kept."""
    kept = n * min(config.top_k, n)
    return FLOAT * (8 * min(n * n, 2**22) + 12 * kept) + linear(n, kept, p, c, config)


_GDC = System(
    name="gdc",
    title="GDC",
    model="gdc.GDC",
    config=GDCConfig,
    memory=_largest,
    needs_graph=True,
    train=KIPF,
    space={"alpha": (0.05, 0.1), "top_k": (64, 128), "hidden_channels": (16, 64)},
)


@dataclass(frozen=True, kw_only=True)
class HeatConfig(Stack):
    """Heat-kernel convolutions."""

    scale: float = option(3.5, "s in e^(-s L)", POSITIVE)


_HEAT = System(
    name="graphheat",
    title="GraphHeat",
    model="heat.GraphHeat",
    config=HeatConfig,
    memory=linear,
    needs_graph=True,
    defaults={"hidden_channels": 16},
    train=KIPF,
    space={"scale": (1.0, 3.5, 5.0), "hidden_channels": (16, 64)},
)


@dataclass(frozen=True, kw_only=True)
class GRANDConfig(Width):
    """Graph neural diffusion."""

    attention_channels: int = option(16, "width of a head's query and key", COUNT)
    num_heads: int = option(4, "attention heads, averaged", COUNT)
    nonlinear: bool = option(False, "compute the attention of every state; off: of the first only")
    source: bool = option(False, "GRAND++: labelled rows are sources")
    source_dropout: float = option(
        0.5,
        "share of GRAND++'s sources left out of a training step, which learns from their rows only",
        RATE,
    )
    learned_scale: bool = option(True, "learn how fast X(t) moves and how strong the sources are")
    time: float = option(8.0, "terminal time T", POSITIVE)
    method: str = option(
        "rk4", "torchdiffeq's solver", ("euler", "midpoint", "rk4", "dopri5", "adaptive_heun")
    )
    step: float = option(1.0, "step size of the fixed-step solvers", POSITIVE)
    tolerance: float = option(
        1e-3, "relative and absolute tolerance of the adaptive solvers", POSITIVE
    )
    scale_features: bool = option(False, SCALE)


def _solver(n: int, e: int, p: int, c: int, config: GRANDConfig) -> float:
    """Every evaluation of the field keeps its states, and its attention where it has its own."""
    evaluations = config.time / config.step * {"rk4": 4, "midpoint": 2}.get(config.method, 1)
    attention = e * config.num_heads * (2 * config.attention_channels + 3)
    states = evaluations * n * config.hidden_channels * 7
    often = evaluations if config.nonlinear else 1
    return linear(n, e, p, c, config) + FLOAT * (states + often * attention)


_GRAND = System(
    name="grand-l",
    title="GRAND-l",
    model="grand.GRAND",
    config=GRANDConfig,
    memory=_solver,
    needs_graph=True,
    package="torchdiffeq",
    extra="ode",
    train={"lr": 0.02, "weight_decay": 5e-4},
    space={"time": (4.0, 8.0, 16.0), "dropout": (0.2, 0.5)},
)
_EULER: dict[str, Any] = {"method": "euler"}
SYSTEMS = (
    _SGC,
    _GRAND,
    replace(_GRAND, name="grand", title="GRAND", defaults={**_EULER, "nonlinear": True}),
    replace(
        _GRAND,
        name="grandpp",
        title="GRAND++",
        defaults={**_EULER, "source": True},
        space={**_GRAND.space, "source_dropout": (0.0, 0.5, 0.9)},
    ),
    _GDC,
    _HEAT,
    _DGC,
)

"""Diffusivities: how strongly each pair of rows influences each other.

One protocol, eight forms. Letters: q (..., h, n, d) queries, k (..., h, m, d) keys,
v (..., h, m, e) values; ω_ij ≥ 0 is the unnormalised diffusivity of a pair, and

    Ŝ_ij = ω_ij / Σ_l ω_il                                                     (eq. 6)

The energy side is f(z²), a function of a squared distance, and its integral δ(z²) (eq. 4).
"""

from __future__ import annotations

from typing import Any

from difformer.core.diffusivity.plain import (
    FLOOR,
    Constant,
    Diffusivity,
    Identity,
    Sigmoid,
    Simple,
    Softmax,
    WholeTensorSimple,
)
from difformer.core.diffusivity.sharp import Gaussian, Landmarks, Sharp

__all__ = [
    "FLOOR",
    "KERNELS",
    "Constant",
    "Diffusivity",
    "Gaussian",
    "Identity",
    "Landmarks",
    "Sharp",
    "Sigmoid",
    "Simple",
    "Softmax",
    "WholeTensorSimple",
    "make_diffusivity",
]

KERNELS: dict[str, type[Diffusivity]] = {
    cls.name: cls
    for cls in (Simple, Sigmoid, Sharp, Landmarks, Identity, Constant, Softmax, Gaussian)
}
"""Every diffusivity by name."""


def make_diffusivity(kernel: str | Diffusivity, qk_norm: str = "row", **knobs: Any) -> Diffusivity:
    """The diffusivity of this name; a Diffusivity is returned unchanged.

    `knobs` are options such as sharpness. Each class takes those in its `knobs`; None stands for
    the default of the class.
    """
    if qk_norm not in ("row", "tensor"):
        raise ValueError(f"qk_norm must be 'row' or 'tensor', got {qk_norm!r}")
    if isinstance(kernel, Diffusivity):
        return kernel
    if kernel not in KERNELS:
        raise ValueError(
            f"kernel must be one of {', '.join(KERNELS)}, or a Diffusivity; got {kernel!r}"
        )
    if qk_norm == "tensor" and KERNELS[kernel] is Simple:
        return WholeTensorSimple()
    cls = KERNELS[kernel]
    given = {name: knobs.get(name) for name in cls.knobs}
    return cls(**{name: value for name, value in given.items() if value is not None})

"""Which diffusivities are worth trying, and which trained model is the better one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from difformer.core.diffusivity import Diffusivity
from difformer.nn.model import DIFFormer
from difformer.train.objective import Monitor
from difformer.train.run import FitResult

__all__ = ["Candidate", "free_memory", "pick_kernels"]

# Above this many rows an epoch of -a, quadratic in them, costs seconds on a CPU.
MOST_ROWS = 4096


@dataclass(frozen=True)
class Candidate:
    """A trained model, and the validation of all candidates so far."""

    kernel: Any
    model: DIFFormer
    result: FitResult
    scores: dict[str, float]

    def beats(self, other: Candidate, monitor: Monitor) -> bool:
        """Whether its validation metric is better, or as good at a lower loss."""
        sign = 1 if monitor.direction == "max" else -1
        mine, theirs = self.result.metrics["val"], other.result.metrics["val"]
        return (sign * mine[monitor.name], -mine["loss"]) > (
            sign * theirs[monitor.name],
            -theirs["loss"],
        )


def pick_kernels(
    kernel: str | Diffusivity, num_rows: int, width: int, num_layers: int
) -> list[str | Diffusivity]:
    """The kernels to train: the one asked for; for "auto" -s, and -a while it fits.

    -a keeps keys, values, states and their gradients of every layer for its frozen context, and a
    tile of scores: about 4 bytes · rows · (10 width · layers + 2 · 512) in training.
    """
    if kernel != "auto":
        return [kernel]
    needed = 4 * num_rows * (10 * width * num_layers + 1024)
    if num_rows > MOST_ROWS or needed > free_memory() / 2:
        return ["simple"]
    return ["simple", "sigmoid"]


def free_memory() -> float:
    """Bytes of memory not in use, or infinity where the system does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return float("inf")

"""How far a row reaches: the offset at which its sigmoids sum to a given number of partners."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["offsets_for_reach"]

# Newton's steps, kept in a bracket; every third halves it, so this many end anywhere.
STEPS = 100
# Traced code cannot stop early: so many steps are enough for the sharpnesses in use.
TRACED_STEPS = 24


def offsets_for_reach(scores: Tensor, sharpness: float, reach: float) -> Tensor:
    """t (..., n, 1) with Σ_j σ(s (c_ij − t_i)) = reach, for scores c (..., n, m): O(n m) a step.

    A reach of m or more takes in everybody. A row's offset depends on its own scores alone, to the
    last bit: a row that has converged stays.
    """
    m = scores.shape[-1]
    share = min(reach / m, 1 - 1e-9)
    wanted = share * m
    # All scores alike at the smallest, or at the largest, bound the offset from both sides.
    shift = math.log(share / (1 - share)) / sharpness
    low = scores.amin(-1, keepdim=True) - shift
    high = scores.amax(-1, keepdim=True) - shift
    nearest = scores.topk(max(1, min(m, round(reach))), dim=-1).values[..., -1:]
    offset = torch.minimum(torch.maximum(nearest, low), high)
    tolerance = wanted * 32 * torch.finfo(scores.dtype).eps
    traced = torch.compiler.is_compiling()
    done = torch.zeros_like(offset, dtype=torch.bool)
    for step in range(TRACED_STEPS if traced else STEPS):
        omega = torch.sigmoid((scores - offset) * sharpness)
        mass = omega.sum(-1, keepdim=True)
        slope = (mass - omega.square().sum(-1, keepdim=True)) * sharpness  # −∂mass/∂t
        done = done | ((mass - wanted).abs() <= tolerance) | (high - low <= 0)
        if not traced and bool(done.all()):
            break
        above = mass > wanted  # too many partners: the offset must grow
        low, high = torch.where(above, offset, low), torch.where(above, high, offset)
        # A step on log mass, which is nearly straight where few partners are left.
        tiny = torch.finfo(scores.dtype).tiny
        change = (mass.clamp_min(tiny).log() - math.log(wanted)) * mass / slope.clamp_min(tiny)
        moved, middle = offset + change, (low + high) / 2
        newton = (moved > low) & (moved < high) & (step % 3 != 2)
        offset = torch.where(done, offset, torch.where(newton, moved, middle))
    return offset

"""How far a row reaches: where its weights sum to a given number of partners."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["offsets_for_reach", "widths_for_reach"]

# Most rows need five steps; bisection bounds the number for all.
STEPS = 100
# Traced code cannot stop early; this many steps suffice for the sharpness values in use.
TRACED_STEPS = 24
# Exported code starts from the score of the last partner, as untraced code does, and needs fewer.
EXPORTED_STEPS = 4  # and one for each unit of the sharpness' square root
# Halvings of a width's logarithm, from 42 down to the last digits.
WIDTH_STEPS = 50
ROUNDING = 8  # times the precision: what may be left of the squared distance of equal rows
_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # missing in PyTorch 2.6


def offsets_for_reach(scores: Tensor, sharpness: float, reach: float) -> Tensor:
    """t (..., n, 1) with Σ_j σ(s (c_ij − t_i)) = reach, for scores c (..., n, m): O(n m) per step.

    A reach of m or more includes every row. A row's offset depends on its own scores alone, to the
    last bit: a row that has converged does not change again.
    """
    m = scores.shape[-1]
    count = torch.full((), m, dtype=torch.float64, device=scores.device)
    share = (reach / count).clamp_max(1 - 1e-9)
    wanted = (share * count).log().to(scores.dtype)
    # All scores alike at the smallest, or at the largest, bound the offset from both sides.
    shift = (share.logit() / sharpness).to(scores.dtype)
    low = scores.amin(-1, keepdim=True) - shift
    high = scores.amax(-1, keepdim=True) - shift
    traced = torch.compiler.is_compiling()
    exported = _exporting() and isinstance(m, int)  # not where the rows may vary in number
    steps = TRACED_STEPS if traced else STEPS
    if exported:
        steps = EXPORTED_STEPS + math.ceil(math.sqrt(sharpness))
    offset = (low + high) / 2
    if exported or not traced:
        if scores.dtype == torch.float64 and not traced:  # most of the way at half the cost
            near = offsets_for_reach(scores.float(), sharpness, reach).to(scores)
        else:  # the score of the last partner
            near = scores.topk(max(1, min(m, round(reach))), dim=-1).values[..., -1:]
        offset = torch.minimum(torch.maximum(near, low), high)
    tiny = torch.finfo(scores.dtype).tiny
    tolerance = torch.finfo(scores.dtype).eps ** 0.75  # of the mass; its sum rounds off the rest
    done = torch.zeros_like(offset, dtype=torch.bool)
    before = torch.full_like(offset, math.inf)
    for _ in range(steps):
        omega = (scores - offset).mul_(sharpness).sigmoid_()
        mass = omega.sum(-1, keepdim=True)
        slope = (mass - omega.square_().sum(-1, keepdim=True)) * sharpness  # −∂mass/∂t
        error = mass.clamp_min(tiny).log() - wanted
        done = done | (error.abs() <= tolerance) | (high <= low)
        if not traced and bool(done.all()):
            break
        above = error > 0  # too many partners: the offset must grow
        low, high = torch.where(above, offset, low), torch.where(above, high, offset)
        # Newton on the logarithm, which is nearly straight where few partners are left; halving
        # where that leaves the bracket or does not at least halve the error.
        moved = offset + error * mass / slope.clamp_min(tiny)
        newton = (moved > low) & (moved < high) & (error.abs() <= before / 2)
        before = error.abs()
        offset = torch.where(done, offset, torch.where(newton, moved, (low + high) / 2))
    return offset


def widths_for_reach(square: Tensor, size: Tensor, reach: float) -> Tensor:
    """b (..., n, 1) with Σ_j exp(−d²_ij / (2 b_i²)) = reach, for squared distances (..., n, m).

    By halving in the logarithm of 1/(2 b²). Where no width gives a row this reach, the result is
    the largest or the smallest width tried. `size` (..., n, 1) is the squared length of the row
    and of the longest other: distances within its rounding count as zero, and no width is smaller.
    """
    limits = torch.finfo(square.dtype)
    size = size.clamp_min(limits.tiny**0.5)  # rows of zeros have a size, and no width underflows
    noise = ROUNDING * limits.eps * size
    square = torch.where(square > noise, square, 0.0)
    farthest = square.amax(-1, keepdim=True)
    scale = torch.where(farthest > 0, farthest, size)
    low = torch.full_like(scale, math.log(1e-6))  # of d²max / (2 b²)
    high = torch.full_like(scale, math.log(1e12))
    relative = square / scale
    for _ in range(WIDTH_STEPS):
        middle = (low + high) / 2
        over = torch.exp(-relative * middle.exp()).sum(-1, keepdim=True) > reach
        low, high = torch.where(over, middle, low), torch.where(over, high, middle)
    return torch.maximum(scale / (2 * low.exp()), noise).sqrt()

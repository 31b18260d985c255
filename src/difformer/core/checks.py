"""Checks of tensors: a ValueError names the argument, the rule and the value."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_finite", "check_within"]


def check_finite(name: str, value: Tensor) -> None:
    """Raise if `value` (dense or sparse) holds NaN or infinity; one pass over the data."""
    stored = value if value.layout == torch.strided else value.values()
    # A sum is one read without a temporary; only a non-finite one (or an overflow) is looked at.
    if bool(torch.isfinite(stored.sum())):
        return
    bad = ~torch.isfinite(stored)
    if not bool(bad.any()):
        return
    first = bad.nonzero()[0].tolist()
    where = f"first at {tuple(first)}" if value.layout == torch.strided else "among stored values"
    raise ValueError(f"{name} must be finite, got {int(bad.sum())} NaN or infinite values, {where}")


def check_within(name: str, value: Tensor, limit: float) -> None:
    """Raise if a number of `value` (dense or sparse) lies beyond ±limit; one pass over the data."""
    stored = (value if value.layout == torch.strided else value.values()).detach()
    if stored.numel() == 0 or float(torch.linalg.vector_norm(stored, torch.inf)) <= limit:
        return
    first = (stored.abs() > limit).nonzero()[0].tolist()
    where = f"at {tuple(first)}" if value.layout == torch.strided else "among stored values"
    raise ValueError(
        f"{name} must lie within ±{limit:.0e}, or its squares overflow: got "
        f"{float(stored[tuple(first)]):g} {where}; scale the columns first"
    )

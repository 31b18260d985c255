"""Checks of tensors: a ValueError names the argument, the rule and the value."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_finite"]


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

"""Checks of arguments: each raises a ValueError that names the argument, the rule and the value."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["check_count", "check_finite", "check_unit_interval"]


def check_count(name: str, value: int, at_least: int = 1) -> int:
    """`value` if it is a whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} must be a whole number of at least {at_least}, got {value!r}")
    return value


def check_unit_interval(name: str, value: float, *, zero: bool, one: bool) -> float:
    """`value` if it lies between 0 and 1; `zero` and `one` say whether the ends count."""
    above = value >= 0 if zero else value > 0
    below = value <= 1 if one else value < 1
    if not (above and below):
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"{name} must lie in {interval}, got {value!r}")
    return value


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

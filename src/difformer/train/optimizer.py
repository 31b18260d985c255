"""The optimiser, and its learning rate over the epochs."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from difformer.train.settings import TrainSettings

__all__ = ["lr_factor", "make_optimizer", "parameter_groups"]


def make_optimizer(*models: nn.Module, settings: TrainSettings) -> Optimizer | None:
    """Adam over the trainable parameters of these models, or None if there are none."""
    groups = [group for model in models for group in parameter_groups(model)]
    for group in groups:
        group["params"] = [p for p in group["params"] if p.requires_grad]
    if not any(group["params"] for group in groups):
        return None
    kind = Adam if settings.optimizer == "adam" else AdamW
    # One pass over all parameters instead of a dozen small operations for each of them.
    return kind(groups, lr=settings.lr, weight_decay=settings.weight_decay, fused=True)


def lr_factor(epoch: int, settings: TrainSettings) -> float:
    """What the learning rate is multiplied by in an epoch, counted from 1.

    Rises linearly over the warm-up; then 1, or half a cosine from 1 to 0 over the epochs left.
    """
    if epoch < settings.warmup:
        return epoch / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    left = settings.epochs - settings.warmup
    return 0.5 * (1 + math.cos(math.pi * max(0, epoch - settings.warmup - 1) / max(1, left)))


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """The model's own groups where it has some, else all its parameters as one."""
    own = getattr(model, "parameter_groups", None)
    return own() if own else [{"params": list(model.parameters())}]

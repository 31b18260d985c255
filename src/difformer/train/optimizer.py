"""The optimiser, its learning rate over the epochs, and early stopping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from difformer.errors import TrainingError
from difformer.metrics import Metric
from difformer.train.settings import TrainSettings


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


@dataclass
class Stopping:
    """Keeps the best validation epoch, and counts the epochs since.

    An epoch is better when the monitored metric is; where it is equal, when the validation loss
    is strictly lower; where both are equal the earlier epoch stays. ``patience`` counts from the
    best epoch, so it restarts with every improvement.
    """

    monitor: Metric
    patience: int | None = None
    best_epoch: int | None = None
    best_score: tuple[float, float] = (float("-inf"), float("-inf"))

    def update(self, epoch: int, metrics: Mapping[str, float]) -> bool:
        """Record one epoch's validation metrics; True if it is the best so far."""
        if self.monitor.name not in metrics:
            known = ", ".join(metrics)
            raise ValueError(f"pick_by must be one of {known} here, got {self.monitor.name!r}")
        value = metrics[self.monitor.name]
        if value != value:
            raise TrainingError(
                f"the validation {self.monitor.name} is nan in epoch {epoch}: "
                "its rows must have known labels, and for roc_auc of both classes"
            )
        score = (self.monitor.better * value, -metrics["loss"])
        if self.best_epoch is not None and score <= self.best_score:
            return False
        self.best_epoch, self.best_score = epoch, score
        return True

    def exhausted(self, epoch: int) -> bool:
        """True once ``patience`` epochs have passed without a better one."""
        if self.patience is None or self.best_epoch is None:
            return False
        return epoch - self.best_epoch >= self.patience

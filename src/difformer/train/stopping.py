"""Early stopping: which epoch is kept, and when training ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from difformer.errors import TrainingError
from difformer.train.objective import Monitor


@dataclass
class Stopping:
    """Keeps the best validation epoch, and counts the epochs since.

    An epoch is better when the monitored metric is; where it is equal, when the validation loss
    is strictly lower; where both are equal the earlier epoch stays. ``patience`` counts from the
    best epoch, so it restarts with every improvement.
    """

    monitor: Monitor
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
        score = (value if self.monitor.direction == "max" else -value, -metrics["loss"])
        if self.best_epoch is not None and score <= self.best_score:
            return False
        self.best_epoch, self.best_score = epoch, score
        return True

    def exhausted(self, epoch: int) -> bool:
        """True once ``patience`` epochs have passed without a better one."""
        if self.patience is None or self.best_epoch is None:
            return False
        return epoch - self.best_epoch >= self.patience

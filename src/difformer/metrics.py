"""Every metric by name: its title, and whether more of it is better. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A figure of how good answers are.

    Args:
        name: as options, records and files spell it.
        title: for people.
        better: 1 if more of it is better, -1 if less is.
        share: whether it lies in 0 to 1 and differences are told in per cent.
    """

    name: str
    title: str
    better: int
    share: bool = False

    @property
    def direction(self) -> str:
        """As records spell it: max or min."""
        return "max" if self.better > 0 else "min"

    @property
    def unit(self) -> tuple[float, int]:
        """What figures of a comparison are multiplied by, and their decimals."""
        return (100.0, 1) if self.share else (1.0, 4)


TEMPERED = "tempered_loss"
"""The log loss at the best temperature, which is the log loss after calibration."""
METRICS = {
    metric.name: metric
    for metric in (
        Metric("r2", "R²", 1),
        Metric("mae", "mean absolute error", -1),
        Metric("rmse", "root mean squared error", -1),
        Metric("mse", "mean squared error", -1),
        Metric("roc_auc", "area under the ROC curve", 1, share=True),
        Metric("balanced_accuracy", "balanced accuracy", 1, share=True),
        Metric("accuracy", "accuracy", 1, share=True),
        Metric("macro_f1", "macro F1", 1, share=True),
        Metric("loss", "loss", -1),
        Metric("log_loss", "log loss", -1),
        Metric(TEMPERED, "log loss after calibration", -1),
        Metric("ece", "calibration error", -1),
        Metric("epoch_seconds", "seconds per epoch", -1),
    )
}

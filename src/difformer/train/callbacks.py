"""Callbacks of the training loop: a progress bar, TensorBoard, energies."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import missing_extra
from difformer.progress import progress

if TYPE_CHECKING:
    from difformer.train.checkpoint import Row
    from difformer.train.folder import FitResult
    from difformer.train.loop import Fit


class Callback:
    """Called by the loop; every method does nothing unless overridden.

    A callback may add columns in `on_evaluate`, and may end the run by setting ``fit.stopped``
    to the reason, in one word.
    """

    def on_start(self, fit: Fit) -> None:
        """Before the first epoch; ``fit.epoch`` is above 0 when a run is resumed."""

    def on_evaluate(self, fit: Fit, row: Row) -> None:
        """After each evaluation, before its row is stored; numbers may be added to the row."""

    def on_epoch(self, fit: Fit) -> None:
        """After each epoch."""

    def on_end(self, fit: Fit, result: FitResult | None) -> None:
        """At the end, always; ``result`` is None when an error ended the run."""


class Progress(Callback):
    """A progress bar with the current metrics, on stderr; silent if that is not a terminal."""

    def __init__(self, title: str = "training", *, quiet: bool = False) -> None:
        self.title = title
        self.quiet = quiet
        self._bar = ExitStack()
        self._step: Callable[..., None] | None = None

    def on_start(self, fit: Fit) -> None:
        if fit.optimizer is None:  # fitted in one go: it shows its own progress where it has some
            if not self.quiet and sys.stderr.isatty():
                setattr(fit.model, "verbose", True)  # noqa: B010 - torch types attributes as modules
            return
        bar = progress(self.title, fit.settings.epochs, count="steps", quiet=self.quiet)
        self._step = self._bar.enter_context(bar)
        self._step(completed=fit.epoch)

    def on_epoch(self, fit: Fit) -> None:
        if self._step is not None:
            text = describe(fit.history[-1], fit.objective.monitor.name) if fit.history else ""
            self._step(completed=fit.epoch, note=text)

    def on_end(self, fit: Fit, result: FitResult | None) -> None:
        self._bar.close()
        choice = getattr(fit.model, "choice", "")
        if choice and result is not None and not self.quiet:
            print(choice, file=sys.stderr)


class TensorBoard(Callback):
    """Writes each evaluated epoch's row for TensorBoard; needs the ``tensorboard`` package."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._writer: Any = None

    def on_start(self, fit: Fit) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise missing_extra("TensorBoard", "tensorboard") from error
        # A resumed run replaces what was logged after its checkpoint.
        self._writer = SummaryWriter(str(self.folder), purge_step=fit.epoch + 1)

    def on_evaluate(self, fit: Fit, row: Row) -> None:
        for name, value in row.items():
            if name != "epoch":
                self._writer.add_scalar(name.replace("_", "/", 1), value, fit.epoch)

    def on_end(self, fit: Fit, result: FitResult | None) -> None:
        if self._writer is not None:
            self._writer.close()


class Energies(Callback):
    """Adds each layer's energy to every evaluated epoch's row: energy_1, energy_2, …

    Costs what `model.energies(x, graph)` does: a forward pass, and O(n d²) or, where the
    diffusivity does not separate, O(n² d) per layer.
    """

    def on_start(self, fit: Fit) -> None:
        if not hasattr(fit.model, "energies"):
            name = type(fit.model).__name__
            raise ValueError(f"monitor must be left out: {name} has no energy, only DIFFormer has")
        if fit.source.observed().segments is not None:
            raise ValueError("monitor must be left out: separate graphs have no common energy")

    def on_evaluate(self, fit: Fit, row: Row) -> None:
        batch = fit.source.observed()
        model: Any = fit.model
        energies = model.energies(batch.x, batch.graph).tolist()
        row |= {f"energy_{k}": value for k, value in enumerate(energies, start=1)}


def describe(row: Row, metric: str) -> str:
    """One row in a few words: loss, and the monitored metric in training and validation."""
    parts = [("loss", "loss"), (f"train_{metric}", f"train {metric}"), (f"val_{metric}", "val")]
    return "  ".join(f"{label} {row[name]:.4f}" for name, label in parts if name in row)

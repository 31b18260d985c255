"""The one training loop: full batches, mini-batches, snapshots, and methods with their own step.

It never asks which method or which dataset it is running. A model is an ``nn.Module`` called as
``model(x, graph, None, segments)``; these hooks are used where a model has them:

    observe(batch)             once, before training: all rows, the training labels only
    borrow(rows, labels)       then, where its `borrows` is a share above 0: that share of the
                               validation rows, which no longer count as such
    choose_by(rows, labels)    then: the validation rows, which it must not train on
    training_step(batch, objective, optimizer) -> float    in place of the loop's own step
    parameter_groups() -> [{"params": ..., "lr": ...}]      separate options for some weights
    reduce_gradients()         after each backward pass, for a model spread over processes
    save(path)                 in place of writing the state as it is

What the settings may put beside a model (`teacher_for`) has ``training_step`` and
``parameter_groups`` too, takes the model's steps, and is dropped when the run ends.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from difformer.data.dataset import Batch
from difformer.errors import TrainingError
from difformer.files import reading
from difformer.metrics import METRICS
from difformer.train.batches import Source, predict
from difformer.train.checkpoint import (
    Row,
    State,
    copy_state,
    load_checkpoint,
    load_moments,
    load_weights,
    moments_of,
    save_checkpoint,
)
from difformer.train.folder import FitResult, Metrics, RunFolder
from difformer.train.interrupts import interruptible
from difformer.train.memory import peak_memory
from difformer.train.objective import CrossEntropy, Objective, supervised_loss
from difformer.train.seeding import random_state, restore_random_state, seeded
from difformer.train.settings import TrainSettings
from difformer.train.steps import (
    Stopping,
    consistency_loss,
    lr_factor,
    make_optimizer,
    teacher_for,
)

if TYPE_CHECKING:
    from difformer.data.split import Split
    from difformer.train.callbacks import Callback

DIVERGED = 1e8  # times the first loss: training has diverged, even if the loss is finite


def fit(
    model: nn.Module,
    source: Source,
    objective: Objective,
    split: Split,
    settings: TrainSettings,
    *,
    folder: Path | str | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    writes: bool = True,
) -> FitResult:
    """Train a model and leave it with the weights of its best validation epoch.

    Validation picks the epoch; without validation rows the last one is kept. The test rows are
    looked at once, at the end. A model without parameters is evaluated and not trained. Equal
    settings give equal bits; the global generators are left as they were.

    With a folder the run is kept there, and a run of the same configuration found there resumes
    where its last checkpoint left it (a finished one is read back), with the bits of a run that
    never stopped. Ctrl-C ends the run after its epoch, a second one at once: either way with the
    best weights so far, `interrupted` set, and ready to resume.

    Args:
        source: the batches, see `Source`; it hides the labels of validation and test rows.
        split: the rows that each metric counts.
        config: more sections for config.toml (model, data) beside the settings.
        writes: False in all but one of the processes of a distributed run: they read the folder
            and change nothing in it.
    """
    if settings.patience is not None and split.size("val") == 0:
        raise ValueError("patience must be None for a split without validation rows")
    if split.size("train") == 0:
        raise ValueError("split.train must hold at least one row, it is empty")
    if settings.consistency and not isinstance(objective, CrossEntropy):
        raise ValueError(
            f"consistency must be 0 for {type(objective).__name__}: it compares class probabilities"
        )
    sections = {**(config or {}), "train": asdict(settings)}
    run = None if folder is None else RunFolder(folder, sections, split, writes=writes)
    device = pick_device(settings.device)
    model.to(device)
    source = source.to(device)
    own = device.type == "cpu" and getattr(model, "own_draws", False)
    with _threads(settings.threads), seeded(settings.seed, stream="train", own=own):
        observe = getattr(model, "observe", None)
        if observe is not None:
            observe(source.observed())
        split = lend(model, source, split)
        done = None if run is None else run.finished()
        if run is not None and done is not None:
            run.load_model(model)
            return done
        state = Fit(model, source, objective, split, settings, run, tuple(callbacks))
        # Without epochs there is none to finish first: Ctrl-C ends it at once.
        listening = nullcontext(threading.Event()) if state.optimizer is None else interruptible()
        with listening as interrupt:
            return state.complete(interrupt)


def lend(model: nn.Module, source: Source, split: Split) -> Split:
    """Give a model the validation labels it asks for; the split without those it trains on."""
    choose_by = getattr(model, "choose_by", None)
    if choose_by is not None and split.val.numel():
        rows = split.val.to(source.y.device)
        choose_by(rows, source.y[rows])
    count = int(getattr(model, "borrows", 0.0) * split.val.numel())
    if count == 0:
        return split
    order = torch.randperm(split.val.numel(), generator=torch.Generator().manual_seed(0))
    lent = split.val[order[:count]]
    borrow: Any = getattr(model, "borrow")  # noqa: B009 - torch types an attribute as a module
    borrow(lent.to(source.y.device), source.y[lent.to(source.y.device)])
    return replace(split, val=split.val[order[count:].sort().values])


class Fit:
    """A run in progress, as callbacks see it. ``epoch`` counts the finished ones."""

    def __init__(
        self,
        model: nn.Module,
        source: Source,
        objective: Objective,
        split: Split,
        settings: TrainSettings,
        run: RunFolder | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.model, self.source, self.objective, self.split = model, source, objective, split
        self.settings, self.run, self.callbacks = settings, run, callbacks
        self.epoch, self.stopped = 0, cast("str | None", None)
        self.loss = math.nan  # mean training loss of the last epoch
        self.history: list[Row] = []
        self.companion = teacher_for(model, settings, objective)
        beside = () if self.companion is None else (self.companion,)
        self.optimizer = make_optimizer(model, *beside, settings=settings)
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        self._lr = [float(group["lr"]) for group in groups]
        pick = settings.pick_by
        monitor = objective.monitor if pick is None else METRICS[pick]
        self._stopping = Stopping(monitor, settings.patience)
        self._best: tuple[int, State] | None = None  # the epoch and its weights
        self._first_loss: float | None = None
        self._seconds, self._clock = 0.0, time.monotonic()
        if run is not None:
            if run.checkpoint.exists():
                self._restore(run.checkpoint)
            run.start_metrics(self.history)
        self._saved = time.monotonic()

    def complete(self, interrupt: threading.Event) -> FitResult:
        """Run the remaining epochs, then evaluate the best weights and write the result."""
        result = None
        try:
            for callback in self.callbacks:
                callback.on_start(self)
            try:
                self._train(interrupt)
            except KeyboardInterrupt:
                if self._best is None:  # nothing worth keeping yet
                    raise
                self.stopped = "interrupted"
            result = self._result()
            return result
        finally:
            for callback in self.callbacks:
                callback.on_end(self, result)

    def _train(self, interrupt: threading.Event) -> None:
        if self.optimizer is None:
            self._evaluate({"epoch": 0})
            self.stopped = "evaluated"
        while self.stopped is None and self.epoch < self.settings.epochs:
            epoch = self.epoch + 1
            self.loss = self._train_epoch(self.optimizer, epoch)
            self.epoch = epoch
            if epoch % self.settings.eval_every == 0 or epoch == self.settings.epochs:
                self._evaluate({"epoch": epoch, "loss": self.loss})
                if self._stopping.exhausted(epoch):
                    self.stopped = "patience"
            for callback in self.callbacks:
                callback.on_epoch(self)
            if self.stopped is None and epoch < self.settings.epochs:
                self._checkpoint(interrupt.is_set())
                if interrupt.is_set() and self._best is not None:
                    self.stopped = "interrupted"
        if self._best is None:  # a callback stopped the run before its first evaluation
            self._evaluate({"epoch": self.epoch, "loss": self.loss})

    def _train_epoch(self, optimizer: Optimizer | None, epoch: int) -> float:
        """One step for each batch; the loss is the mean over the rows the batches count."""
        assert optimizer is not None
        factor = lr_factor(epoch, self.settings)
        for group, lr in zip(optimizer.param_groups, self._lr, strict=True):
            group["lr"] = lr * factor
        self.model.train()
        trained = self.model
        if self.companion is not None:
            trained = self.companion.train()
            self.companion.epoch = epoch
        own_step = getattr(trained, "training_step", None)
        total, rows = 0.0, 0
        for batch in self.source.epoch(epoch):
            if own_step is not None:
                loss = float(own_step(batch, self.objective, optimizer))
                self._check(loss, epoch)
            elif batch.size == 0:  # a piece of the graph without a training row
                continue
            else:
                loss = self._step(batch, optimizer, epoch)
            total += loss * batch.size
            rows += batch.size
        if rows == 0:
            raise ValueError(f"source must give batches with training rows, epoch {epoch} has none")
        return total / rows

    def _step(self, batch: Batch, optimizer: Optimizer, epoch: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        if self.settings.consistency:
            loss = consistency_loss(self.model, batch, self.objective, self.settings, epoch)
        else:
            loss = supervised_loss(self.objective, predict(self.model, batch), batch)
        value = float(loss.detach())
        self._check(value, epoch)  # before the step, so that no weight becomes nan
        loss.backward()  # pyright: ignore[reportUnknownMemberType]
        reduce_gradients = getattr(self.model, "reduce_gradients", None)
        if reduce_gradients is not None:
            reduce_gradients()
        if self.settings.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.grad_clip)
        optimizer.step()
        return value

    def _check(self, loss: float, epoch: int) -> None:
        self._first_loss = loss if self._first_loss is None else self._first_loss
        if not math.isfinite(loss) or loss > DIVERGED * max(1.0, self._first_loss):
            raise TrainingError(
                f"training diverged, the loss is {loss:g} in epoch {epoch}: try a lower lr than "
                f"{self.settings.lr}, some warmup epochs, or grad_clip=1"
            )

    def _evaluate(self, row: Row) -> None:
        """Metrics of this epoch, never the test rows'; keeps the weights if they are the best."""
        metrics = self._metrics(("train", "val"))
        if self.optimizer is not None:
            self._check(metrics["train"]["loss"], self.epoch)  # the last step may have diverged
        for part, values in metrics.items():
            row |= {f"{part}_{name}": value for name, value in values.items()}
        # Without validation rows the latest weights are the ones to keep.
        if "val" not in metrics or self._stopping.update(self.epoch, metrics["val"]):
            self._best = self.epoch, copy_state(self.model)
        for callback in self.callbacks:
            callback.on_evaluate(self, row)
        self.history.append(row)
        if self.run is not None:
            self.run.add_metrics(row, first=len(self.history) == 1)

    def _metrics(self, parts: Sequence[str]) -> dict[str, Metrics]:
        self.model.eval()
        y = self.source.y
        rows: dict[str, Tensor] = {part: getattr(self.split, part) for part in parts}
        with torch.no_grad():
            output = self.source.evaluate(self.model, torch.cat(list(rows.values())))
            return {
                part: self.objective.metrics(output, y, index.to(y.device))
                for part, index in rows.items()
                if self.split.size(part)
            }

    def _result(self) -> FitResult:
        assert self._best is not None  # `_train` ends with an evaluation at the latest
        best_epoch, best = self._best
        self.model.load_state_dict(best)
        result = FitResult(
            metrics=self._metrics(("train", "val", "test")),
            best_epoch=best_epoch,
            epochs=self.epoch,
            stopped=self.stopped or "epochs",
            history=self.history,
            seconds=self._elapsed(),
            peak_memory=peak_memory(),
        )
        if self.run is not None:
            self.run.finish(self.model, result)
        return result

    def _elapsed(self) -> float:
        return self._seconds + time.monotonic() - self._clock

    def _checkpoint(self, now: bool) -> None:
        due = now or time.monotonic() - self._saved >= self.settings.checkpoint_every
        if self.run is None or self.optimizer is None or not self.run.writes or not due:
            return
        best_epoch, best = self._best or (None, State())
        tensors, rest = random_state()
        states = {
            "model": copy_state(self.model),
            "best": best,
            "companion": State() if self.companion is None else copy_state(self.companion),
            "optimizer.state": moments_of(self.optimizer),
            "rng": tensors,
        }
        rest |= {"epoch": self.epoch, "history": self.history, "best_epoch": best_epoch}
        rest["seconds"] = self._elapsed()
        save_checkpoint(self.run.checkpoint, states, rest)
        self._saved = time.monotonic()

    def _restore(self, path: Path) -> None:
        states, rest = load_checkpoint(path)
        with reading(path):
            if rest["best_epoch"] is not None:  # used at the end only, but it must fit as well
                load_weights(self.model, states["best"], path)
                self._best = rest["best_epoch"], states["best"]
            load_weights(self.model, states["model"], path)
            if self.companion is not None:
                load_weights(self.companion, states["companion"], path)
            if self.optimizer is not None:
                load_moments(self.optimizer, states["optimizer.state"], path)
            self.epoch, self.history = rest["epoch"], list(rest["history"])
            self._seconds = rest["seconds"]
            for row in self.history:
                metrics = {name[4:]: v for name, v in row.items() if name.startswith("val_")}
                if metrics:
                    self._stopping.update(int(row["epoch"]), metrics)
            restore_random_state(states["rng"], rest)


def pick_device(name: str) -> torch.device:
    """The device a setting names; one that is not there is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device must be available, got {name!r} and torch sees no GPU: use cpu")
    return torch.device(name)


@contextmanager
def _threads(number: int | None) -> Generator[None, None, None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

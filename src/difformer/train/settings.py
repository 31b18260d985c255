"""Every option of the training loop, its default and its help, in one place and without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OPTIMIZERS = ("adam", "adamw")
SCHEDULES = ("constant", "cosine")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How a model is trained. The command line takes its options, defaults and help from here."""

    epochs: int = _option(500, "the most epochs to train for")
    lr: float = _option(0.001, "learning rate")
    weight_decay: float = _option(
        0.0, "L2 weight decay, added to the gradient (adam) or decoupled from it (adamw)"
    )
    optimizer: str = _option("adam", "adam or adamw")
    schedule: str = _option("constant", "learning rate after the warm-up: constant or cosine to 0")
    warmup: int = _option(0, "epochs over which the learning rate rises linearly to its value")
    grad_clip: float | None = _option(None, "largest norm of the gradient; none: not clipped")
    consistency: float = _option(
        0.0, "classes only: weight of the agreement of two passes with their own dropout, all rows"
    )
    consistency_temperature: float = _option(0.5, "sharpness of what the two passes agree on")
    consistency_ramp: int = _option(50, "epochs over which the weight of consistency rises")
    pseudo_labels: float = _option(
        0.0, "classes only: weight of a teacher's classes for the other rows (Meta Pseudo Labels)"
    )
    pseudo_feedback: float = _option(
        1.0, "how much the teacher is moved by what its classes do for the student"
    )
    pseudo_warmup: int = _option(50, "steps on the labels alone before the teacher is listened to")
    batch_size: int | None = _option(
        None, "rows a step, a random partition each epoch; none: all rows at once"
    )
    partition: str | None = _option(
        None, "over processes: which rows go where, range or metis (cuts fewer edges); none: range"
    )
    recompute: bool = _option(
        False, "DIFFormer: keep one state a layer and compute the rest again; less memory, slower"
    )
    patience: int | None = _option(
        None, "stop after this many epochs without a better validation; none: never"
    )
    eval_every: int = _option(1, "evaluate every so many epochs, and after the last one")
    seed: int = _option(0, "seed of everything random in training; equal seeds give equal bits")
    device: str = _option("auto", "cpu, cuda, cuda:1, ...; auto: cuda where there is one")
    threads: int | None = _option(None, "CPU threads; none: as torch is set up (bits depend on it)")
    checkpoint_every: float = _option(
        10.0, "seconds between checkpoints in the run folder; 0: after every epoch"
    )

    def __post_init__(self) -> None:
        _integer("epochs", self.epochs, 1)
        _integer("warmup", self.warmup, 0)
        _integer("eval_every", self.eval_every, 1)
        _integer("seed", self.seed, 0)
        if self.patience is not None:
            _integer("patience", self.patience, 1)
        if self.batch_size is not None:
            _integer("batch_size", self.batch_size, 1)
        if self.partition not in (None, "range", "metis"):
            raise ValueError(f"partition must be range or metis, got {self.partition!r}")
        if self.threads is not None:
            _integer("threads", self.threads, 1)
        _number("lr", self.lr, above=True)
        _number("weight_decay", self.weight_decay)
        _number("consistency", self.consistency)
        _number("consistency_temperature", self.consistency_temperature, above=True)
        _integer("consistency_ramp", self.consistency_ramp, 0)
        _number("pseudo_labels", self.pseudo_labels)
        _number("pseudo_feedback", self.pseudo_feedback)
        _integer("pseudo_warmup", self.pseudo_warmup, 0)
        _number("checkpoint_every", self.checkpoint_every)
        if self.grad_clip is not None:
            _number("grad_clip", self.grad_clip, above=True)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {self.optimizer!r}"
            )
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"schedule must be one of {', '.join(SCHEDULES)}, got {self.schedule!r}"
            )
        _device(self.device)


def _integer(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _number(name: str, value: Any, *, above: bool = False) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 <= value < float("inf") or (above and value == 0):
        rule = "a finite number above 0" if above else "a finite number, 0 or more"
        raise ValueError(f"{name} must be {rule}, got {value!r}")


def _device(value: Any) -> None:
    kind, _, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    known = kind in ("auto", "cpu", "cuda", "mps", "xpu") and (index.isdigit() or ":" not in value)
    if not known or (kind == "auto" and index):
        raise ValueError(f"device must be auto, cpu, cuda, cuda:1, ..., got {value!r}")

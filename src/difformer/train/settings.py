"""Every option of the training loop, its default and its help, in one place and without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from difformer.settings import COUNT, NOT_NEGATIVE, POSITIVE, Options, option, whole

OPTIMIZERS = ("adam", "adamw")
SCHEDULES = ("constant", "cosine")
PARTITIONS = ("range", "metis")
PICKS = ("loss", "accuracy", "macro_f1", "roc_auc")


def _device(name: str, value: Any) -> None:
    kind, _, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    known = kind in ("auto", "cpu", "cuda", "mps", "xpu") and (index.isdigit() or ":" not in value)
    if not known or (kind == "auto" and index):
        raise ValueError(f"{name} must be auto, cpu, cuda, cuda:1, ..., got {value!r}")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(Options):
    """How a model is trained. The command line takes its options, defaults and help from here."""

    epochs: int = option(500, "the most epochs to train for", COUNT)
    lr: float = option(0.001, "learning rate", POSITIVE)
    weight_decay: float = option(
        0.0,
        "L2 weight decay, added to the gradient (adam) or decoupled from it (adamw)",
        NOT_NEGATIVE,
    )
    optimizer: str = option("adam", "adam or adamw", OPTIMIZERS)
    schedule: str = option(
        "constant", "learning rate after the warm-up: constant or cosine to 0", SCHEDULES
    )
    warmup: int = option(
        0, "epochs over which the learning rate rises linearly to its value", whole(0)
    )
    grad_clip: float | None = option(
        None, "largest norm of the gradient; none: not clipped", POSITIVE
    )
    consistency: float = option(
        0.0,
        "classes only: weight of the agreement of two passes with their own dropout, all rows",
        NOT_NEGATIVE,
    )
    consistency_temperature: float = option(
        0.5, "sharpness of what the two passes agree on", POSITIVE
    )
    consistency_ramp: int = option(
        50, "epochs over which the weight of consistency rises", whole(0)
    )
    pseudo_labels: float = option(
        0.0,
        "classes only: weight of a teacher's classes for the other rows (Meta Pseudo Labels)",
        NOT_NEGATIVE,
    )
    pseudo_feedback: float = option(
        1.0, "how much the teacher is moved by what its classes do for the student", NOT_NEGATIVE
    )
    pseudo_warmup: int = option(
        50, "steps on the labels alone before the teacher's classes are used", whole(0)
    )
    batch_size: int | None = option(
        None, "rows per step, a random partition each epoch; none: all rows at once", COUNT
    )
    partition: str | None = option(
        None,
        "over processes: which rows go where, range or metis (cuts fewer edges); none: range",
        PARTITIONS,
    )
    recompute: bool = option(
        False, "DIFFormer: keep one state per layer and compute the rest again; less memory, slower"
    )
    patience: int | None = option(
        None, "stop after this many epochs without a better validation; none: never", COUNT
    )
    pick_by: str | None = option(
        None,
        "validation metric that picks the epoch; none: accuracy for classes, as in the paper, the "
        "error for numbers",
        PICKS,
    )
    eval_every: int = option(
        1, "epochs between evaluations; the last epoch is always evaluated", COUNT
    )
    seed: int = option(
        0, "seed of everything random in training; equal seeds give equal bits", whole(0)
    )
    device: str = option("auto", "cpu, cuda, cuda:1, ...; auto: cuda where there is one", _device)
    threads: int | None = option(
        None, "CPU threads; none: as torch is set up (bits depend on it)", COUNT
    )
    checkpoint_every: float = option(
        10.0, "seconds between checkpoints in the run folder; 0: after every epoch", NOT_NEGATIVE
    )


def launched() -> bool:
    """Whether torchrun, or a similar launcher, started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_lead() -> bool:
    """Whether this process prints and writes for all: rank 0, or the only one."""
    return not launched() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether torchrun has started this job again after a process died."""
    return launched() and int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0

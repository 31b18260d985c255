"""Checkpoints: everything a run needs to resume with the same bits, in one safetensors file.

Tensors (weights, optimiser moments, the best weights, generator states) are stored as tensors;
the rest is one JSON text in the header. It is one file, so that one rename replaces all of it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from difformer.core.draws import generator
from difformer.errors import RunError
from difformer.files import one_line
from difformer.tensorfiles import read_tensors, write_tensors

Row = dict[str, float]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A run as it stands after an epoch. Global generators are part of it: see `RngState`.

    Args:
        epoch: the last finished one.
        history: one row per evaluated epoch; early stopping is replayed from it.
        model: the current weights.
        best: the best epoch and its weights, or None before there is one.
        optimizer: the moments, named "<number of the parameter>.<moment>".
        rng: the global generators.
        seconds: time spent so far.
        companion: the state of what is trained beside the model; empty if there is nothing.
    """

    epoch: int
    history: list[Row]
    model: State
    best: tuple[int, State] | None
    optimizer: State
    rng: RngState
    seconds: float
    companion: State = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class RngState:
    """The state of the generators in use, the thread's own or the global ones.

    Args:
        tensors: "torch", "numpy", and "cuda.0", ... where there are GPUs.
        numpy: what numpy's state holds beside its tensor.
        python: the state of Python's generator.
    """

    tensors: State
    numpy: list[Any]
    python: list[Any]

    @classmethod
    def now(cls) -> RngState:
        own, state = generator(), cast("tuple[Any, ...]", np.random.get_state(legacy=True))
        tensors = {
            "torch": torch.get_rng_state() if own is None else own.get_state(),
            "numpy": torch.tensor(state[1].tolist()),
        }
        if torch.cuda.is_available():
            cuda = torch.cuda.get_rng_state_all()
            tensors |= {f"cuda.{i}": each for i, each in enumerate(cuda)}
        version, internal, gauss_next = random.getstate()
        return cls(tensors, list(state[2:]), [version, list(internal), gauss_next])

    def restore(self) -> None:
        own = generator()
        if own is not None:
            own.set_state(self.tensors["torch"])
            return
        torch.set_rng_state(self.tensors["torch"])
        cuda = [name for name in self.tensors if name.startswith("cuda.")]
        if cuda:
            torch.cuda.set_rng_state_all([self.tensors[f"cuda.{i}"] for i in range(len(cuda))])
        keys = self.tensors["numpy"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", keys, *self.numpy))
        version, internal, gauss_next = self.python
        random.setstate((version, tuple(internal), gauss_next))


def copy_state(model: nn.Module) -> State:
    """A copy of a model's weights and buffers, unaffected by later steps."""
    copied: State = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            raise ValueError(
                f"a model's state must be dense tensors to be saved, {name!r} is not: "
                "register a sparse buffer with persistent=False, make extra state a tensor"
            )
        copied[name] = value.detach().clone(memory_format=torch.contiguous_format)
    return copied


def save_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint in one step; the cost is one copy of its tensors."""
    best_epoch, best = checkpoint.best or (None, {})
    parts = {
        "model": checkpoint.model,
        "best": best,
        "companion": checkpoint.companion,
        "optimizer.state": checkpoint.optimizer,
        "rng": checkpoint.rng.tensors,
    }
    tensors = {f"{part}.{name}": t for part, state in parts.items() for name, t in state.items()}
    rest = {
        "epoch": checkpoint.epoch,
        "history": checkpoint.history,
        "best_epoch": best_epoch,
        "numpy": checkpoint.rng.numpy,
        "python": checkpoint.rng.python,
        "seconds": checkpoint.seconds,
    }
    write_tensors(path, "checkpoint", tensors, rest)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint back; RunError, in one line, if it cannot be read."""
    try:
        tensors, rest = read_tensors(path, "checkpoint", error=RunError)
    except RunError as error:
        raise RunError(f"{error}: damaged, delete it to start again") from error

    def part(name: str) -> State:
        return {key[len(name) + 1 :]: t for key, t in tensors.items() if key.startswith(f"{name}.")}

    try:
        best_epoch = cast("int | None", rest["best_epoch"])
        return Checkpoint(
            epoch=int(rest["epoch"]),
            history=rest["history"],
            model=part("model"),
            best=None if best_epoch is None else (best_epoch, part("best")),
            optimizer=part("optimizer.state"),
            rng=RngState(part("rng"), rest["numpy"], rest["python"]),
            seconds=float(rest["seconds"]),
            companion=part("companion"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error!r}): delete it to start again") from error


def load_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a model; another architecture is an error that names the file."""
    try:
        model.load_state_dict(dict(state))
    except RuntimeError as error:
        reason = one_line(error, 2000)
        raise RunError(f"{path} holds the weights of another model: {reason}") from error


def moments_of(optimizer: Optimizer) -> State:
    """The moments of each parameter, named "<number of the parameter>.<moment>"."""
    kept: dict[int, dict[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{i}.{name}": value for i, state in kept.items() for name, value in state.items()}


def load_moments(optimizer: Optimizer, kept: State, path: Path) -> None:
    """Put moments back into an optimiser of the same parameters; its options stay its own."""
    parameters = dict(enumerate(p for group in optimizer.param_groups for p in group["params"]))
    moments: dict[int, State] = {}
    try:
        for name, value in kept.items():
            number, moment = name.split(".")
            moments.setdefault(int(number), {})[moment] = value
        for number, state in moments.items():
            _check_moments(number, state, parameters[number])
    except (KeyError, ValueError) as error:
        raise RunError(f"{path} holds the optimiser of another model: {error}") from error
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})


def _check_moments(number: int, kept: State, parameter: Tensor) -> None:
    """An optimiser writes into these in place, so a wrong shape or dtype would corrupt memory."""
    if set(kept) != {"step", "exp_avg", "exp_avg_sq"}:
        raise ValueError(f"parameter {number} has the moments {', '.join(kept)}")
    for name, value in kept.items():
        shape = torch.Size([]) if name == "step" else parameter.shape
        dtype = torch.float32 if name == "step" else parameter.dtype
        if value.shape != shape or value.dtype != dtype:
            raise ValueError(f"{name} of parameter {number} is not {tuple(shape)} {dtype}")

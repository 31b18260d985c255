"""Checkpoints: everything a run needs to resume with the same bits, in one safetensors file.

Tensors are stored as tensors, the rest is one JSON text in the header. It is one file, so that one
rename replaces all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from difformer.errors import RunError
from difformer.files import one_line
from difformer.tensorfiles import read_tensors, write_tensors

Row = dict[str, float]
State = dict[str, Tensor]

STATES = ("model", "best", "companion", "optimizer.state", "rng")
"""The tensors: the weights, those of the best epoch, what is trained beside the model, the moments,
the generators."""
KEPT = ("epoch", "history", "best_epoch", "numpy", "python", "seconds")
"""The rest: the last finished epoch, one row per evaluated epoch (early stopping is replayed from
it), the best epoch or None, what `random_state` holds besides tensors, the time spent."""


def save_checkpoint(path: Path, states: Mapping[str, State], rest: Mapping[str, Any]) -> None:
    """Replace the checkpoint in one step; the cost is one copy of its tensors."""
    parts = ((part, name, t) for part in STATES for name, t in states[part].items())
    tensors = {f"{part}.{name}": tensor for part, name, tensor in parts}
    write_tensors(path, "checkpoint", tensors, {name: rest[name] for name in KEPT})


def load_checkpoint(path: Path) -> tuple[dict[str, State], dict[str, Any]]:
    """What `save_checkpoint` was given; RunError, in one line, if it cannot be read."""
    try:
        tensors, rest = read_tensors(path, "checkpoint", error=RunError)
    except RunError as error:
        raise RunError(f"{error}: damaged, delete it to start again") from error
    states: dict[str, State] = {part: {} for part in STATES}
    try:
        for name, tensor in tensors.items():
            part = next(part for part in STATES if name.startswith(f"{part}."))
            states[part][name[len(part) + 1 :]] = tensor
        kept = {name: rest[name] for name in KEPT}
        kept |= {"epoch": int(rest["epoch"]), "seconds": float(rest["seconds"])}
    except (KeyError, TypeError, ValueError, StopIteration) as error:
        raise RunError(f"{path} is damaged ({error!r}): delete it to start again") from error
    return states, kept


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

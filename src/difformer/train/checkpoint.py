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
        optimizer: ``Optimizer.state_dict()``.
        rng: the global generators.
        seconds: time spent so far.
        companion: the state of what is trained beside the model; empty if there is nothing.
    """

    epoch: int
    history: list[Row]
    model: State
    best: tuple[int, State] | None
    optimizer: dict[str, Any]
    rng: RngState
    seconds: float
    companion: State = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True)
class RngState:
    """The state of the generators in use: the thread's own, or the three global ones."""

    torch_cpu: Tensor
    torch_cuda: tuple[Tensor, ...]
    numpy: tuple[Tensor, int, int, float]
    python: list[Any]

    @classmethod
    def now(cls) -> RngState:
        _, keys, position, has_gauss, gauss = cast(
            "tuple[str, Any, int, int, float]", np.random.get_state(legacy=True)
        )
        version, internal, gauss_next = random.getstate()
        own = generator()
        return cls(
            torch.get_rng_state() if own is None else own.get_state(),
            tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_available() else (),
            (torch.tensor(keys.tolist()), position, has_gauss, gauss),
            [version, list(internal), gauss_next],
        )

    def restore(self) -> None:
        own = generator()
        if own is not None:
            own.set_state(self.torch_cpu)
            return
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(list(self.torch_cuda))
        keys, position, has_gauss, gauss = self.numpy
        np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), position, has_gauss, gauss))
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
    tensors: State = {}
    optimizer = _pack(checkpoint.optimizer, "optimizer", tensors)
    _pack(checkpoint.model, "model", tensors)
    best_epoch, best = checkpoint.best or (None, {})
    _pack(best, "best", tensors)
    _pack(checkpoint.companion, "companion", tensors)
    rng = checkpoint.rng
    tensors["rng.torch"], tensors["rng.numpy"] = rng.torch_cpu, rng.numpy[0]
    tensors |= {f"rng.cuda.{i}": state for i, state in enumerate(rng.torch_cuda)}
    rest = {
        "epoch": checkpoint.epoch,
        "history": checkpoint.history,
        "best_epoch": best_epoch,
        "optimizer": optimizer,
        "numpy": rng.numpy[1:],
        "python": rng.python,
        "seconds": checkpoint.seconds,
    }
    write_tensors(path, "checkpoint", tensors, rest)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint back; RunError, in one line, if it cannot be read."""
    try:
        tensors, rest = read_tensors(path, "checkpoint", error=RunError)
    except RunError as error:
        raise RunError(f"{error}: damaged, delete it to start again") from error
    try:
        cuda = sum(name.startswith("rng.cuda.") for name in tensors)
        best_epoch = cast("int | None", rest["best_epoch"])
        position, has_gauss, gauss = rest["numpy"]
        return Checkpoint(
            epoch=rest["epoch"],
            history=rest["history"],
            model=_part(tensors, "model"),
            best=None if best_epoch is None else (best_epoch, _part(tensors, "best")),
            optimizer=_unpack(rest["optimizer"], tensors),
            rng=RngState(
                tensors["rng.torch"],
                tuple(tensors[f"rng.cuda.{i}"] for i in range(cuda)),
                (tensors["rng.numpy"], position, has_gauss, gauss),
                rest["python"],
            ),
            seconds=rest["seconds"],
            companion=_part(tensors, "companion"),
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


def load_optimizer(optimizer: Optimizer, state: dict[str, Any], path: Path) -> None:
    """Put moments and options back into an optimiser of the same parameters."""
    own = optimizer.state_dict()
    try:
        numbers = [group["params"] for group in own["param_groups"]]
        if numbers != [group["params"] for group in state["param_groups"]]:
            raise ValueError("other groups of parameters")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        moments = state["state"]
        if moments.keys() - set(range(len(parameters))):
            raise ValueError("moments of unknown parameters")
        for number, kept in moments.items():
            _check_moments(number, kept, parameters[number])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path} holds the optimiser of another model: {error}") from error
    # The options are those of this run; the loop sets the learning rate of each epoch.
    optimizer.load_state_dict({"state": moments, "param_groups": own["param_groups"]})


def _check_moments(number: int, kept: Mapping[str, Any], parameter: Tensor) -> None:
    """An optimiser writes into these in place, so a wrong shape or dtype would corrupt memory."""
    if set(kept) != {"step", "exp_avg", "exp_avg_sq"}:
        raise ValueError(f"parameter {number} has the moments {', '.join(map(str, kept))}")
    for name, value in kept.items():
        shape = torch.Size([]) if name == "step" else parameter.shape
        dtype = torch.float32 if name == "step" else parameter.dtype
        if not isinstance(value, Tensor) or value.shape != shape or value.dtype != dtype:
            raise ValueError(f"{name} of parameter {number} is not {tuple(shape)} {dtype}")


def _pack(value: Any, name: str, tensors: State) -> Any:
    """The value as JSON, its tensors moved to ``tensors`` under dotted names."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {"map": [[key, _pack(item, f"{name}.{key}", tensors)] for key, item in items]}
    if isinstance(value, list | tuple):
        return [_pack(v, f"{name}.{i}", tensors) for i, v in enumerate(cast("list[Any]", value))]
    return value


def _unpack(value: Any, tensors: State) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[cast("str", value["tensor"])]
        pairs = cast("list[tuple[Any, Any]]", value["map"])
        return {key: _unpack(item, tensors) for key, item in pairs}
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in cast("list[Any]", value)]
    return value


def _part(tensors: State, name: str) -> State:
    return {key[len(name) + 1 :]: t for key, t in tensors.items() if key.startswith(f"{name}.")}

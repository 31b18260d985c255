"""Saving and loading models: safetensors with JSON in the header, never pickle."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from difformer.core.diffusivity import KERNELS, Diffusivity
from difformer.errors import ModelFileError
from difformer.nn.config import DIFFormerConfig

if TYPE_CHECKING:
    from difformer.nn.model import DIFFormer

__all__ = ["FORMAT_VERSION", "load_model", "read", "save_model", "write"]

FORMAT_VERSION = 1

M = TypeVar("M", bound=nn.Module)


def write(path: Path, kind: str, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and a description as one file, whole or not at all."""
    # One key: safetensors writes several in an order of its own, and equal models want equal bytes.
    header = {
        "difformer": json.dumps(
            {"format": kind, "version": FORMAT_VERSION, "description": description}, sort_keys=True
        )
    }
    packed = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        save_file(packed, temporary, metadata=header)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read(path: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote, or say in one line why this is not such a file."""
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelFileError(f"{path}: not a whole safetensors file ({error})") from error
    try:
        content = json.loads(header.get("difformer", "null"))
    except ValueError as error:
        raise ModelFileError(f"{path}: its description is not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != kind:
        raise ModelFileError(f"{path}: a safetensors file, but not a difformer {kind}")
    if content.get("version") != FORMAT_VERSION:
        raise ModelFileError(
            f"{path}: written in format version {content.get('version')}, this difformer reads "
            f"version {FORMAT_VERSION}: use the difformer that wrote it"
        )
    description = content.get("description")
    if not isinstance(description, dict):
        raise ModelFileError(f"{path}: it holds no description of a {kind}")
    return tensors, description


def describe_model(model: DIFFormer) -> dict[str, Any]:
    """The widths and options of a model as plain values."""
    config = (
        model.config.as_dict()
        if not isinstance(model.config.kernel, Diffusivity)
        else {
            **{n: getattr(model.config, n) for n in DIFFormerConfig.names()},
            "kernel": None,
        }
    )
    widths = ("in_channels", "hidden_channels", "out_channels")
    return {"config": config, **{name: getattr(model, name) for name in widths}}


def build_model(
    cls: type[DIFFormer], path: Path, description: dict[str, Any], kernel: Diffusivity | None
) -> DIFFormer:
    """An untrained model of the described shape."""
    try:
        config = dict(description["config"])
        widths = [description[n] for n in ("in_channels", "hidden_channels", "out_channels")]
        if kernel is not None:
            config["kernel"] = kernel
        elif config["kernel"] is None:
            raise ModelFileError(
                f"{path}: saved with a diffusivity of its own: pass it as kernel=..., "
                f"or one of {', '.join(KERNELS)}"
            )
        return cls(*widths, **config)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path}: its description does not fit a DIFFormer ({error})"
        ) from error


def fill(path: Path, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load tensors into a module, naming the first that does not belong."""
    expected = module.state_dict()
    for name in sorted(expected.keys() ^ tensors.keys()):
        what = "misses" if name in expected else "has an unknown"
        raise ModelFileError(f"{path}: {what} tensor {name!r}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise ModelFileError(
                f"{path}: tensor {name!r} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected[name].shape)}"
            )
        if not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"{path}: tensor {name!r} holds NaN or infinity")
    if tensors:
        module.to(next(iter(tensors.values())).dtype)
    module.load_state_dict(tensors)


def save_model(model: DIFFormer, path: Path) -> None:
    """Write a model."""
    write(path, "model", model.state_dict(), describe_model(model))


def load_model(cls: type[DIFFormer], path: Path, kernel: Diffusivity | None = None) -> DIFFormer:
    """Read a model that `save_model` wrote."""
    tensors, description = read(path, "model")
    model = build_model(cls, path, description, kernel)
    fill(path, model, tensors)
    return model

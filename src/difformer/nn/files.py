"""Saving and loading models: safetensors with JSON in the header, never pickle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from difformer.core.diffusivity import KERNELS, Diffusivity
from difformer.errors import ModelFileError
from difformer.nn.config import DIFFormerConfig

if TYPE_CHECKING:
    from difformer.nn.model import DIFFormer


# Layers may have no tensors, so their number cannot be checked; more than this are rejected.
MOST_LAYERS = 1000
WIDTHS = ("in_channels", "hidden_channels", "out_channels")
_LAYER = "layers.0."

M = TypeVar("M", bound="DIFFormer")


def describe_model(model: DIFFormer) -> dict[str, Any]:
    """The widths and options of a model as plain values."""
    config = {name: getattr(model.config, name) for name in DIFFormerConfig.names()}
    if isinstance(config["kernel"], Diffusivity):
        config["kernel"] = None
    return {"config": config, **{name: getattr(model, name) for name in WIDTHS}}


def build_model(
    cls: type[M],
    path: Path,
    description: dict[str, Any],
    tensors: dict[str, Tensor],
    kernel: Diffusivity | None,
) -> M:
    """The described model with these weights; nothing is built before their shapes are checked."""
    try:
        config = dict(description["config"])
        widths = [description[n] for n in WIDTHS]
        if kernel is not None:
            config["kernel"] = kernel
        elif config["kernel"] is None:
            raise ModelFileError(
                f"{path}: saved with a custom diffusivity: pass it as kernel=..., "
                f"or one of {', '.join(KERNELS)}"
            )
        depth = DIFFormerConfig(**config).num_layers
        # On the meta device: only the shapes of one layer are needed.
        with torch.device("meta"):
            one = cls(*widths, **{**config, "num_layers": 1}).state_dict()
        dtype = _check(path, tensors, one, depth)
        with torch.device("meta"):
            model = cls(*widths, **config)
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ModelFileError(
            f"{path}: its description does not fit a DIFFormer ({error})"
        ) from error
    model.load_state_dict({name: t.to(dtype) for name, t in tensors.items()}, assign=True)
    return model


def _check(
    path: Path, tensors: dict[str, Tensor], one: dict[str, Tensor], depth: int
) -> torch.dtype:
    """Check a file's tensors against those of a model of one layer and the expected depth."""
    layer = {n.removeprefix(_LAYER): t for n, t in one.items() if n.startswith(_LAYER)}
    if depth > max(MOST_LAYERS, len(tensors)):
        raise ModelFileError(f"{path}: describes {depth} layers, but has {len(tensors)} tensors")
    expected = {name: t.shape for name, t in one.items() if not name.startswith(_LAYER)}
    for index in range(depth if layer else 0):
        expected |= {f"layers.{index}.{name}": t.shape for name, t in layer.items()}
    for name in sorted(expected.keys() ^ tensors.keys()):
        what = "misses" if name in expected else "has an unknown"
        raise ModelFileError(f"{path}: {what} tensor {name!r}")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name]:
            raise ModelFileError(
                f"{path}: tensor {name!r} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected[name])}"
            )
        if not tensor.is_floating_point():
            raise ModelFileError(f"{path}: tensor {name!r} must be floating-point: {tensor.dtype}")
        if not bool(torch.isfinite(tensor).all()):
            raise ModelFileError(f"{path}: tensor {name!r} holds NaN or infinity")
    return next(iter(tensors.values())).dtype

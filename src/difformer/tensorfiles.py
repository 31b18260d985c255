"""The one format of saved tensors: safetensors, with JSON in the header and a checksum. No pickle.

difformer: {"format": kind, "version": 1, "description": {...}, "checksum": "..."}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from difformer.errors import DifformerError, ModelFileError
from difformer.files import not_a_file, write_atomic

FORMAT_VERSION = 1


def write_tensors(
    path: Path, kind: str, tensors: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write tensors and a description to one file in one step; equal content gives equal bytes.

    `kind` says what it is: "model", "frozen", "estimator", "checkpoint", "weights".
    """
    packed = {name: _own(tensor) for name, tensor in tensors.items()}
    described = json.loads(json.dumps(description))
    # One key: safetensors writes several in no fixed order.
    content = {
        "format": kind,
        "version": FORMAT_VERSION,
        "description": described,
        "checksum": checksum(packed, described),
    }
    # Not save_file: it writes to another name first, which a killed process leaves behind.
    write_atomic(path, save(packed, metadata={"difformer": json.dumps(content)}))


def read_tensors(
    path: Path, kind: str | None, *, error: type[DifformerError] = ModelFileError
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; an `error` of one line if this is not such a file.

    With kind None any safetensors file is read; its description may be empty.
    """
    if not path.is_file():
        raise error(f"the {kind or 'model'} {path}: {not_a_file(path)}")
    try:
        with cast("Any", safe_open)(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
            # Copied: torch aligns its own memory, and some kernels' bits depend on alignment.
            tensors: dict[str, Tensor] = {n: file.get_tensor(n).clone() for n in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, RuntimeError) as problem:
        raise error(f"{path}: not a whole safetensors file ({problem})") from problem
    if kind is None and "difformer" not in header:
        return tensors, {}
    try:
        content: Any = json.loads(header.get("difformer", "null"))
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: its description is not JSON ({problem})") from problem
    if not isinstance(content, dict) or (kind is not None and content.get("format") != kind):  # pyright: ignore[reportUnknownMemberType]
        raise error(f"{path}: a safetensors file, but not a difformer {kind or 'file'}")
    found = cast("dict[str, Any]", content)
    if found.get("version") != FORMAT_VERSION:
        raise error(
            f"{path}: written in format version {found.get('version')}, this difformer reads "
            f"version {FORMAT_VERSION}: use the difformer that wrote it"
        )
    description = found.get("description")
    if not isinstance(description, dict):
        raise error(f"{path}: it holds no description of a {kind or 'model'}")
    described = cast("dict[str, Any]", description)
    # Files of the first releases have none.
    if "checksum" in found and found["checksum"] != checksum(tensors, described):
        raise error(f"{path}: changed after it was written: its checksum does not fit")
    return tensors, described


def checksum(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> str:
    """SHA-256 of every name, type, shape and byte, and of the description."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _own(tensor: Tensor) -> Tensor:
    """A dense copy on the CPU that shares memory with no other tensor of the file."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)

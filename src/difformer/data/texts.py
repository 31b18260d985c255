"""Texts, and a file of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from difformer.data.registry import Raw
from difformer.errors import DataError


@dataclass(frozen=True, eq=False)
class Texts:
    """Documents with a class (-1 for none) and a name each."""

    kind: ClassVar[Raw] = "text"

    texts: list[str]
    y: Tensor
    class_names: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def read_lines(path: Path) -> Texts:
    """Read a UTF-8 file with one text per line; empty lines are skipped."""
    try:
        lines = [line for line in path.read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    if not lines:
        raise DataError(f"{path} has no text")
    return Texts(lines, torch.full((len(lines),), -1))

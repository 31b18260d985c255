"""Splits: which rows train, which validate and which test.

A split can be drawn, saved with a run, read back and printed. Drawing one uses only the labels and
a seed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from difformer.errors import DataError
from difformer.files import MISREAD, json_text, reason_of, write_atomic

RELEASED_SEED = 123  # of the authors' scripts: all published citation figures use this split

PARTS = ("train", "val", "test")

_NUMBER = r"(\d+\.?\d*|\.\d+)"
_DRAWN = re.compile(
    rf"(?:random|per-class:(?P<labels>\d+)|ratio:{_NUMBER}/{_NUMBER}/{_NUMBER})(?::(?P<seed>\d+))?"
)

FORMS = (
    "a name that comes with the data (such as public), released, random[:SEED], "
    "per-class:K[:SEED], ratio:A/B/C[:SEED] or a JSON file"
)


@dataclass(frozen=True, eq=False)
class Split:
    """Disjoint sorted row indices, int64, and the name and seed they were drawn by.

    >>> Split("mine", train=[2, 0], val=[3], test=[4, 1]).describe()
    'mine: 2 train, 1 val, 2 test'
    """

    name: str
    train: Tensor
    val: Tensor
    test: Tensor
    seed: int | None = None

    def __post_init__(self) -> None:
        for part in PARTS:
            object.__setattr__(self, part, _sorted_indices(getattr(self, part), part))
        rows = torch.cat([self.train, self.val, self.test])
        if rows.unique().numel() != rows.numel():
            values, counts = rows.unique(return_counts=True)
            raise ValueError(f"split {self.name}: row {int(values[counts > 1][0])} is in two parts")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Split):
            return NotImplemented
        same = all(torch.equal(getattr(self, part), getattr(other, part)) for part in PARTS)
        return same and (self.name, self.seed) == (other.name, other.seed)

    def __hash__(self) -> int:
        return hash((self.name, self.seed))

    def check(self, num_rows: int) -> Split:
        """Return it if every index is below `num_rows`; ValueError if not."""
        for part in PARTS:
            rows: Tensor = getattr(self, part)
            if rows.numel() and int(rows[-1]) >= num_rows:
                raise ValueError(
                    f"split {self.name}: {part} names row {int(rows[-1])}, "
                    f"but the data has {num_rows} rows"
                )
        return self

    def size(self, part: str) -> int:
        """How many rows are in "train", "val" or "test"."""
        return getattr(self, part).numel()

    def describe(self) -> str:
        """One line for people."""
        sizes = ", ".join(f"{self.size(part)} {part}" for part in PARTS)
        return f"{self.name}: {sizes}"

    def to_json(self) -> str:
        """The whole split as JSON text; `from_json` reads it back to an equal split."""
        record: dict[str, Any] = {"name": self.name, "seed": self.seed}
        record |= {part: getattr(self, part).tolist() for part in PARTS}
        return json_text(record)

    @classmethod
    def from_json(cls, text: str) -> Split:
        """The split that `to_json` wrote; DataError if the text is not one."""
        try:
            record = json.loads(text)
            name, seed = record["name"], record.get("seed")
            parts = {part: record[part] for part in PARTS}
            if not isinstance(name, str) or not (seed is None or type(seed) is int):
                raise TypeError("name must be text and seed a whole number or null")
            for part, rows in parts.items():
                if not isinstance(rows, list) or any(type(row) is not int for row in rows):
                    raise TypeError(f"{part} must be a list of row numbers")
            return cls(name, **parts, seed=seed)
        except MISREAD as error:
            raise DataError(f"not a split: {reason_of(error)}") from error

    def save(self, path: str | Path) -> None:
        write_atomic(Path(path), self.to_json() + "\n", error=DataError)

    @classmethod
    def load(cls, path: str | Path) -> Split:
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (DataError, OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot read the split {path}: {error}") from error


@dataclass(frozen=True, eq=False)
class HeldSplit(Split):
    """The rows of a split that one process holds, by their local positions.

    Args:
        sizes: how many rows of each part all processes hold together.
        text: what a run folder stores of the whole split; None for the sizes only.
    """

    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    text: str | None = None

    def size(self, part: str) -> int:
        return self.sizes[part]

    def to_json(self) -> str:
        return self.text or json_text({"name": self.name, "sizes": dict(self.sizes)})


def random_split(
    y: Tensor,
    seed: int = 0,
    *,
    per_class: int = 20,
    num_val: int = 500,
    num_test: int | None = 1000,
    name: str | None = None,
) -> Split:
    """Draw `per_class` rows of every class to train on, then val and test from the rest. O(n).

    The order of the draws is that of the authors' released code (class by class, then the rest in
    one shuffle), so that seed 123 gives exactly the split of the published citation figures.
    Unlabelled rows (-1) are never drawn. `num_test=None` tests on all the rest.
    """
    name = name or f"random:{seed}"

    def cannot(reason: str) -> ValueError:
        return ValueError(f"split {name}: {reason}; use ratio:0.5/0.25/0.25:{seed}")

    if y.ndim != 1 or y.is_floating_point():
        raise cannot("y must be one class per row")
    generator = torch.Generator().manual_seed(seed)
    train: list[Tensor] = []
    rest: list[Tensor] = []
    for label in y[y >= 0].unique().tolist():
        rows = torch.nonzero(y == label).flatten()
        if rows.numel() < per_class:
            raise cannot(
                f"{per_class} rows per class are asked for, but class {label} has {rows.numel()}"
            )
        rows = rows[torch.randperm(rows.numel(), generator=generator)]
        train.append(rows[:per_class])
        rest.append(rows[per_class:])
    if not train:
        raise ValueError(f"split {name}: y has no labelled row")
    others = torch.cat(rest)
    if others.numel() < num_val + (1 if num_test is None else num_test):
        raise cannot(
            f"{num_val} val and {num_test or 'some'} test rows are asked for, "
            f"but {others.numel()} are left after training"
        )
    others = others[torch.randperm(others.numel(), generator=generator)]
    end = None if num_test is None else num_val + num_test
    return Split(name, torch.cat(train), others[:num_val], others[num_val:end], seed)


def ratio_split(y: Tensor, ratios: tuple[float, float, float], seed: int = 0) -> Split:
    """Shuffle the labelled rows and cut them by ratio. O(n).

    The ratios sum to at most 1; where they sum to 1, test takes what rounding down leaves.
    """
    text = "/".join(f"{r:g}" for r in ratios)
    name = f"ratio:{text}:{seed}"
    total = math.fsum(ratios)
    if not all(0 <= r <= 1 for r in ratios) or total > 1 + 1e-9 or ratios[0] == 0:
        raise ValueError(f"ratios must lie in 0..1, sum to at most 1 and train on some, not {text}")
    known = ~torch.isnan(y) if y.is_floating_point() else y >= 0
    rows = torch.nonzero(known if y.ndim == 1 else known.any(dim=1)).flatten()
    n = rows.numel()
    rows = rows[torch.randperm(n, generator=torch.Generator().manual_seed(seed))]
    # The small number keeps 0.29 * 100 from losing a row to binary fractions.
    sizes = [int(n * r + 1e-9) for r in ratios]
    if sizes[0] == 0:
        raise ValueError(f"split {name}: {ratios[0]:g} of {n} labelled rows leave none to train on")
    if total > 1 - 1e-9:
        sizes[2] = n - sizes[0] - sizes[1]
    train, val, test, _ = rows.split([*sizes, n - sum(sizes)])
    return Split(name, train, val, test, seed)


def mask_split(train: Tensor, val: Tensor, test: Tensor, *, name: str = "given") -> Split:
    """The split of three (n,) boolean masks."""
    masks = {"train": train, "val": val, "test": test}
    for part, mask in masks.items():
        if mask.dtype != torch.bool or mask.ndim != 1 or mask.shape != train.shape:
            raise ValueError(
                f"{part} must be a ({train.numel()},) bool mask, not {shape_and_type(mask)}"
            )
    rows = {part: torch.nonzero(mask).flatten() for part, mask in masks.items()}
    return Split(name, rows["train"], rows["val"], rows["test"])


def parse_split(text: str, y: Tensor, given: Mapping[str, Split] | None = None) -> Split:
    """The split a short string names, over the rows that `y` labels.

    A name in `given` (such as public), `released` (the one of the authors' citation runs),
    `random[:SEED]`, `per-class:K[:SEED]` (K labels per class, 1,000 for validation, the rest for
    testing), `ratio:A/B/C[:SEED]`, or the path of a JSON file that `Split.save` wrote.
    """
    given = given or {}
    if text in given:
        return given[text]
    if text == "released":
        return random_split(y, RELEASED_SEED, name=text)
    if text.endswith(".json"):
        return Split.load(text)
    drawn = _DRAWN.fullmatch(text)
    if drawn is None:
        here = f" (here: {', '.join(given)})" if given else ""
        raise ValueError(f"split must be {FORMS}{here}, not {text!r}")
    seed, kind = int(drawn["seed"] or 0), text.partition(":")[0]
    if kind == "random":
        return random_split(y, seed)
    if kind == "ratio":
        return ratio_split(y, (float(drawn[2]), float(drawn[3]), float(drawn[4])), seed)
    labels = int(drawn["labels"])
    if labels < 1:
        raise ValueError(f"per-class must train on at least 1 row per class, not {labels}")
    name = f"per-class:{labels}:{seed}"
    return random_split(y, seed, per_class=labels, num_val=1000, num_test=None, name=name)


def shape_and_type(tensor: Tensor) -> str:
    """A tensor as an error describes it."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _sorted_indices(rows: Any, part: str) -> Tensor:
    indices = torch.as_tensor(rows)
    if indices.numel() == 0:
        indices = indices.to(torch.int64)
    if indices.ndim != 1 or indices.is_floating_point() or indices.dtype == torch.bool:
        raise ValueError(f"{part} must be a list of row indices, not {indices.dtype}")
    indices = indices.to(torch.int64).sort().values
    if indices.numel() and int(indices[0]) < 0:
        raise ValueError(f"{part} must hold row indices from 0 on, not {int(indices[0])}")
    return indices

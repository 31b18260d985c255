"""The settings of sharding. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from difformer.shards.partition import PARTITIONERS

MOST_OPEN = 128  # parts that can be written at the same time: each has a few open files
UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_RATIO = re.compile(r"ratio:([\d.]+)/([\d.]+)/([\d.]+)(?::(\d+))?")


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """What to shard, and how."""

    nodes: Sequence[str]
    label: Sequence[str]
    id: str | None = None
    edges: Sequence[str] = ()
    task: str | None = None
    kinds: Mapping[str, str] | None = None
    split: str = "ratio:0.5/0.25/0.25:0"
    parts: int = 16
    partition: str = "range"
    memory: str = "4GB"
    features: Sequence[str] = ()  # .npy files with more features, one row per node
    header: bool = True  # False: the first line of each .csv file is a row already
    neighbours: int = 0  # without edges: how many nearest rows each row is joined to

    def __post_init__(self) -> None:
        memory_bytes(self.memory)
        if self.partition not in PARTITIONERS:
            known = ", ".join(PARTITIONERS)
            raise ValueError(f"partition must be one of {known}, got {self.partition!r}")
        if self.parts < 1:
            raise ValueError(f"parts must be at least 1, got {self.parts}")
        if self.partition != "range" and self.parts > MOST_OPEN:
            raise ValueError(
                f"parts must be at most {MOST_OPEN} by {self.partition}, got {self.parts}: "
                "use range for more"
            )
        if self.partition in ("metis", "streaming") and not self.edges:
            raise ValueError(f"partition must be range or hash without edges, not {self.partition}")
        if self.neighbours < 0 or (self.neighbours and self.edges):
            raise ValueError(
                f"neighbours must be 0 or more, and 0 with edges, got {self.neighbours}"
            )
        if not self.label:
            raise ValueError("label must name at least one column")
        if not self.split.startswith("column:") and self.ratios is None:
            raise ValueError(f"split must be ratio:A/B/C[:SEED] or column:NAME, got {self.split!r}")

    @cached_property
    def ratios(self) -> tuple[float, float, float, int] | None:
        """The shares of train, val and test, and the seed; None where a column has the split."""
        match = _RATIO.fullmatch(self.split)
        if match is None:
            return None
        a, b, c = (float(match[i]) for i in (1, 2, 3))
        if not 0 < a <= 1 or a + b + c > 1 + 1e-9:
            raise ValueError(
                f"split must have a train share above 0 and a sum of at most 1, got {self.split!r}"
            )
        return a, b, c, int(match[4] or 0)

    @property
    def split_column(self) -> str | None:
        return self.split.removeprefix("column:") if self.ratios is None else None


def memory_bytes(text: str) -> int:
    """The number of bytes of a size such as 4GB or 512MB.

    >>> memory_bytes("1.5GB")
    1500000000
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]B)\s*", text.upper())
    if match is None:
        raise ValueError(f"memory must be a size such as 4GB or 512MB, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])

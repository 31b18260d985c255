"""The files and columns of a user's own table, as a run folder keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from difformer.data.dataset import Dataset

__all__ = ["OwnTable"]


@dataclass(frozen=True, kw_only=True)
class OwnTable:
    """The arguments of `read_table`."""

    nodes: str
    label: str | list[str]
    id: str | None = None
    edges: str | None = None
    task: str | None = None
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])
    header: bool | None = None  # True, but not written to the folders of runs, as before

    @property
    def name(self) -> str:
        return Path(self.nodes).name

    def read(self) -> Dataset:
        """The table as a Dataset."""
        from difformer.data.tables import read_table

        return read_table(self.nodes, **self.options())

    def options(self) -> dict[str, Any]:
        """The options of `read_table` that are given."""
        return {k: v for k, v in asdict(self).items() if k != "nodes" and v not in (None, {})}

"""A run folder as it is found: what can be read, and a sentence for each thing that cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from statistics import mean, stdev
from typing import Any, TypeVar, cast

from difformer.data.split import Split
from difformer.errors import DifformerError, RunError
from difformer.train.run import read_config, read_metrics

__all__ = ["Run", "SeedRun", "read_run"]

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class SeedRun:
    """One seed's folder; a part that is missing or damaged is None or empty."""

    folder: Path
    config: dict[str, Any]
    result: dict[str, Any]
    history: list[Row]
    split: Split | None

    @property
    def label(self) -> str:
        """The seed, or the folder's name where the settings do not say."""
        seed = self.config.get("train", {}).get("seed")
        return self.folder.name if seed is None else f"seed {seed}"


@dataclass(frozen=True)
class Run:
    """A run of one seed or several, and what could not be read of it."""

    folder: Path
    config: dict[str, Any]
    seeds: list[SeedRun]
    missing: list[str] = field(default_factory=list[str])

    def values(self, part: str, metric: str) -> list[float]:
        """One metric of one part ("train", "val", "test"), a value a seed that has it."""
        found = [_metrics(seed).get(part, {}).get(metric) for seed in self.seeds]
        return [float(v) for v in found if isinstance(v, int | float) and isfinite(v)]

    def mean_std(self, part: str, metric: str) -> tuple[float | None, float | None]:
        """Mean and sample deviation over seeds; no deviation for one seed."""
        values = self.values(part, metric)
        return (mean(values) if values else None, stdev(values) if len(values) > 1 else None)

    def metrics(self) -> list[str]:
        """The names of all metrics, in the order they were reported."""
        names = [name for s in self.seeds for part in _metrics(s).values() for name in part]
        return list(dict.fromkeys(names))


def read_run(folder: Path | str) -> Run:
    """Read what there is; RunError only where there is no folder, or nothing of a run in it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: it does not exist")
    missing: list[str] = []
    folders = sorted(folder.glob("seed-*"), key=lambda p: (len(p.name), p.name))
    several = [f for f in folders if f.is_dir()]
    seeds = [_read_seed(f, missing, folder) for f in several or [folder]]
    config = _try(lambda: read_config(folder / "config.toml"), missing, "config.toml", {})
    if not config:
        config = next((s.config for s in seeds if s.config), {})
    if not config and not any(s.result or s.history or s.split for s in seeds):
        raise RunError(f"{folder} is not a run folder: none of its files can be read")
    return Run(folder, config, seeds, list(dict.fromkeys(missing)))


def _read_seed(folder: Path, missing: list[str], root: Path) -> SeedRun:
    where = "" if folder == root else f"{folder.name}/"

    def attempt(name: str, read: Callable[[Path], T], default: T) -> T:
        return _try(lambda: read(folder / name), missing, where + name, default)

    return SeedRun(
        folder=folder,
        config=attempt("config.toml", read_config, {}),
        result=attempt("result.json", _read_json, {}),
        history=attempt("metrics.csv", read_metrics, []),
        split=attempt("split.json", Split.load, None),
    )


def _try(read: Callable[[], T], missing: list[str], name: str, default: T) -> T:
    try:
        return read()
    except (DifformerError, OSError, ValueError, TypeError) as error:
        absent = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        reason = "is not there" if absent else "is damaged"
        missing.append(f"{name} {reason}: what it holds is left out of this page.")
        return default


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, Any]", content)


def _metrics(seed: SeedRun) -> dict[str, dict[str, Any]]:
    found = seed.result.get("metrics", {})
    return (
        {p: v for p, v in found.items() if isinstance(v, dict)} if isinstance(found, dict) else {}
    )

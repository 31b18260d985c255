"""The kinds of runs, and how their files show them.

dataset      a run folder of `train NAME`, of one seed or of several (seed-N)
shards       a run folder of `train FOLDER`, where FOLDER is a sharded dataset
table        a run folder of `train --nodes`
series       a run folder of `train --series`
comparison   a folder of `compare --out`
cell         a result file of `reproduce`
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from difformer.data.shards.manifest import is_shards
from difformer.errors import DifformerError, RunError
from difformer.experiments.comparisons import COMPARISON
from difformer.experiments.forecast import RECORD as SERIES
from difformer.files import MISREAD, natural
from difformer.train.run import read_config

__all__ = ["COMPARISON", "SERIES", "is_run", "kind_of", "need_kind", "seed_folders"]

# The file that only a run of this kind has.
FILES = {COMPARISON: "comparison", SERIES: "series", "estimator.safetensors": "table"}

ABOUT = {
    "dataset": "a run on a dataset",
    "shards": "a run on shards",
    "table": "a run on a table",
    "series": "a run on a series",
    "comparison": "a comparison of systems",
    "cell": "a result file",
}


def kind_of(path: Path | str) -> str:
    """The kind of a run; "dataset" if no file shows another."""
    path = Path(path)
    if path.is_file():
        return "cell"
    for name, kind in FILES.items():
        if (path / name).exists():
            return kind
    try:
        config: dict[str, Any] = read_config(path / "config.toml")
    except (DifformerError, *MISREAD):
        config = {}
    if "own" in config:  # a run on a table that is not finished
        return "table"
    return "shards" if is_shards(str(config.get("dataset", ""))) else "dataset"


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return any((folder / name).exists() for name in ("config.toml", SERIES, COMPARISON))


def seed_folders(folder: Path) -> list[Path]:
    """The folders of a run of several seeds, by seed; empty for a run of one."""
    found = (path for path in folder.glob("seed-*") if path.is_dir())
    return sorted(found, key=lambda path: natural(path.name))


def need_kind(path: Path | str, kinds: tuple[str, ...], what: str) -> str:
    """The kind of a run; RunError if it is not one of `kinds`, the kinds that `what` needs."""
    path, kind = Path(path), kind_of(path)
    if not path.exists():
        raise RunError(f"{path} is not a run folder: it does not exist")
    if kind in kinds:
        return kind
    if kind == "shards":
        raise RunError(
            f"{path} was trained from shards: its answers are in {path}/predictions-*; "
            f"{what} needs a run on data in memory"
        )
    there = " or ".join(ABOUT[kind] for kind in kinds)
    why = ", which holds no model" if kind in ("comparison", "cell") else ""
    raise RunError(f"{path} is {ABOUT[kind]}{why}: {what} needs {there}")

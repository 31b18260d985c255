"""The kinds of runs, told by their files.

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
from difformer.files import MISREAD
from difformer.train.run import read_config

__all__ = ["COMPARISON", "ESTIMATOR", "SERIES", "kind_of", "need_kind"]

ESTIMATOR = "estimator.safetensors"

ABOUT = {
    "dataset": "a run on a dataset",
    "shards": "a run on shards",
    "table": "a run on a table",
    "series": "a run on a series",
    "comparison": "a comparison of systems",
    "cell": "a result file",
}


def kind_of(path: Path | str) -> str:
    """The kind of a run; "dataset" where nothing says another."""
    path = Path(path)
    if path.is_file():
        return "cell"
    for name, kind in ((COMPARISON, "comparison"), (SERIES, "series"), (ESTIMATOR, "table")):
        if (path / name).exists():
            return kind
    try:
        config: dict[str, Any] = read_config(path / "config.toml")
    except (DifformerError, *MISREAD):
        config = {}
    if "own" in config:  # a run on a table that is not finished
        return "table"
    return "shards" if is_shards(str(config.get("dataset", ""))) else "dataset"


def need_kind(path: Path | str, kinds: tuple[str, ...], what: str) -> str:
    """The kind of a run; RunError says in one line why `what` cannot be had of another kind."""
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

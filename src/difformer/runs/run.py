"""The kinds of runs, and how their files show them.

dataset      a run folder of `train NAME`, of one seed or of several (seed-N)
shards       a run folder of `train FOLDER`, where FOLDER is a sharded dataset
table        a run folder of `train --nodes`
series       a run folder of `train --series`
comparison   a folder of `compare --out`
cell         a result file of `reproduce`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar, cast

from difformer.compare.comparison import COMPARISON, read_comparison
from difformer.data.split import Split
from difformer.errors import DifformerError, RunError
from difformer.files import MISREAD, natural, read_json, reading
from difformer.jobs.series import RECORD as SERIES
from difformer.shards.store import is_shards
from difformer.statistics import spread
from difformer.train.folder import read_config, read_metrics

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


T = TypeVar("T")
Row = dict[str, Any]
PARTS = ("test", "val", "train")  # the first one that a run has is its headline


@dataclass(frozen=True)
class SeedRun:
    """One fit: a seed's folder or record; missing or damaged parts are None or empty."""

    folder: Path
    config: dict[str, Any]
    result: dict[str, Any]
    history: list[Row] = field(default_factory=list[Row])
    split: Split | None = None
    name: str | None = None

    @property
    def label(self) -> str:
        """The seed, or the folder's name if the settings have none."""
        seed = self.config.get("train", {}).get("seed")
        return self.name or (self.folder.name if seed is None else f"seed {seed}")

    @property
    def metrics(self) -> dict[str, dict[str, Any]]:
        """The values of each part ("train", "val", "test") by name, as far as they can be read."""
        found = self.result.get("metrics")
        parts = found.items() if isinstance(found, dict) else ()
        return {part: values for part, values in parts if isinstance(values, dict)}


@dataclass(frozen=True)
class Run:
    """A run of one or several fits, and what could not be read of it."""

    folder: Path
    config: dict[str, Any]
    seeds: list[SeedRun]
    missing: list[str] = field(default_factory=list[str])
    kind: str = "dataset"

    def values(self, part: str, metric: str) -> list[float]:
        """One metric of one part ("train", "val", "test"): one value per seed that has it."""
        found = [seed.metrics.get(part, {}).get(metric) for seed in self.seeds]
        return [float(v) for v in found if isinstance(v, int | float) and isfinite(v)]

    def mean_std(self, part: str, metric: str) -> tuple[float | None, float | None]:
        """Mean and sample deviation over seeds; no deviation for one seed."""
        values = self.values(part, metric)
        return spread(values) if values else (None, None)

    def metrics(self) -> list[str]:
        """The names of all metrics, in the order they were reported."""
        names = [name for s in self.seeds for part in s.metrics.values() for name in part]
        return list(dict.fromkeys(names))

    @property
    def title(self) -> str:
        """Such as 'difformer-s on cora', as far as the settings are known."""
        system, dataset = self.config.get("system", "DIFFormer"), self.config.get("dataset")
        return f"{system} on {dataset}" if dataset else f"Run {self.folder.name}"

    @property
    def headline(self) -> tuple[str, str] | None:
        """The part and the metric that summarise the run: of its test rows, if it has any."""
        names = [name for name in self.metrics() if name != "loss"] or self.metrics()
        pairs = ((part, name) for part in PARTS for name in names if self.values(part, name))
        return next(pairs, None)

    @property
    def state(self) -> str:
        """finished, interrupted or unfinished."""
        results = [seed.result for seed in self.seeds]
        if not results or not all(results):
            return "unfinished"
        return "interrupted" if any(r.get("interrupted") for r in results) else "finished"

    def summary(self) -> dict[str, Any]:
        """One line of a list of runs."""
        part, metric = self.headline or (None, None)
        middle, std = self.mean_std(part, metric) if part and metric else (None, None)
        found = [seed.result.get("seconds") for seed in self.seeds]
        times = [time for time in found if isinstance(time, int | float)]
        return {
            "run": str(self.folder),
            "kind": self.kind,
            "title": self.title,
            "state": self.state,
            "part": part,
            "metric": metric,
            "mean": middle,
            "std": std,
            "fits": len(self.seeds),
            "seconds": sum(times) if times else None,
            "date": _date(self.folder),
        }


def read_run(folder: Path | str) -> Run:
    """Read a run, even an incomplete one; RunError only if nothing of it can be read."""
    folder = Path(folder)
    if not folder.exists():
        raise RunError(f"{folder} is not a run folder: it does not exist")
    kind = kind_of(folder)
    if kind == "cell":
        return _read_cell(folder)
    if kind == "comparison":
        return _read_comparison(folder)
    missing: list[str] = []
    seeds = [_read_seed(f, missing, folder) for f in seed_folders(folder) or [folder]]
    config = _try(lambda: read_config(folder / "config.toml"), missing, "config.toml", {})
    if not config:
        config = next((s.config for s in seeds if s.config), {})
    if not config and not any(s.result or s.history or s.split for s in seeds):
        raise RunError(f"{folder} is not a run folder: none of its files can be read")
    if kind == "series":
        record = _try(lambda: read_json(folder / SERIES), missing, SERIES, {})
        config = {"dataset": Path(str(record.get("series", "a series"))).name, **config}
    return Run(folder, config, seeds, list(dict.fromkeys(missing)), kind)


def find_runs(root: Path | str) -> Iterator[Run]:
    """Every run at or below a path, sorted by name; other files and folders are skipped."""
    root = Path(root)
    if not root.exists():
        raise RunError(f"{root} is not there: give a run folder, or a folder of runs")
    if is_run(root):
        yield read_run(root)
    elif root.is_file():
        with suppress(RunError):  # a JSON file of something else
            yield read_run(root)
    else:
        for path in sorted(root.iterdir(), key=lambda f: natural(f.name)):
            if path.is_dir() or path.suffix == ".json":
                yield from find_runs(path)


def differing_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings that differ between runs: one value per run, or None if a run lacks it."""
    flat = [dict(_flat(run.config)) for run in runs]
    names = dict.fromkeys(name for settings in flat for name in settings)
    found = {name: [settings.get(name) for settings in flat] for name in names}
    return {
        name: values
        for name, values in found.items()
        if len({repr(value) for value in values if value is not None}) > 1
        and not name.endswith("fingerprint")
    }


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _read_seed(folder: Path, missing: list[str], root: Path) -> SeedRun:
    where = "" if folder == root else f"{folder.name}/"

    def attempt(name: str, read: Callable[[Path], T], default: T) -> T:
        return _try(lambda: read(folder / name), missing, where + name, default)

    return SeedRun(
        folder=folder,
        config=attempt("config.toml", read_config, {}),
        result=attempt("result.json", read_json, {}),
        history=attempt("metrics.csv", read_metrics, []),
        split=attempt("split.json", Split.load, None),
    )


def _read_comparison(folder: Path) -> Run:
    """A comparison as the run of its best system: one fit per split."""
    result, record = read_comparison(folder / COMPARISON)
    ranked = result.ranked()
    fits = [
        SeedRun(folder, {}, _compared(run, result.metric), name=split)
        for split, run in (ranked[0].runs if ranked else {}).items()
    ]
    systems = ", ".join(row.system for row in result.rows)
    best = ranked[0].system if ranked else "none"
    config = {"system": f"{best} (best of {len(result.rows)})", "dataset": result.dataset}
    config |= {"systems": systems, "trials": result.trials, "command": record.get("command")}
    return Run(folder, config, fits, kind="comparison")


def _compared(run: Mapping[str, Any], metric: str) -> dict[str, Any]:
    metrics = {part: {metric: run[part]} for part in ("val", "test") if part in run}
    return {"metrics": metrics, "seconds": run["seconds"], "epochs": run.get("epochs")}


def _read_cell(path: Path) -> Run:
    with reading(path):
        cell: dict[str, Any] = read_json(path)
        kept = ("system", "dataset", "table", "variant", "protocol")
        config = {name: cell[name] for name in kept} | cell["settings"]
        fits = [
            SeedRun(path, {}, run, name=f"{run['split']} seed {run['seed']}")
            for run in cell["runs"]
        ]
        return Run(path, config, fits, [cell["cannot"]] if cell.get("cannot") else [], "cell")


def _try(read: Callable[[], T], missing: list[str], name: str, default: T) -> T:
    try:
        return read()
    except (DifformerError, *MISREAD) as error:
        absent = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        reason = "is not there" if absent else "is damaged"
        missing.append(f"{name} {reason}: what it holds is left out of this page.")
        return default


def _date(path: Path) -> str | None:
    files = [path] if path.is_file() else [path / "result.json", path / COMPARISON, path]
    last = next((file for file in files if file.exists()), None)
    if last is None:
        return None
    return datetime.fromtimestamp(last.stat().st_mtime, timezone.utc).strftime("%Y-%m-%d %H:%M")

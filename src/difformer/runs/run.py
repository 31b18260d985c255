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
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from difformer.data.split import Split
from difformer.errors import DifformerError, RunError
from difformer.files import MISREAD, natural, read_json, reading
from difformer.jobs.series import RECORD as SERIES
from difformer.train.folder import (
    RESULT,
    FitResult,
    Run,
    fit_of,
    read_config,
    read_metrics,
    read_record,
)

COMPARISON = "comparison.json"  # what `difformer compare --out FOLDER` leaves
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
    name = str(config.get("dataset", ""))
    if "://" not in name and not Path(name).is_dir():
        return "dataset"
    from difformer.shards.store import is_shards

    return "shards" if is_shards(name) else "dataset"


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


def summary(run: Run) -> dict[str, Any]:
    """One line of a list of runs."""
    part, metric = run.headline or (None, None)
    middle, std = run.mean_std(part, metric) if part and metric else (None, None)
    times = [fit.seconds for fit in run.fits.values() if isinstance(fit.seconds, int | float)]
    return {
        "run": str(run.folder),
        "kind": run.kind,
        "title": run.title,
        "state": run.state,
        "part": part,
        "metric": metric,
        "mean": middle,
        "std": std,
        "fits": len(run.fits),
        "seconds": sum(times) if times else None,
        "date": _date(run.folder),
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
    read = [_read_fit(each, missing, folder) for each in seed_folders(folder) or [folder]]
    config = _try(lambda: read_config(folder / "config.toml"), missing, "config.toml", {})
    config = config or next((own for own, _ in read if own), {})
    if not config and not any(fit.record or fit.history or fit.split for _, fit in read):
        raise RunError(f"{folder} is not a run folder: none of its files can be read")
    if kind == "series":
        record = _try(lambda: read_json(folder / SERIES), missing, SERIES, {})
        config = {"dataset": Path(str(record.get("series", "a series"))).name, **config}
    fits: dict[str, FitResult] = {}
    for own, fit in read:  # by seed, or by the folder's name if the settings have none
        assert fit.folder is not None
        seed = own.get("train", {}).get("seed")
        fits[fit.folder.name if seed is None else f"seed {seed}"] = fit
    interrupted = any(fit.interrupted for fit in fits.values())
    return Run(fits, interrupted, folder, config, list(dict.fromkeys(missing)), kind)


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
    flat = [_flat(run.config) for run in runs]
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for settings in flat for name in settings):
        values = [settings.get(name) for settings in flat]
        several = len({repr(value) for value in values if value is not None}) > 1
        if several and not name.endswith("fingerprint"):
            found[name] = values
    return found


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return found


def _read_fit(folder: Path, missing: list[str], root: Path) -> tuple[dict[str, Any], FitResult]:
    """The settings of a fit, and what it left, as far as they can be read."""
    where = "" if folder == root else f"{folder.name}/"

    def attempt(name: str, read: Callable[[Path], T], default: T) -> T:
        return _try(lambda: read(folder / name), missing, where + name, default)

    config = attempt("config.toml", read_config, {})
    record = attempt(RESULT, read_json, {})
    history = attempt("metrics.csv", read_metrics, [])
    split = attempt("split.json", Split.load, None)
    return config, fit_of(record, history, folder=folder, split=split)


def _read_comparison(folder: Path) -> Run:
    """A comparison as the run of its best system: one fit per split."""
    from difformer.compare.comparison import read_comparison

    result, record = read_comparison(folder / COMPARISON)
    ranked, fits = result.ranked(), dict[str, FitResult]()
    for split, run in (ranked[0].runs if ranked else {}).items():
        metrics = {part: {result.metric: run[part]} for part in ("val", "test") if part in run}
        told = {"metrics": metrics, "seconds": run["seconds"], "epochs": run.get("epochs")}
        fits[split] = fit_of(told, folder=folder)
    best = ranked[0].system if ranked else "none"
    config = {
        "system": f"{best} (best of {len(result.rows)})",
        "dataset": result.dataset,
        "systems": ", ".join(row.system for row in result.rows),
        "trials": result.trials,
        "command": record.get("command"),
    }
    return Run(fits, folder=folder, config=config, kind="comparison")


def _read_cell(path: Path) -> Run:
    cell = read_record(path)
    with reading(path):
        kept = ("system", "dataset", "table", "variant", "protocol")
        config = {name: cell[name] for name in kept} | cell["settings"]
        fits = {f"{r['split']} seed {r['seed']}": fit_of(r, folder=path) for r in cell["runs"]}
        missing = [cell["cannot"]] if cell.get("cannot") else []
        return Run(fits, False, path, config, missing, "cell")


def _try(read: Callable[[], T], missing: list[str], name: str, default: T) -> T:
    try:
        return read()
    except (DifformerError, *MISREAD) as error:
        absent = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        reason = "is not there" if absent else "is damaged"
        missing.append(f"{name} {reason}: what it holds is left out of this page.")
        return default


def _date(path: Path) -> str | None:
    files = [path] if path.is_file() else [path / RESULT, path / COMPARISON, path]
    last = next((file for file in files if file.exists()), None)
    if last is None:
        return None
    return datetime.fromtimestamp(last.stat().st_mtime, timezone.utc).strftime("%Y-%m-%d %H:%M")

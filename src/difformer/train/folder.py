"""Run folders: the one place that knows the names of their files.

config.toml          what was asked for; a resumed run must ask for the same
split.json           which rows trained, validated and tested
metrics.csv          one row per evaluated epoch; no clock times, so equal runs have equal bytes
checkpoint.safetensors   where to resume from; removed once the run has finished
model.safetensors    the weights of the best validation epoch
result.json          the final metrics; `interrupted` says whether the run can be resumed
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tomli_w
from torch import nn

from difformer.errors import RunError
from difformer.files import (
    cannot_write,
    csv_lines,
    finite,
    read_json,
    read_toml,
    reading,
    replacing,
    write_atomic,
    write_json,
)
from difformer.machine import commit
from difformer.statistics import spread
from difformer.tensorfiles import read_tensors, write_tensors
from difformer.train.checkpoint import Row, copy_state, load_weights

if TYPE_CHECKING:
    from difformer.data.split import Split


Metrics = dict[str, float]
RESULT = "result.json"
PARTS = ("test", "val", "train")  # the first one that a run has is its headline


@dataclass(frozen=True)
class FitResult:
    """How one fit ended.

    Args:
        metrics: "train", "val" and "test" metrics of the best epoch's weights; a part without
            rows is left out. Test metrics are computed here and nowhere else.
        best_epoch: the epoch whose weights were kept; 0 for a model without parameters.
        epochs: how many were run.
        stopped: "epochs", "patience", "interrupted", "evaluated" (nothing to train), or the
            word a callback gave.
        history: one row per evaluated epoch, as in metrics.csv.
        seconds: time spent training, including earlier sessions.
        peak_memory: the peak memory of the process in bytes, including what it ran before; None if
            unknown.
        folder: where it was read from.
        split: which rows trained, validated and tested, where it was read.
        record: all that the file holds it was read from; empty if there is none yet.
    """

    metrics: dict[str, Metrics]
    best_epoch: int | None
    epochs: int | None
    stopped: str | None
    history: list[Row]
    seconds: float | None
    peak_memory: int | None = None
    folder: Path | None = field(default=None, compare=False)
    split: Split | None = field(default=None, compare=False)
    record: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    @property
    def interrupted(self) -> bool:
        """True if the run was interrupted and can be resumed."""
        return self.stopped == "interrupted"

    def to_json(self) -> dict[str, Any]:
        """What result.json holds: everything but the history, which is metrics.csv."""
        kept = {name: getattr(self, name) for name in KEPT}
        return {**kept, "metrics": finite(self.metrics), "interrupted": self.interrupted}


KEPT = ("metrics", "best_epoch", "epochs", "stopped", "seconds", "peak_memory")  # in result.json


def fit_of(record: Mapping[str, Any], history: list[Row] | None = None, **where: Any) -> FitResult:
    """A fit as a record tells of it; what the record lacks is None or empty."""
    found = record.get("metrics")
    parts = cast("dict[str, Any]", found).items() if isinstance(found, dict) else ()
    metrics = {
        part: {name: nan if value is None else value for name, value in values.items()}
        for part, values in parts
        if isinstance(values, dict)
    }
    told = {name: record.get(name) for name in KEPT}
    return FitResult(**{**told, "metrics": metrics}, history=history or [], record=record, **where)


@dataclass(frozen=True)
class Run:
    """What one job left: its fits, what was asked for, and what could not be read of it.

    Args:
        fits: by seed ("seed 3"), or by the split of a comparison; fewer than asked for if the run
            was interrupted.
        kind: see `difformer.runs.run`.
        missing: one sentence for each file that cannot be read.
    """

    fits: Mapping[str, FitResult]
    interrupted: bool = False
    folder: Path = Path()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    missing: Sequence[str] = ()
    kind: str = "dataset"

    def values(self, part: str, metric: str) -> list[float]:
        """One metric of one part ("train", "val", "test"): one value per fit that knows it."""
        return [value for value in self._reported(part, metric) if isfinite(value)]

    def _reported(self, part: str, metric: str) -> list[float]:
        """The same, with nan where a fit reports that it is unknown."""
        found = [fit.metrics.get(part, {}).get(metric) for fit in self.fits.values()]
        return [float(value) for value in found if isinstance(value, int | float)]

    def mean_std(self, part: str, metric: str) -> tuple[float | None, float | None]:
        """Mean and sample deviation (divisor: fits − 1); no deviation for one fit.

        Neither where a fit reports that its value is unknown: the others' mean is another figure.
        """
        values = self._reported(part, metric)
        return spread(values) if values and all(map(isfinite, values)) else (None, None)

    def mean(self, part: str, metric: str) -> float:
        """The mean over fits; nan where it is unknown."""
        middle, _ = self.mean_std(part, metric)
        return nan if middle is None else middle

    def metrics(self) -> list[str]:
        """The names of all metrics, in the order they were reported."""
        names = [name for f in self.fits.values() for part in f.metrics.values() for name in part]
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
        if not self.fits or not all(fit.record or fit.stopped for fit in self.fits.values()):
            return "unfinished"
        return "interrupted" if self.interrupted else "finished"

    def to_json(self) -> dict[str, Any]:
        """What the result.json of several seeds holds: mean and std of each metric, every seed."""
        each = self.fits.values()
        reported = next(iter(each)).metrics.items() if each else ()
        summary = {
            part: {
                name: dict(zip(("mean", "std"), self.mean_std(part, name), strict=True))
                for name in metrics
            }
            for part, metrics in reported
        }
        seeds = {name.removeprefix("seed "): fit.to_json() for name, fit in self.fits.items()}
        return {"metrics": summary, "seeds": seeds, "interrupted": self.interrupted}


class RunFolder:
    """The files of one run; opening it writes its configuration, or checks that it is the same."""

    def __init__(
        self, path: Path | str, config: Mapping[str, Any], split: Split, *, writes: bool = True
    ) -> None:
        self.path, self.writes = Path(path), writes
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.model = self.path / "model.safetensors"
        self.metrics = self.path / "metrics.csv"
        if not writes:
            return
        started = (self.path / "config.toml").exists()
        if not started and (self.checkpoint.exists() or (self.path / RESULT).exists()):
            raise RunError(f"{self.path} has no config.toml: give another folder")
        agree_config(self.path, config)
        file, text = self.path / "split.json", split.to_json() + "\n"
        if not file.exists():
            write_atomic(file, text)
        elif file.read_text(encoding="utf-8") != text:
            raise RunError(f"{self.path} holds a run on another split: give another folder")

    def finished(self) -> FitResult | None:
        """The result of a finished run, else None."""
        result = read_result(self.path)
        if result is None or result.interrupted:
            return None
        if self.writes:
            self.checkpoint.unlink(missing_ok=True)  # it may have been killed just before
        return result

    def load_model(self, model: nn.Module) -> None:
        """Put the best epoch's weights into a model."""
        load_weights(model, read_tensors(self.model, None, error=RunError)[0], self.model)

    def start_metrics(self, history: Sequence[Row]) -> None:
        """Write exactly these rows to metrics.csv: epochs after the checkpoint are run again."""
        if self.writes:
            write_atomic(self.metrics, csv_text(history))

    def add_metrics(self, row: Row, *, first: bool) -> None:
        """Append one row, for people who follow a run; the file is rewritten at its end."""
        if not self.writes:
            return
        try:
            with self.metrics.open("a", encoding="utf-8", newline="") as file:
                file.write(csv_text([row], header=first))
        except OSError as error:
            raise cannot_write(self.metrics, error) from error

    def finish(self, model: nn.Module, result: FitResult) -> None:
        """Write the result; result.json comes last, so that its presence means all is there."""
        if not self.writes:
            return
        write_atomic(self.metrics, csv_text(result.history))
        save_model(model, self.model)
        write_result(self.path, result.to_json())
        if not result.interrupted:
            self.checkpoint.unlink(missing_ok=True)


def agree_config(folder: Path, config: Mapping[str, Any], *, unused: Collection[str] = ()) -> None:
    """Write config.toml, or raise an error that names each setting in which it differs.

    Runs of earlier versions also hold the settings that the run does not use, which are no
    difference.
    """
    file, wanted = folder / "config.toml", plain(config)
    if not file.exists():
        write_atomic(file, tomli_w.dumps(wanted))
        return
    found = differences(read_config(file), wanted)
    differing = [line for line in found if line.partition(":")[0] not in unused]
    if differing:
        raise RunError(
            f"{folder} holds a run of another configuration ({'; '.join(differing)}): "
            "give the same one to resume it, or another folder to start a new run"
        )


def save_model(model: nn.Module, path: Path) -> None:
    """Write a model's weights: by its own ``save(path)`` where it has one, else its state.

    Either way the tensors have the names of ``state_dict()``.
    """
    save = getattr(model, "save", None)
    if save is None:
        write_tensors(path, "weights", copy_state(model), {})
        return
    with replacing(path) as part:
        save(part)


def write_result(folder: Path, record: Mapping[str, Any]) -> None:
    """Write result.json: a record with the commit that measured it."""
    write_json(folder / RESULT, {**record, "commit": commit()}, indent=2)


def read_result(path: Path) -> FitResult | None:
    """The result in a run folder, or None if there is none yet."""
    file = path / RESULT
    if not file.exists():
        return None
    record = read_record(file)
    with reading(file):
        if lacking := [name for name in KEPT[:-1] if name not in record]:
            raise ValueError(f"it has no {lacking[0]}")
        return fit_of(record, read_metrics(path / "metrics.csv"))


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object that a run left in a file."""
    with reading(path):
        return read_json(path)


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics.csv; an empty cell is left out of its row."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {key: int(cell) if key == "epoch" else float(cell) for key, cell in row.items() if cell}
            for row in csv.DictReader(file)
        ]


def csv_text(history: Sequence[Mapping[str, Any]], *, header: bool = True) -> str:
    """Rows as CSV, numbers in full precision; the first row names the columns."""
    names = list(history[0]) if history else []
    rows = [[row.get(name) for name in names] for row in history]
    return csv_lines([names, *rows] if header and names else rows)


def read_config(path: Path) -> dict[str, Any]:
    """A config.toml as nested dicts."""
    with reading(path):
        return read_toml(path.read_text(encoding="utf-8"))


def plain(value: Any) -> Any:
    """Nested settings as TOML can hold them: None is left out, a tuple becomes a list."""
    if hasattr(value, "__dataclass_fields__"):
        value = asdict(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): plain(item) for key, item in items if item is not None}
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if isinstance(value, bool | int | float | str):
        return value
    return str(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The settings in which two configurations differ, each as 'key: old there, new now'."""
    found: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        a, b, name = old.get(key), new.get(key), f"{prefix}{key}"
        if isinstance(a or b, Mapping) and isinstance(b or a, Mapping):
            found += differences(a or {}, b or {}, f"{name}.")
        elif a != b:
            found.append(f"{name}: {_shown(a)} there, {_shown(b)} now")
    return found


def _shown(value: Any) -> str:
    return "none" if value is None else repr(value)

"""Train on a user's own series and forecast it: a run folder like any other, and beside it

series.json    the files, the settings, the nodes, and a backtest beside naive forecasts
forecast.csv   the steps after the series, in its units; written last

No torch until something is trained: the command line reads the settings from here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import RunError
from difformer.files import reading

if TYPE_CHECKING:
    from difformer.data.series import Series
    from difformer.estimators.forecaster import DIFFormerForecaster

__all__ = ["RECORD", "SeriesSettings", "open_series", "train_series"]

RECORD = "series.json"  # what makes a run folder one of a series


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class SeriesSettings:
    """How a forecaster for a user's own series is trained; the names are DIFFormerForecaster's."""

    lags: int = _option(4, "past values of a node that are its features")
    steps: int = _option(4, "steps to forecast after the series")
    origins: int = _option(5, "origins of the backtest; 0 for none")
    hidden_channels: int = _option(16, "width of the states")
    kernel: str = _option("simple", "diffusivity: simple or sigmoid")
    recipe: str = _option("forecast", "form of the model, see nn.recipes")
    epochs: int = _option(300, "the most epochs to train for")
    lr: float = _option(0.01, "learning rate")
    weight_decay: float = _option(0.0, "L2 weight decay")
    patience: int | None = _option(30, "stop after this many epochs without a better validation")
    validation_fraction: float = _option(0.2, "share of the latest steps that picks the epoch")
    seed: int = _option(0, "seed of everything random")
    device: str = _option("auto", "cpu, cuda, ...; auto: cuda where there is one")
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the model

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("origins", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")

    def forecaster(self, folder: Path) -> DIFFormerForecaster:
        """The forecaster that these settings describe, kept in a folder."""
        from difformer.estimators.forecaster import DIFFormerForecaster

        given = asdict(self)
        for name in ("steps", "origins"):
            given.pop(name)
        seed, options = given.pop("seed"), given.pop("options") or None
        return DIFFormerForecaster(**given, options=options, random_state=seed, checkpoint=folder)


def train_series(
    series: Path | str,
    edges: Path | str | None,
    folder: Path | str,
    settings: SeriesSettings | None = None,
) -> dict[str, Any]:
    """Fit, backtest and forecast in a run folder; returns what series.json holds.

    A run that was killed or interrupted goes on when it is called again. After Ctrl-C the record
    says `interrupted`, and there is no forecast yet.
    """
    from difformer.files import write_atomic
    from difformer.train.loop import interruptible

    settings, folder = settings or SeriesSettings(), Path(folder)
    given = {"series": str(series), "edges": None if edges is None else str(edges)}
    record: dict[str, Any] = {**given, "settings": asdict(settings)}
    _agree(folder, record)
    data, graph = _read(record)
    with (
        interruptible() as interrupt
    ):  # Ctrl-C in the backtest too leaves the run to be gone on with
        model = settings.forecaster(folder).fit(data, graph)
        tested = None
        if settings.origins and not interrupt.is_set():
            tested = model.backtest(data, graph, horizon=1, origins=settings.origins)
        interrupted = interrupt.is_set() or model.result_.interrupted
    record |= {
        "steps": len(data.values),
        "nodes": list(data.names),
        "graphs": 0 if graph is None else len(graph),
        "validation": model.validation_,
        "interrupted": interrupted,
    }
    if not interrupted:
        if tested is not None:
            record["backtest"] = {"origins": tested.origins.tolist(), **tested.summary()}
        write_atomic(folder / RECORD, _text(record))
        write_atomic(folder / "forecast.csv", forecast_csv(model, data, settings.steps).encode())
    return record


def open_series(folder: Path | str) -> tuple[DIFFormerForecaster, dict[str, Any]]:
    """The fitted forecaster of a run folder, and what its series.json holds."""
    folder = Path(folder)
    record = _record(folder)
    if not (folder / "forecast.csv").exists():
        raise RunError(f"{folder} is not finished: go on with it by --resume")
    with reading(folder):
        data, graph = _read(record)
        settings = SeriesSettings(**record["settings"])
        return settings.forecaster(folder).fit(data, graph), record  # read back, not trained


def forecast_csv(model: DIFFormerForecaster, data: Series, steps: int) -> str:
    """The next steps of a series as CSV: the time, then one column per node."""
    from difformer.estimators.forecaster import following

    stamps = following(data.stamps, steps)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", *data.names])
    for step, row in enumerate(model.predict(steps, series=data)):
        stamp = f"+{step + 1}" if stamps is None else _shown(stamps[step])
        writer.writerow([stamp, *(f"{value:.9g}" for value in row)])
    return text.getvalue()


def _read(record: Mapping[str, Any]) -> tuple[Series, Any]:
    from difformer.data.series import read_edges_file, read_series_file

    data = read_series_file(record["series"])
    edges = record["edges"]
    return data, None if edges is None else read_edges_file(edges, data)


def _record(folder: Path) -> dict[str, Any]:
    with reading(folder / RECORD):
        found: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it is not an object")
        return found


def _agree(folder: Path, record: Mapping[str, Any]) -> None:
    """Write what was asked for, or raise where the folder holds something else."""
    from difformer.files import write_atomic
    from difformer.train.run import differences

    if (folder / RECORD).exists():
        before = _record(folder)
        differing = differences({name: before.get(name) for name in record}, record)
        if differing:
            raise RunError(f"{folder} holds another run ({'; '.join(differing)})")
        return
    write_atomic(folder / RECORD, _text(record))


def _text(record: Mapping[str, Any]) -> bytes:
    return (json.dumps(record, indent=2) + "\n").encode()


def _shown(stamp: Any) -> str:
    if isinstance(stamp, datetime):
        midnight = (stamp.hour, stamp.minute, stamp.second, stamp.microsecond) == (0, 0, 0, 0)
        return stamp.date().isoformat() if midnight else stamp.isoformat()
    return f"{stamp:g}" if isinstance(stamp, float) else str(stamp)

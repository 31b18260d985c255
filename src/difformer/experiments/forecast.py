"""Train on a user's own series and forecast it: a run folder like any other, and beside it

series.json    the files, the settings, the nodes, and a backtest beside simple forecasts
intervals.csv  the steps after the series with their intervals, one line per step and node
forecast.csv   the same steps, one column per node; written last

No torch until something is trained: the command line reads the settings from here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import DataError, RunError
from difformer.estimators.settings import ForecastSettings
from difformer.files import finite, read_json, reading
from difformer.options import like, option, whole
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from difformer.data.series import Series
    from difformer.estimators.backtest import Backtest
    from difformer.estimators.forecaster import DIFFormerForecaster

__all__ = [
    "LEVEL",
    "RECORD",
    "SeriesSettings",
    "forecast_csv",
    "half_widths",
    "intervals_csv",
    "mixed_in",
    "next_stamps",
    "open_series",
    "train_series",
]

RECORD = "series.json"  # what makes a run folder one of a series
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals that a run keeps
LEVEL = 0.9  # of those in intervals.csv and on the page


@dataclass(kw_only=True)
class SeriesSettings(ForecastSettings):
    """How a forecaster for a user's own series is trained, and what it is asked for then."""

    steps: int = option(4, "steps to forecast after the series", whole(1))
    origins: int | None = option(
        None, "newest steps that the backtest forecasts from, 0 for none; none: a quarter", whole(0)
    )
    seed: int = like(TrainSettings, "seed", 0)

    def __post_init__(self) -> None:
        self.check_settings()

    def forecaster(self, folder: Path) -> DIFFormerForecaster:
        """The forecaster that these settings describe, kept in a folder."""
        from difformer.estimators.forecaster import LONGEST, DIFFormerForecaster

        given = asdict(self)
        for name in ("steps", "origins"):
            given.pop(name)
        seed, options = given.pop("seed"), given.pop("options") or None
        given["horizon"] = self.horizon or min(self.steps, LONGEST)
        return DIFFormerForecaster(**given, options=options, random_state=seed, checkpoint=folder)


def train_series(
    series: Path | str,
    edges: Path | str | None,
    folder: Path | str,
    settings: SeriesSettings | None = None,
    *,
    known: Path | str | None = None,
    places: Path | str | None = None,
) -> dict[str, Any]:
    """Fit, backtest and forecast in a run folder; returns what series.json holds.

    A run that was killed or interrupted goes on when it is called again. After Ctrl-C the record
    says `interrupted`, and there is no forecast yet.

    Args:
        known: a file of what is known before it happens, see `read_known_file`.
        places: a file of where the nodes are, for the page, see `read_places`.
    """
    from difformer.data.series_files import read_places
    from difformer.files import write_atomic
    from difformer.train.interrupts import interruptible

    settings, folder = settings or SeriesSettings(), Path(folder)
    given = {"series": series, "edges": edges, "known": known, "places": places}
    record: dict[str, Any] = {k: None if v is None else str(v) for k, v in given.items()}
    record["settings"] = asdict(settings)
    data, graph = _read(record)
    if places is not None:
        read_places(places, data.names)  # before the work
    ahead = 0 if data.known is None else len(data.known) - len(data.values)
    if data.known is not None and ahead < settings.steps:
        steps = settings.steps
        raise DataError(
            f"{known} must have rows for {steps} steps after the series, it has {ahead}"
        )
    _agree(folder, record)
    with (
        interruptible() as interrupt
    ):  # Ctrl-C in the backtest too leaves the run to be gone on with
        model = settings.forecaster(folder).fit(data, graph)
        tested = None
        if settings.origins != 0 and not interrupt.is_set() and not model.result_.interrupted:
            try:
                tested = model.backtest(
                    data, graph, horizon=settings.steps, origins=settings.origins
                )
            except ValueError as error:  # too few steps before the first origin
                record["no_backtest"] = str(error)
        interrupted = interrupt.is_set() or model.result_.interrupted
    if interrupted:
        return {**record, "interrupted": True}
    record |= {
        "steps": len(data.values),
        "nodes": list(data.names),
        "graphs": 0 if graph is None else len(graph),
        "validation": model.validation_,
        "transform": model.transform_,
        "level": model.level_,
        "calendar": model.calendar_,
        "shares": {name: round(share, 4) for name, share in model.shares_.items()},
        "naive_nodes": list(model.naive_nodes_),
        "notes": list(data.notes),
        "interrupted": False,
    }
    if tested is not None:
        record["backtest"] = finite(_told(tested))
        text = intervals_csv(model, data, record, LEVEL)
        write_atomic(folder / "intervals.csv", text.encode())
    write_atomic(folder / RECORD, _text(record))
    write_atomic(folder / "forecast.csv", forecast_csv(model, data, settings.steps).encode())
    return record


def _told(tested: Backtest) -> dict[str, Any]:
    """What series.json says of a backtest; the quantiles are of errors in units of the sizes."""
    return {
        "origins": tested.origins.tolist(),
        **tested.summary(),
        "coverage": {str(level): tested.coverage(level) for level in LEVELS},
        "quantiles": {str(level): tested.quantiles(level).tolist() for level in LEVELS},
        "sizes": tested.sizes().tolist(),
    }


def mixed_in(record: Mapping[str, Any]) -> str:
    """Which simple forecasts have a share in the forecast, largest first; "" where none has."""
    from difformer.estimators.backtest import OURS

    shares = sorted(record.get("shares", {}).items(), key=lambda pair: -pair[1])
    told = [f"{100 * s:.0f} % {name}" for name, s in shares if name != OURS and s >= 0.005]
    return ", ".join(told)


def half_widths(record: Mapping[str, Any], level: float) -> Any:
    """(steps, nodes) half the width of the intervals of a level, in the units of the series."""
    import numpy as np

    tested = record.get("backtest")
    if tested is None:
        raise RunError("intervals need a backtest, and the run has none: train it with origins")
    if str(level) not in tested["quantiles"]:
        raise ValueError(f"level must be one of {', '.join(map(str, LEVELS))}, got {level!r}")
    kept = [np.inf if q is None else q for q in tested["quantiles"][str(level)]]
    size = np.array([s or 0.0 for s in tested["sizes"]])
    # A node that was forecast exactly has an interval of no width, also where others' is infinite.
    return np.where(size > 0, np.array(kept)[:, None] * np.maximum(size, 1e-300), 0.0)


def intervals_csv(
    model: DIFFormerForecaster, data: Series, record: Mapping[str, Any], level: float
) -> str:
    """The next steps as CSV, one line per step and node: the forecast and its interval."""
    steps = record["settings"]["steps"]
    stamps = next_stamps(data, steps)
    half, share = half_widths(record, level), f"{100 * level:g} %"
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "node", "forecast", f"from {share}", f"to {share}"])
    names = data.names or tuple(str(j) for j in range(data.values.shape[1]))
    low = 0.0 if bool((data.values[data.values == data.values] >= 0).all()) else None
    for step, row in enumerate(model.predict(steps, series=data)):
        for node, value, own in zip(names, row, half[step], strict=True):
            least = value - own if low is None else max(low, value - own)
            cells = (f"{v:.9g}" for v in (value, least, value + own))
            writer.writerow([stamps[step], node, *cells])
    return text.getvalue()


def next_stamps(data: Series, steps: int) -> list[str]:
    """The times of the next steps as text: +1, +2, ... where they are not known."""
    from difformer.data.times import following

    stamps = following(data.stamps, steps)
    return [f"+{i + 1}" if stamps is None else _shown(stamps[i]) for i in range(steps)]


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
    stamps = next_stamps(data, steps)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", *data.names])
    for step, row in enumerate(model.predict(steps, series=data)):
        writer.writerow([stamps[step], *(f"{value:.9g}" for value in row)])
    return text.getvalue()


def _read(record: Mapping[str, Any]) -> tuple[Series, Any]:
    from difformer.data.edges import read_step_edges
    from difformer.data.series_files import read_known_file, read_series_file

    data = read_series_file(record["series"])
    if record.get("known") is not None:
        data = read_known_file(record["known"], data)
    edges = record["edges"]
    return data, None if edges is None else read_step_edges(edges, data)


def _record(folder: Path) -> dict[str, Any]:
    with reading(folder / RECORD):
        return read_json(folder / RECORD)


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

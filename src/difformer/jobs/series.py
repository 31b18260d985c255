"""Train on a user's own series and forecast it: a run folder like any other, with three more files:

series.json    the files, the settings, the nodes, and a backtest beside simple forecasts
intervals.csv  the steps after the series with their intervals, one line per step and node
forecast.csv   the same steps, one column per node; written last

torch is imported only to train: the command line reads the settings from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import DataError, RunError
from difformer.estimators.settings import ForecastSettings
from difformer.files import csv_lines, finite, number_text, reading, write_atomic, write_json
from difformer.settings import like, option, whole
from difformer.train.settings import TrainSettings

if TYPE_CHECKING:
    from difformer.data.series import Series
    from difformer.estimators.backtest import Backtest
    from difformer.estimators.forecaster import DIFFormerForecaster


RECORD = "series.json"  # what makes a run folder one of a series
LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the intervals that a run keeps
LEVEL = 0.9  # of those in intervals.csv and on the page
CUT = "end at 0 below, as no value of the series is negative."  # said where `lower_end` is 0


@dataclass(kw_only=True)
class SeriesSettings(ForecastSettings):
    """How a forecaster is trained on a user's own series, tested, and how far it forecasts."""

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

        given = {k: v for k, v in asdict(self).items() if k not in ("steps", "origins", "seed")}
        given["options"] = self.options or None
        given["horizon"] = self.horizon or min(self.steps, LONGEST)
        return DIFFormerForecaster(**given, random_state=self.seed, checkpoint=folder)


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

    The same call resumes a run that was killed or interrupted. After Ctrl-C the record says
    `interrupted`, and there is no forecast yet.

    Args:
        known: a file of values that are known in advance, see `read_known_file`.
        places: a file of where the nodes are, for the page, see `read_places`.
    """
    from difformer.data.series import read_places
    from difformer.train.folder import differences, read_record
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
        raise DataError(
            f"{known} must have rows for {settings.steps} steps after the series, it has {ahead}"
        )
    if (folder / RECORD).exists():
        before = read_record(folder / RECORD)
        differing = differences({name: before.get(name) for name in record}, record)
        if differing:
            raise RunError(f"{folder} holds another run ({'; '.join(differing)})")
    else:
        write_json(folder / RECORD, record, indent=2)
    with interruptible() as interrupt:  # Ctrl-C in the backtest, too, leaves a run to resume
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
    record |= _of_fit(model, data, graph)
    if tested is not None:
        record["backtest"] = finite(_of_backtest(tested))
        lines = interval_lines(model, data, record, LEVEL)
        write_atomic(folder / "intervals.csv", csv_lines(lines))
    write_json(folder / RECORD, record, indent=2)
    lines = forecast_lines(model, data, settings.steps)
    write_atomic(folder / "forecast.csv", csv_lines(lines))
    return record


def _of_fit(model: DIFFormerForecaster, data: Series, graph: Any) -> dict[str, Any]:
    """What series.json holds of a fit."""
    return {
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


def _of_backtest(tested: Backtest) -> dict[str, Any]:
    """What series.json holds of a backtest; the quantiles are of errors divided by the units."""
    return {
        "origins": tested.origins.tolist(),
        **tested.summary(),
        "coverage": {str(level): tested.coverage(level) for level in LEVELS},
        "quantiles": {str(level): tested.quantiles(level).tolist() for level in LEVELS},
        "units": tested.units().tolist(),
        "sizes": tested.sizes().tolist(),
        "lower": lower_end(tested.values),
    }


def half_widths(record: Mapping[str, Any], level: float) -> Any:
    """(steps, nodes) half the width of the intervals of a level, in the units of the series."""
    import numpy as np

    tested = record.get("backtest")
    if tested is None:
        raise RunError("intervals need a backtest, and the run has none: train it with origins")
    if str(level) not in tested["quantiles"]:
        raise ValueError(f"level must be one of {', '.join(map(str, LEVELS))}, got {level!r}")
    kept = [np.inf if q is None else q for q in tested["quantiles"][str(level)]]
    size = np.array([s or 0.0 for s in tested.get("units", tested["sizes"])])
    # A node that was forecast exactly has an interval of no width, even if others' are infinite.
    return np.where(size > 0, np.array(kept)[:, None] * np.maximum(size, 1e-300), 0.0)


def lower_end(values: Any) -> float:
    """Where intervals end below: at 0 if no value is negative."""
    return -math.inf if (values < 0).any() else 0.0


def interval_lines(
    model: DIFFormerForecaster, data: Series, record: Mapping[str, Any], level: float
) -> list[list[Any]]:
    """The next steps as lines of a CSV file, one per step and node: forecast and interval."""
    half, share = half_widths(record, level), f"{100 * level:g} %"
    lines: list[list[Any]] = [["time", "node", "forecast", f"from {share}", f"to {share}"]]
    low = lower_end(data.values)
    ahead = model.predict(len(half), series=data)
    for stamp, row, wide in zip(next_stamps(data, len(half)), ahead, half, strict=True):
        for node, value, own in zip(data.names, row, wide, strict=True):
            cells = map(number_text, (value, max(low, value - own), value + own))
            lines.append([stamp, node, *cells])
    return lines


def next_stamps(data: Series, steps: int) -> list[str]:
    """The times of the next steps as text; +1, +2, ... if the series has no times."""
    from difformer.data.times import following

    stamps = following(data.stamps, steps)
    return [f"+{i + 1}" if stamps is None else _shown(stamps[i]) for i in range(steps)]


def open_series(folder: Path | str) -> tuple[DIFFormerForecaster, dict[str, Any]]:
    """The fitted forecaster of a run folder, and what its series.json holds."""
    from difformer.train.folder import read_record

    folder = Path(folder)
    record = read_record(folder / RECORD)
    if not (folder / "forecast.csv").exists():
        raise RunError(f"{folder} is not finished: resume it with --resume")
    with reading(folder):
        data, graph = _read(record)
        settings = SeriesSettings(**record["settings"])
        return settings.forecaster(folder).fit(data, graph), record  # read back, not trained


def forecast_lines(model: DIFFormerForecaster, data: Series, steps: int) -> list[list[Any]]:
    """The next steps as lines of a CSV file: the time, then one column per node."""
    rows = zip(next_stamps(data, steps), model.predict(steps, series=data), strict=True)
    return [["time", *data.names], *([stamp, *map(number_text, row)] for stamp, row in rows)]


def _read(record: Mapping[str, Any]) -> tuple[Series, Any]:
    from difformer.data.graphs import read_step_edges
    from difformer.data.series import read_known_file, read_series_file

    data = read_series_file(record["series"])
    if record.get("known") is not None:
        data = read_known_file(record["known"], data)
    edges = record["edges"]
    return data, None if edges is None else read_step_edges(edges, data)


def _shown(stamp: Any) -> str:
    if isinstance(stamp, datetime):
        return (stamp.date() if stamp.time() == time.min else stamp).isoformat()
    return f"{stamp:g}" if isinstance(stamp, float) else str(stamp)

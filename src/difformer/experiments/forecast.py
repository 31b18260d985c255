"""Train on a user's own series and forecast it: a run folder.

config.toml        what was asked for
metrics.csv        a row an epoch
model.safetensors  the weights of the best epoch
scale.json         the nodes, their mean and scale, and the lags
forecast.csv       the steps after the series, in its units
result.json        validation, and a backtest from rolling origins beside naive forecasts; last

No torch until something is trained: the command line reads the settings from here.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from difformer.errors import RunError

if TYPE_CHECKING:
    from difformer.data.series import Series
    from difformer.estimators.forecaster import DIFFormerForecaster

__all__ = ["SeriesSettings", "train_series"]


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, kw_only=True)
class SeriesSettings:
    """How a forecaster for one's own series is trained."""

    lags: int = _option(4, "past values of a node that are its features")
    steps: int = _option(4, "steps to forecast after the series")
    origins: int = _option(5, "origins of the backtest; 0 for none")
    hidden: int = _option(16, "width of the states")
    kernel: str = _option("simple", "diffusivity: simple or sigmoid")
    epochs: int = _option(300, "the most epochs to train for")
    patience: int = _option(30, "stop after this many epochs without a better validation")
    seed: int = _option(0, "seed of everything random")


def train_series(
    series: Path | str,
    edges: Path | str | None,
    folder: Path | str,
    settings: SeriesSettings | None = None,
) -> dict[str, Any]:
    """Fit, backtest, forecast, and leave a run folder; returns what result.json holds."""
    from difformer.data.series import read_edges_file, read_series_file
    from difformer.estimators.forecaster import DIFFormerForecaster

    settings = settings or SeriesSettings()
    folder = Path(folder)
    if (folder / "result.json").exists():
        raise RunError(f"{folder} holds a finished run: give another folder")
    data = read_series_file(series)
    graph = None if edges is None else read_edges_file(edges, data)
    model = DIFFormerForecaster(
        lags=settings.lags,
        hidden_channels=settings.hidden,
        kernel=settings.kernel,
        epochs=settings.epochs,
        patience=settings.patience,
        random_state=settings.seed,
    ).fit(data, graph)
    result: dict[str, Any] = {
        "steps": len(data.values),
        "nodes": len(data.names),
        "graphs": 0 if graph is None else len(graph),
        "validation": model.validation_,
        "epochs": model.n_iter_,
        "best_epoch": model.best_epoch_,
    }
    if settings.origins:
        tested = model.backtest(data, graph, horizon=1, origins=settings.origins)
        result["backtest"] = {"origins": tested.origins.tolist(), **tested.summary()}
    _write(folder, data, model, settings, result, (str(series), edges and str(edges)))
    return result


def _write(
    folder: Path,
    data: Series,
    model: DIFFormerForecaster,
    settings: SeriesSettings,
    result: dict[str, Any],
    files: tuple[str, str | None],
) -> None:
    import tomli_w

    from difformer.estimators.forecaster import following
    from difformer.train.files import write_atomic
    from difformer.train.run import csv_text, plain

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error.strerror or error}") from error
    config = {"data": {"series": files[0], "edges": files[1]}, "series": asdict(settings)}
    write_atomic(folder / "config.toml", tomli_w.dumps(plain(config)).encode())
    write_atomic(folder / "metrics.csv", csv_text(model.history_).encode())
    model.model_.save(folder / "model.safetensors")
    scale = {
        "nodes": list(data.names),
        "mean": model.mean_.tolist(),
        "scale": model.scale_.tolist(),
        "lags": model.lags_,
    }
    write_atomic(folder / "scale.json", (json.dumps(scale) + "\n").encode())
    forecast = model.predict(settings.steps)
    stamps = following(data.stamps, settings.steps)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", *data.names])
    for step, row in enumerate(forecast):
        stamp = f"+{step + 1}" if stamps is None else _shown(stamps[step])
        writer.writerow([stamp, *(f"{value:.9g}" for value in row)])
    write_atomic(folder / "forecast.csv", text.getvalue().encode())
    write_atomic(folder / "result.json", (json.dumps(result, indent=2) + "\n").encode())


def _shown(stamp: Any) -> str:
    if isinstance(stamp, datetime):
        midnight = (stamp.hour, stamp.minute, stamp.second, stamp.microsecond) == (0, 0, 0, 0)
        return stamp.date().isoformat() if midnight else stamp.isoformat()
    return f"{stamp:g}" if isinstance(stamp, float) else str(stamp)

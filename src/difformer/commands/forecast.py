"""What `difformer train --series` does: a forecaster for one's own series."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from difformer.commands.options import parse_set
from difformer.commands.output import print_json, print_table
from difformer.experiments.forecast import SeriesSettings, train_series
from difformer.experiments.tables import Table
from difformer.experiments.values import options_of

__all__ = ["forecast"]


def forecast(
    series: Path,
    edges: Path | None,
    out: Path | None,
    pairs: list[str],
    others: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Train, test from rolling origins, forecast; options that are for datasets are refused."""
    for flag, value in others.items():
        if value is not None:
            raise ValueError(f"{flag} must be left out with --series; its options go by --set")
    settings = SeriesSettings(**parse_set(pairs, options_of(SeriesSettings)))
    folder = _new_folder(series) if out is None else out
    result = train_series(series, edges, folder, settings)
    if as_json:
        print_json({**result, "folder": str(folder)})
        return
    print_table(_table(result), f"one-step forecasts of {series.name}, in its units")
    print(f"kept in {folder}; the next {settings.steps} steps are in {folder / 'forecast.csv'}")


def _table(result: Mapping[str, Any]) -> Table:
    tested = result.get("backtest")
    if tested is None:
        rows = (("validation", f"{result['validation']['mse']:.4f} (standardised)"),)
        return Table(("", "mean squared error"), rows)
    names = {"mse": "DIFFormer", "last_value_mse": "last value", "mean_of_lags_mse": "mean of lags"}
    rows = tuple((title, f"{tested[key]:.6g}") for key, title in names.items())
    note = f"backtest from steps {', '.join(str(o) for o in tested['origins'])}"
    return Table(("", "mean squared error"), rows, (note,))


def _new_folder(series: Path) -> Path:
    number = 1
    while (folder := Path("runs") / f"{series.stem}-forecast-{number}").exists():
        number += 1
    return folder
